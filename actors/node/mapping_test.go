package node

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/compute/sample"
)

// slowly makes a worker map and unmap one slab in a round, of sequences that have more than four.
func slowly(c *Config) { c.mapSlabs, c.mapTime = 1, 1 }

const longPrompt, longPromptSlabs = 1600, 100

// hitting is a worker with a stream that runs, and a request after it whose prompt is in the prefix cache: its slabs are being
// mapped.
func hitting(t *testing.T, slabs int) (p *Node, d *testDevice, running, hit api.Stream) {
	t.Helper()
	d = newTestDevice(slabs)
	cfg := testConfig(t, d)
	slowly(&cfg)
	d.gate = make(chan struct{})
	p, err := New(cfg)
	require.NoError(t, err)
	t.Cleanup(func() {
		d.open1()
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if !p.closed.Load() {
			require.NoError(t, p.Close(ctx))
		}
	})
	first, err := p.Submit(t.Context(), tokensRequest("first", numbered(100, longPrompt), 1))
	require.NoError(t, err)
	feed(t, d, often, func() bool {
		return d.computed() == longPrompt && p.worker.InFlight() == 0 && p.kv.Stats().Regions == 0
	})
	_, _, err = read(first)
	require.NoError(t, err)
	running, err = p.Submit(t.Context(), tokensRequest("running", numbered(3000, 10), 900))
	require.NoError(t, err)
	feed(t, d, often, func() bool { return p.generated() > 2 })
	d.mu.Lock()
	d.mostMaps = 0
	d.mu.Unlock()
	hit, err = p.Submit(t.Context(), tokensRequest("hit", numbered(100, longPrompt), 5))
	require.NoError(t, err)
	feed(t, d, often, func() bool { return d.mappedTo(longPromptSlabs / 4) })
	return p, d, running, hit
}

// mappedTo says whether a region has that many slabs or more.
func (d *testDevice) mappedTo(slabs int) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.owner) >= slabs
}

// answers checks that a stream ends with the n tokens that follow a prompt.
func (d *testDevice) answers(t *testing.T, s api.Stream, prompt []int32, n int) {
	t.Helper()
	tokens, last, err := read(s)
	require.NoError(t, err)
	require.NoError(t, last.Err)
	require.Equal(t, expected(d, prompt, n), tokens)
}

// generated is the number of tokens of the sequences that are here.
func (p *Node) generated() (tokens int) {
	for _, s := range p.worker.Sequences() {
		tokens += s.Generated
	}
	return tokens
}

// TestMappingALongHitHoldsNoStepOfOthers, and neither does unmapping it. A short request that comes meanwhile begins at once.
func TestMappingALongHitHoldsNoStepOfOthers(t *testing.T) {
	p, d, running, hit := hitting(t, 300)
	short, err := p.Submit(t.Context(), tokensRequest("short", numbered(2500, 10), 3))
	require.NoError(t, err)
	feed(t, d, often, func() bool { return p.worker.InFlight() == 2 })
	require.Zero(t, p.worker.Sequences()[1].Computed, "the hit has no rows before it is mapped")
	d.mu.Lock()
	require.Less(t, len(d.owner), longPromptSlabs)
	d.mu.Unlock()
	feed(t, d, often, func() bool { return p.kv.Stats().Regions == 1 })
	d.mu.Lock()
	require.LessOrEqual(t, d.mostMaps, 8, "those of the short request, one of the hit, and a lease")
	d.mu.Unlock()
	d.open1()
	for _, c := range []struct {
		s      api.Stream
		prompt []int32
		n      int
	}{{running, numbered(3000, 10), 900}, {hit, numbered(100, longPrompt), 5}, {short, numbered(2500, 10), 3}} {
		d.answers(t, c.s, c.prompt, c.n)
	}
	requireClean(t, p, d)
}

func TestALongPromptRunsWhileItsSlabsAreMapped(t *testing.T) {
	d := newTestDevice(300)
	cfg := testConfig(t, d)
	slowly(&cfg)
	d.gate = make(chan struct{})
	p := start(t, cfg)
	t.Cleanup(d.open1)
	s, err := p.Submit(t.Context(), tokensRequest("long", numbered(100, longPrompt), 5))
	require.NoError(t, err)
	feed(t, d, often, func() bool {
		list := p.worker.Sequences()
		return len(list) == 1 && list[0].Computed > 0
	})
	d.mu.Lock()
	require.Less(t, len(d.owner), longPromptSlabs/2)
	d.mu.Unlock()
	d.open1()
	d.answers(t, s, numbered(100, longPrompt), 5)
	requireClean(t, p, d)
}

func TestARequestThatIsCanceledWhileItsSlabsAreMappedLeavesNothing(t *testing.T) {
	p, d, running, hit := hitting(t, 300)
	hit.Close()
	feed(t, d, often, func() bool { return p.kv.Stats().Regions == 1 || d.mappedTo(longPromptSlabs) })
	require.False(t, d.mappedTo(longPromptSlabs), "the others are not mapped any more")
	d.open1()
	d.answers(t, running, numbered(3000, 10), 900)
	requireClean(t, p, d)
}

