package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/millrace/millrace/e2e/chaos/cluster"
	"github.com/millrace/millrace/e2e/wait"
)

// The two sides of a hand-over.
var handoverSides = []string{"source", "target"}

// copyPatience is how long a drain may take to copy the first slabs to another worker. A worker that is idle copies none.
const copyPatience = 2 * time.Second

// handover makes compute processes drain, and kills the process that drains or the one that gets its sequences, in turn, while
// keys and values are on their way.
func handover(ctx context.Context, s *suite) (*report, error) {
	c := s.config("handover")
	c.Members[cluster.RoleCompute] = 3 // new requests need one that neither drains nor is dead
	return s.disturbed(ctx, "handover", c, func(ctx context.Context, t *trial) error {
		met := map[string]int{}
		for i := range t.kills {
			if err := wait.For(ctx, t.between(time.Second, 2*time.Second)); err != nil {
				return err
			}
			workers := t.Members(cluster.RoleCompute)
			t.random.Shuffle(len(workers), func(i, j int) { workers[i], workers[j] = workers[j], workers[i] })
			side := handoverSides[i%len(handoverSides)]
			copies, err := t.killInHandover(ctx, side, workers[0], workers[1])
			if err != nil {
				return err
			}
			if copies {
				met[side]++
			}
		}
		t.notes = append(t.notes, fmt.Sprintf("kills while keys and values were copied: %d of a source, %d of a target", met["source"],
			met["target"]))
		if met["source"] == 0 || t.kills > 1 && met["target"] == 0 {
			return fmt.Errorf("%s, expected some of each", t.notes[len(t.notes)-1])
		}
		return nil
	})
}

// killInHandover kills one side of a hand-over, and restarts both. copies says that the target had got keys and values, and the
// source still ran.
func (t *trial) killInHandover(ctx context.Context, side string, source, target *cluster.Member) (copies bool, err error) {
	victim := source
	if side == "target" {
		victim = target
	}
	before := t.copied(ctx, target)
	t.struck("kill of the "+side+" of a hand-over", victim.Role, victim.Name)
	if err := source.Drain(); err != nil {
		return false, err
	}
	for begin := time.Now(); time.Since(begin) < copyPatience && source.PID() != 0 && t.copied(ctx, target) == before; {
		if err := wait.For(ctx, 5*time.Millisecond); err != nil {
			return false, err
		}
	}
	if err := wait.For(ctx, t.between(time.Millisecond, 100*time.Millisecond)); err != nil {
		return false, err
	}
	copies = source.PID() != 0 && t.copied(ctx, target) > before
	if err := victim.Kill(); err != nil {
		return false, err
	}
	if victim == target {
		if err := t.restart(ctx, target.Process, 0); err != nil {
			return false, err
		}
	}
	if victim == target { // the source continues its drain
		ending, cancel := context.WithTimeout(ctx, updateGrace+startPatience)
		defer cancel()
		if err := source.WaitEnded(ending); err != nil {
			return false, err
		}
	}
	return copies, t.restart(ctx, source.Process, 0)
}

// copied is the number of tokens that a worker has got from others; 0 if it does not answer.
func (t *trial) copied(ctx context.Context, m *cluster.Member) float64 {
	metrics, err := m.Metrics(ctx)
	if err != nil {
		return 0
	}
	return metrics["millrace_handover_tokens_total"]
}

// recomputed is an error if tokens of migrated sequences were computed again although only workers were harmed, and those
// with time to hand over.
func (t *trial) recomputed() error {
	n := t.watch.total("millrace_recomputed_tokens_total")
	if n > 0 && slices.Equal(t.victims, []string{cluster.RoleCompute}) {
		return fmt.Errorf("%g tokens of drained sequences were computed again, expected none", n)
	}
	return nil
}

// handedOver counts the tokens that were copied between workers.
func (t *trial) handedOver() string {
	return fmt.Sprintf("%g tokens were handed over in %.1f MB, %g were adopted (%g of the adopted sequences were computed again), %g were computed again, %g copies failed",
		t.watch.total("millrace_handover_tokens_total"), t.watch.total("millrace_handover_bytes_total")/1e6,
		t.watch.total("millrace_adopted_tokens_total"), t.watch.total("millrace_adopted_recomputed_tokens_total"),
		t.watch.total("millrace_recomputed_tokens_total"), t.watch.total("millrace_handover_failures_total"))
}
