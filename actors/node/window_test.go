package node

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/kvmgr"
)

// testWindow is a window of the tests: two slabs and a part of one.
const testWindow = 40

// sliding makes a worker's tokens see a window, and give back what is before it. Its steps have 64 rows.
func sliding(c *Config) {
	d := c.Model.(*testDevice)
	d.window, d.groups = testWindow, kvmgr.Counts{Windowed: 1}
	d.live = kvmgr.LiveSlabs(testWindow, 2*c.Sched.MaxBatchTokens, testSlabTokens)
}

// slider is a worker with a window and a pool of slabs.
func slider(t *testing.T, slabs int, more func(*Config)) (*Node, *testDevice) {
	t.Helper()
	d := newTestDevice(slabs)
	cfg := testConfig(t, d)
	sliding(&cfg)
	if more != nil {
		more(&cfg)
	}
	return start(t, cfg), d
}

// liveSlabs is the most slabs that a sequence of these workers has.
var liveSlabs = kvmgr.LiveSlabs(testWindow, 128, testSlabTokens)

// TestASequenceHasTheSlabsOfItsWindowOnly, while a prompt and an answer of 2,000 tokens pass through a pool of the slabs of 192.
func TestASequenceHasTheSlabsOfItsWindowOnly(t *testing.T) {
	p, d := slider(t, liveSlabs, nil)
	most, quit, ended := 0, make(chan struct{}), make(chan struct{})
	go func() { // beside the steps
		defer close(ended)
		for {
			select {
			case <-quit:
				return
			default:
				s := p.kv.Stats()
				most = max(most, s.Used+s.Promised)
			}
		}
	}()
	prompt := numbered(100, 1000)
	tokens, _ := answer(t, p, tokensRequest("long", prompt, 1000))
	close(quit)
	<-ended
	require.Equal(t, expected(d, prompt, 1000), tokens)
	require.LessOrEqual(t, most, liveSlabs)
	require.Positive(t, d.trims)
	requireClean(t, p, d)
}

// TestSequencesRunTogetherWhoseWindowsFit: with all their tokens none of them would fit.
func TestSequencesRunTogetherWhoseWindowsFit(t *testing.T) {
	for _, predict := range []bool{false, true} {
		p, d := slider(t, 4*liveSlabs, func(c *Config) { c.Sched.Predict = predict })
		var streams []api.Stream
		for i := range 8 {
			s, err := p.Submit(t.Context(), tokensRequest(fmt.Sprint(i), numbered(300*i, 700), 1000))
			require.NoError(t, err)
			streams = append(streams, s)
		}
		for i, s := range streams {
			tokens, last, err := read(s)
			require.NoError(t, err)
			require.NoError(t, last.Err)
			require.Equal(t, expected(d, numbered(300*i, 700), 1000), tokens)
		}
		require.Zero(t, p.sum(t, "millrace_recomputed_tokens_total"))
		require.GreaterOrEqual(t, d.together, 4)
		requireClean(t, p, d)
	}
}

// TestWindowsAreMappedInParts: a slab in each round, of prompts and hits.
func TestWindowsAreMappedInParts(t *testing.T) {
	p, d := slider(t, 3*liveSlabs, slowly)
	var streams []api.Stream
	for i := range 6 {
		s, err := p.Submit(t.Context(), tokensRequest(fmt.Sprint(i), numbered(300*(i/2), 700), 300))
		require.NoError(t, err)
		streams = append(streams, s)
	}
	for i, s := range streams {
		tokens, last, err := read(s)
		require.NoError(t, err)
		require.NoError(t, last.Err)
		require.Equal(t, expected(d, numbered(300*(i/2), 700), 300), tokens)
	}
	requireClean(t, p, d)
}

// TestAConversationNeedsItsLastWindowOnly: its next turn computes the new tokens, though the pool has lost most of the tokens before them.
func TestAConversationNeedsItsLastWindowOnly(t *testing.T) {
	p, d := slider(t, liveSlabs+2, nil)
	prompt := numbered(100, 1000)
	first, last := answer(t, p, tokensRequest("first", prompt, 300))
	require.Zero(t, last.Usage.CachedTokens)
	before := d.computed()
	next := append(append(prompt, first...), numbered(3000, 10)...)
	tokens, last := answer(t, p, tokensRequest("next", next, 5))
	require.Equal(t, expected(d, next, 5), tokens)
	require.Equal(t, 1299, last.Usage.CachedTokens)
	require.Equal(t, 11+4, d.computed()-before)
	requireClean(t, p, d)
}