func TestADeviceThatFailsWhileSlabsAreMappedLeavesNothing(t *testing.T) {
	for name, fail := range map[string]func(*testDevice){
		"step":    func(d *testDevice) { d.failAt = []int{d.steps + 1} },
		"mapping": func(d *testDevice) { d.mapFails = true },
	} {
		t.Run(name, func(t *testing.T) {
			p, d, running, hit := hitting(t, 300)
			d.mu.Lock()
			fail(d)
			d.mu.Unlock()
			d.open1()
			for _, s := range []api.Stream{running, hit} {
				_, last, err := read(s)
				require.NoError(t, err)
				require.Error(t, last.Err)
			}
			var next api.Stream
			require.Eventually(t, func() (ok bool) {
				var err error
				next, err = p.Submit(t.Context(), tokensRequest("next", numbered(100, longPrompt), 5))
				return err == nil // else the device is being loaded
			}, patience, time.Millisecond)
			d.answers(t, next, numbered(100, longPrompt), 5)
			requireClean(t, p, d)
		})
	}
}

func TestADeviceThatFailsWhileSlabsAreUnmappedLeavesNothing(t *testing.T) {
	p, d, running, hit := hitting(t, 300)
	feed(t, d, often, func() bool { return p.worker.InFlight() == 1 }) // the hit has ended
	_, last, err := read(hit)
	require.NoError(t, err)
	require.NoError(t, last.Err)
	require.Equal(t, 2, p.kv.Stats().Regions, "its slabs are still mapped")
	d.mu.Lock()
	d.failAt = []int{d.steps + 1}
	d.mu.Unlock()
	d.open1()
	_, last, err = read(running)
	require.NoError(t, err)
	require.ErrorContains(t, last.Err, "lost the device")
	requireClean(t, p, d)
}

func TestAWorkerStopsWhileSlabsAreMapped(t *testing.T) {
	p, d, _, _ := hitting(t, 300)
	d.open1()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	require.NoError(t, p.Close(ctx), "it does not wait for requests")
	require.Eventually(t, func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		return d.open == 0 && len(d.owner) == 0
	}, patience, time.Millisecond)
}

// TestARequestBeginsOnceTheSlabsThatItWaitsForAreUnmapped: they are released later than their sequence ends, and nobody else
// releases any.
func TestARequestBeginsOnceTheSlabsThatItWaitsForAreUnmapped(t *testing.T) {
	d := newTestDevice(longPromptSlabs + 1)
	cfg := testConfig(t, d)
	slowly(&cfg)
	p := start(t, cfg)
	var streams []api.Stream
	for i := range 3 {
		s, err := p.Submit(t.Context(), tokensRequest(fmt.Sprint(i), numbered(100*(i+1), longPrompt), 5))
		require.NoError(t, err)
		streams = append(streams, s)
	}
	for i, s := range streams {
		d.answers(t, s, numbered(100*(i+1), longPrompt), 5)
	}
	requireClean(t, p, d)
}

// TestSpillsAndCancelsWhileSlabsAreMappedLoseNothing: memory is short, so sequences move to the tier and back, and requests are
// cancelled at any time.
func TestSpillsAndCancelsWhileSlabsAreMappedLoseNothing(t *testing.T) {
	d := newTestDevice(0)
	cfg := testConfig(t, d)
	short(&cfg)
	slowly(&cfg)
	cfg.KVSpill = KVDisk{Dir: t.TempDir(), Size: 400}
	p := start(t, cfg)
	t.Cleanup(d.open1)
	d.open1()
	var wg sync.WaitGroup
	limit := make(chan struct{}, 6)
	for i := range 120 {
		limit <- struct{}{}
		wg.Go(func() {
			defer func() { <-limit }()
			r := rand.New(rand.NewPCG(3, uint64(i)))
			g := growing(i % 4)
			if i%5 == 0 {
				g.Beams, g.MaxTokens = &sample.BeamParams{Width: 2}, 150
			}
			g.ID = fmt.Sprint("r", i)
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			s, err := p.Submit(ctx, g)
			if err != nil {
				t.Error(err)
				return
			}
			defer s.Close()
			stop := r.IntN(2 * growingTokens)
			var tokens []int32
			for len(tokens) < stop {
				e, err := s.Next(ctx)
				if err != nil {
					break
				}
				if e.Err != nil {
					t.Error(e.Err)
				}
				tokens = append(tokens, e.Tokens...)
			}
		})
	}
	wg.Wait()
	require.Positive(t, p.sum(t, "millrace_kv_spill_restores_total"))
	require.Zero(t, p.kv.Stats().Spilled)
	requireClean(t, p, d)
}
