package node

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/kvmgr"
	"github.com/millrace/millrace/metrics/metricstest"
)

const (
	growingPrompt = 16
	growingTokens = 484 // of an answer: with its prompt a sequence fills 32 slabs
)

// short makes a worker promise predicted answers. Its memory holds the whole length of one sequence and a half, so the second one
// pauses.
func short(c *Config) {
	d := c.Model.(*testDevice)
	d.gate, d.slabs = make(chan struct{}), 50
	c.Sched.Predict = true
}

func growing(i int) *api.Request {
	return tokensRequest(fmt.Sprint(i), numbered(500*(i+1), growingPrompt), growingTokens)
}

func (p *Node) paused(t *testing.T) int {
	t.Helper()
	return int(metricstest.Sum(t, p.cfg.Metrics.Registry(), "millrace_sequences_paused"))
}

// feed lets a device make steps until something is so, one each interval or as many as it can.
func feed(t *testing.T, d *testDevice, interval time.Duration, until func() bool) {
	t.Helper()
	late := time.After(patience)
	tick := time.NewTicker(max(interval, 1))
	defer tick.Stop()
	for !until() {
		select {
		case <-tick.C:
		case <-late:
			t.Fatal("it is not so")
		}
		select {
		case d.gate <- struct{}{}:
		default:
		}
	}
}

// pausing starts two requests at a worker and returns when the second one is paused.
func pausing(t *testing.T, second *api.Request) (p *Node, d *testDevice, streams [2]api.Stream) {
	t.Helper()
	d = newTestDevice(0)
	cfg := testConfig(t, d)
	short(&cfg)
	p = start(t, cfg)
	t.Cleanup(d.open1)
	var err error
	streams[0], err = p.Submit(t.Context(), growing(0))
	require.NoError(t, err)
	feed(t, d, 0, func() bool { return p.worker.Running() == 1 })
	streams[1], err = p.Submit(t.Context(), second)
	require.NoError(t, err)
	feed(t, d, 0, func() bool { return p.paused(t) == 1 })
	require.Equal(t, 2, p.kv.Stats().Regions)
	return p, d, streams
}

// unpaused lists the sequences with memory whose last growth was not denied.
func unpaused(t *testing.T, p *Node) (seqs []kvmgr.Seq) {
	t.Helper()
	state, err := p.KVState(t.Context(), true)
	require.NoError(t, err)
	for _, r := range state.Regions {
		if !r.Denied {
			seqs = append(seqs, r.Seq)
		}
	}
	return seqs
}

// requireGrown reads a stream to the end of its answer.
func requireGrown(t *testing.T, d *testDevice, s api.Stream, i int) {
	t.Helper()
	got, last, err := read(s)
	require.NoError(t, err)
	require.NoError(t, last.Err)
	require.Equal(t, expected(d, growing(i).PromptTokens, growingTokens), got)
}

func TestAPausedSequenceThatIsCanceledReturnsItsSlabs(t *testing.T) {
	p, d, streams := pausing(t, growing(1))
	before := p.kv.Stats()
	first := unpaused(t, p)
	require.Len(t, first, 1)
	streams[1].Close()
	feed(t, d, time.Millisecond, func() bool { return p.kv.Stats().Regions == 1 })
	require.Equal(t, first, unpaused(t, p), "the one that was not paused runs on")
	after := p.kv.Stats()
	require.Zero(t, after.Denied)
	require.GreaterOrEqual(t, after.Free, before.Free+growingTokens/2/testSlabTokens, "half of its answer was there")
	s, err := p.Submit(t.Context(), growing(2)) // in their place
	require.NoError(t, err)
	feed(t, d, 0, func() bool { return p.kv.Stats().Regions == 2 })
	d.open1()
	requireGrown(t, d, streams[0], 0)
	requireGrown(t, d, s, 2)
	requireClean(t, p, d)
}

func TestAPausedSequenceIsAnsweredAtItsDeadline(t *testing.T) {
	r := growing(1)
	r.Deadline = time.Now().Add(5 * time.Second) // after the pause, also on a busy machine
	p, d, streams := pausing(t, r)
	got := make(chan error, 1)
	go func() {
		_, last, err := read(streams[1])
		if err == nil {
			err = last.Err
		}
		got <- err
	}()
	var ended error
	feed(t, d, 25*time.Millisecond, func() bool {
		select {
		case ended = <-got:
			return true
		default:
			return false
		}
	})
	require.Equal(t, api.CodeTimeout, api.AsError(ended).Code, "%v", ended)
	require.Equal(t, 1, p.worker.InFlight(), "the first one still runs: the second one was paused until its end")
	d.open1()
	requireGrown(t, d, streams[0], 0)
	requireClean(t, p, d)
}

func TestAPausedSequenceContinuesElsewhereWhenItsWorkerDies(t *testing.T) {
	c := newTestNodes(t)
	gateway, _, _, compute := four(c, 2, short)
	var streams []api.Stream
	for i := range 4 {
		s, err := gateway.Submit(context.Background(), growing(i))
		require.NoError(t, err)
		streams = append(streams, s)
	}
	for _, w := range compute {
		feed(t, w.device, 0, func() bool { return w.paused(t) == 1 })
	}
	compute[0].kill()
	compute[1].device.open1()
	for i, s := range streams {
		requireGrown(t, compute[1].device, s, i)
	}
	requireClean(t, compute[1].Node, compute[1].device)
}
