package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/millrace/millrace/e2e/chaos/cluster"
	"github.com/millrace/millrace/e2e/wait"
)

// handover kills compute processes after SIGTERM, at random moments while they hand their sequences over, and restarts them.
func handover(ctx context.Context, s *suite) (*report, error) {
	return s.disturbed(ctx, "handover", s.config("handover"), func(ctx context.Context, t *trial) error {
		for range t.kills {
			if err := wait.For(ctx, t.between(time.Second, 3*time.Second)); err != nil {
				return err
			}
			m := t.one(cluster.RoleCompute)
			t.struck("kill in a hand-over", m.Role, m.Name)
			if err := m.TerminateAndKill(ctx, t.between(time.Millisecond, 400*time.Millisecond)); err != nil {
				return err
			}
			if err := t.restart(ctx, m.Process, 0); err != nil {
				return err
			}
		}
		return nil
	})
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
	return fmt.Sprintf("%g tokens were handed over in %.1f MB, %g were adopted, %g were computed again, %g copies failed", t.watch.total("millrace_handover_tokens_total"),
		t.watch.total("millrace_handover_bytes_total")/1e6, t.watch.total("millrace_adopted_tokens_total"), t.watch.total("millrace_recomputed_tokens_total"), t.watch.total("millrace_handover_failures_total"))
}