// TestChoicesWithAWindowPrefillOnce, though their prompt is longer than the window.
func TestChoicesWithAWindowPrefillOnce(t *testing.T) {
	p, d := slider(t, 8*liveSlabs, nil)
	r := tokensRequest("r", numbered(100, 1005), 400)
	r.N = 8
	_, last := answer(t, p, r)
	require.Zero(t, last.Usage.CachedTokens, "the first one had nothing")
	require.Equal(t, 1005+7+8*399, d.computed())
	requireClean(t, p, d)
}

func TestDraftTokensAreInTheWindow(t *testing.T) {
	p, d := slider(t, liveSlabs, func(c *Config) {
		c.Sched.DraftRows = 8
		c.Model.(*testDevice).round = 7
	})
	_, _ = answer(t, p, tokensRequest("r", numbered(100, 30), 900))
	require.Positive(t, d.drafts)
	requireClean(t, p, d)
}

// briefly makes a worker expect short answers, so that sequences begin with less than they have at once later.
func briefly(t *testing.T, p *Node) {
	t.Helper()
	for i := range 20 {
		answer(t, p, tokensRequest(fmt.Sprint("brief", i), numbered(3*i, 5), 2))
	}
}

// outsideWindows returns when the first tokens of all sequences are outside of the windows.
func outsideWindows(t *testing.T, compute []*node) {
	t.Helper()
	for _, w := range compute {
		require.Eventually(t, func() bool {
			for _, s := range w.worker.Sequences() {
				if s.Computed < 100+2*testWindow {
					return false
				}
			}
			return true
		}, patience, time.Millisecond)
	}
}

// TestASequenceWithAWindowReturnsFromTheTier: only its last window is there.
func TestASequenceWithAWindowReturnsFromTheTier(t *testing.T) {
	d := newTestDevice(0)
	cfg := testConfig(t, d)
	short(&cfg)
	sliding(&cfg)
	d.slabs = liveSlabs + 2
	cfg.KVSpill = KVDisk{Dir: t.TempDir(), Size: 400}
	p := start(t, cfg)
	t.Cleanup(d.open1)
	d.open1()
	briefly(t, p)
	requireReturns(t, p, d, 3)
}

// TestAHandOverWithAWindowCopiesIt, and nothing is computed again.
func TestAHandOverWithAWindowCopiesIt(t *testing.T) {
	c := newTestNodes(t)
	gateway, _, _, compute := four(c, 2, func(c *Config) {
		roomy(c)
		sliding(c)
	})
	paced(t, compute)
	streams := pooled(t, gateway, compute, 12, 400)
	moved := compute[0].worker.InFlight()
	require.Positive(t, moved)
	outsideWindows(t, compute)
	tokens := requireHandedOver(t, compute, streams)
	require.LessOrEqual(t, tokens, float64(moved*(testWindow+4*testSlabTokens+300)), "the window, and the tokens computed meanwhile")
}

// TestAWindowThatCannotBeUnmappedFailsTheDevice: its requests end, and the next ones run.
func TestAWindowThatCannotBeUnmappedFailsTheDevice(t *testing.T) {
	p, d := slider(t, 2*liveSlabs, nil)
	d.mu.Lock()
	d.unmapFails = true
	d.mu.Unlock()
	s, err := p.Submit(t.Context(), tokensRequest("r", numbered(100, 500), 10))
	require.NoError(t, err)
	_, last, err := read(s)
	require.NoError(t, err)
	require.ErrorContains(t, last.Err, "no mapping")
	require.Eventually(t, func() bool { return p.Ready() == nil }, patience, time.Millisecond)
	tokens, _ := answer(t, p, tokensRequest("next", numbered(100, 500), 10))
	require.Equal(t, expected(d, numbered(100, 500), 10), tokens)
	requireClean(t, p, d)
}
