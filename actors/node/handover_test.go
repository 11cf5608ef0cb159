package node

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/actors/worker"
	"github.com/millrace/millrace/api"
)

// counter is the value of a series of a node's model.
func (n *node) counter(t *testing.T, name string) float64 {
	t.Helper()
	families, err := n.cfg.Metrics.Registry().Gather()
	require.NoError(t, err)
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()[0].GetCounter().GetValue()
		}
	}
	t.Fatalf("no series %s", name)
	return 0
}

// pooled starts streams with prompts of 100 tokens of their own, and waits until each worker has made some steps.
func pooled(t *testing.T, gateway *node, compute []*node, n, tokens int) []api.Stream {
	t.Helper()
	var streams []api.Stream
	for i := range n {
		s, err := gateway.Submit(context.Background(), tokensRequest(fmt.Sprint(i), numbered(100*(i+1), 100), tokens))
		require.NoError(t, err)
		streams = append(streams, s)
	}
	for _, w := range compute {
		require.Eventually(t, func() bool { return w.worker.Steps() > 20 }, patience, time.Millisecond)
	}
	return streams
}

func requirePooled(t *testing.T, d *testDevice, streams []api.Stream, tokens int) {
	t.Helper()
	for i, s := range streams {
		got, last, err := read(s)
		require.NoError(t, err)
		require.NoError(t, last.Err)
		require.Equal(t, expected(d, numbered(100*(i+1), 100), tokens), got)
	}
}

// paced lets the devices make a step each millisecond, until the test ends.
func paced(t *testing.T, compute []*node) {
	t.Helper()
	tick, quit := time.NewTicker(time.Millisecond), make(chan struct{})
	var pacing sync.WaitGroup
	t.Cleanup(func() { // before the gates are opened
		close(quit)
		pacing.Wait()
	})
	pacing.Go(func() {
		defer tick.Stop()
		for {
			select {
			case <-quit:
				return
			case <-tick.C:
			}
			for _, n := range compute {
				select {
				case n.device.gate <- struct{}{}:
				default:
				}
			}
		}
	})
}

// roomy workers have room for all sequences of these tests, in memory and in a step.
func roomy(c *Config) {
	c.Sched.MaxBatchSize = 32
	d := c.Model.(*testDevice)
	d.gate, d.slabs = make(chan struct{}), 800
}

func TestADrainingWorkerHandsOverKeysAndValues(t *testing.T) { handsOver(t, roomy) }

// TestSequencesWhoseSlabsAreBeingMappedAreHandedOver: they are, in these workers, most of the time.
func TestSequencesWhoseSlabsAreBeingMappedAreHandedOver(t *testing.T) {
	handsOver(t, func(c *Config) {
		roomy(c)
		slowly(c)
	})
}

func handsOver(t *testing.T, each func(*Config)) {
	t.Helper()
	c := newTestNodes(t)
	c.dead = 2 * patience // a busy machine makes workers silent
	gateway, _, _, compute := four(c, 2, each)
	paced(t, compute)
	streams := pooled(t, gateway, compute, 12, 400)
	moved := compute[0].worker.InFlight()
	require.Positive(t, moved)
	require.Eventually(t, func() bool { // else there is less to hand over
		return !slices.ContainsFunc(compute[0].worker.Sequences(), func(s worker.Sequence) bool { return s.Generated == 0 })
	}, patience, time.Millisecond)
	tokens := requireHandedOver(t, compute, streams)
	require.GreaterOrEqual(t, tokens, float64(100*moved))
}

// TestAHandOverWaitsForAWorkerThatIsFull: what has no room at the next worker stays where it is until there is some. One worker
// has room for half of the sequences.
func TestAHandOverWaitsForAWorkerThatIsFull(t *testing.T) {
	c := newTestNodes(t)
	c.dead = 2 * patience // a busy machine makes workers silent
	gateway, _, _, compute := four(c, 2, func(c *Config) {
		roomy(c)
		c.Model.(*testDevice).slabs = 230 // seven sequences of 500 tokens
	})
	paced(t, compute)
	streams := pooled(t, gateway, compute, 12, 400)
	require.Positive(t, compute[0].worker.InFlight())
	requireHandedOver(t, compute, streams)
}

// requireHandedOver closes the first of two workers, and reads the streams of pooled to their ends: the other one computed no token again.
// It returns the tokens that were handed over.
func requireHandedOver(t *testing.T, compute []*node, streams []api.Stream) (tokens float64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	require.NoError(t, compute[0].Close(ctx))
	requirePooled(t, compute[1].device, streams, 400)
	require.Zero(t, compute[1].counter(t, "millrace_recomputed_tokens_total"))
	require.Zero(t, compute[1].counter(t, "millrace_handover_failures_total"))
	tokens = compute[1].counter(t, "millrace_handover_tokens_total")
	require.Positive(t, tokens)
	requireClean(t, compute[1].Node, compute[1].device)
	compute[0].once.Do(compute[0].conn.Close)
	return tokens
}

// handingOver closes the first of two workers, and returns when some of its tokens are at the other one.
func handingOver(t *testing.T, compute []*node) (closed <-chan error) {
	end := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		end <- compute[0].Close(ctx)
	}()
	require.Eventually(t, func() bool { return compute[1].counter(t, "millrace_handover_tokens_total") > 0 }, patience, time.Millisecond)
	return end
}

func TestAWorkerThatDiesWhileItHandsOverLosesNoStream(t *testing.T) {
	c := newTestNodes(t)
	gateway, _, _, compute := four(c, 2, roomy)
	paced(t, compute)
	streams := pooled(t, gateway, compute, 12, 400)
	closed := handingOver(t, compute)
	compute[0].once.Do(compute[0].conn.Close)
	requirePooled(t, compute[1].device, streams, 400)
	requireClean(t, compute[1].Node, compute[1].device)
	<-closed
}

func TestAStreamThatIsCancelledWhileItIsHandedOverLeavesNothing(t *testing.T) {
	c := newTestNodes(t)
	gateway, _, _, compute := four(c, 2, roomy)
	paced(t, compute)
	streams := pooled(t, gateway, compute, 12, 400)
	closed := handingOver(t, compute)
	for _, s := range streams {
		s.Close()
	}
	require.NoError(t, <-closed)
	require.Eventually(t, func() bool { return compute[1].worker.InFlight() == 0 }, patience, time.Millisecond)
	requireClean(t, compute[1].Node, compute[1].device)
	compute[0].once.Do(compute[0].conn.Close)
}

// TestAWorkerStaysForASequenceThatWasCancelled: the next worker's request for its keys and values may be on its way.
func TestAWorkerStaysForASequenceThatWasCancelled(t *testing.T) {
	c := newTestNodes(t)
	gateway, _, _, compute := four(c, 1, gated)
	w := compute[0]
	require.True(t, w.idle())
	streams := inFlight(t, gateway, compute, 1, 60)
	require.Eventually(t, func() bool { return w.worker.InFlight() == 1 }, patience, time.Millisecond)
	streams[0].Close()
	require.Eventually(t, func() bool { return !w.worker.Cancelled().IsZero() }, patience, time.Millisecond)
	w.device.open1()
	require.Eventually(t, func() bool { return w.worker.InFlight() == 0 }, patience, time.Millisecond)
	if idle := w.idle(); time.Since(w.worker.Cancelled()) < lingers {
		require.False(t, idle)
	}
	require.Eventually(t, w.idle, patience, time.Millisecond)
}
