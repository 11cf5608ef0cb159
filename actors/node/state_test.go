package node

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/cluster"
	"github.com/millrace/millrace/compute/family"
	"github.com/millrace/millrace/compute/sample"
	"github.com/millrace/millrace/compute/sim"
	"github.com/millrace/millrace/kvmgr"
	"github.com/millrace/millrace/kvmgr/chain"
	"github.com/millrace/millrace/kvmgr/kvfile"
)

// These tests run the simulated device, whose tokens are a hash of all tokens before them, and which refuses a row whose state is not that
// of the tokens before it. The tokens of a sequence are expected to be those that a model without states gives.

// stateSlabs is the number of slabs of a state in these tests.
const stateSlabs = 3

// stateful is a worker whose sequences have states of some slabs, in a pool of slabs.
func stateful(t *testing.T, state, slabs int, more func(*Config, *sim.Options)) *Node {
	t.Helper()
	c := testConfig(t, nil)
	withStates(t, &c, state, slabs, more)
	return start(t, c)
}

// withStates gives a process the device of stateful.
func withStates(t *testing.T, c *Config, state, slabs int, more func(*Config, *sim.Options)) {
	t.Helper()
	cfg, err := family.LoadConfig(filepath.Join("../../testdata/models", "llama-gqa"))
	require.NoError(t, err)
	p, err := family.Build(cfg, nil)
	require.NoError(t, err)
	p.MaxPositions = 2048
	d, _, err := sim.Find("cpu")
	require.NoError(t, err)
	o := sim.Options{Program: p, Device: d, MaxRows: 64, MaxOutputs: 8, MaxSequences: 8, StateSlabs: state,
		KVMemory: int64(slabs) * int64(sim.SlabBytes(p))}
	c.admitPatience = time.Second // a machine that is short of processors loses no snapshot
	if more != nil {
		more(c, &o)
	}
	r, err := sim.Open(o)
	require.NoError(t, err)
	t.Cleanup(r.Close)
	require.Equal(t, slabs, r.Slabs())
	c.Model = r
}

// drawn is a prompt of random tokens.
func drawn(seed uint64, n int) []int32 {
	r := rand.New(rand.NewPCG(seed, 1))
	prompt := make([]int32, n)
	for i := range prompt {
		prompt[i] = int32(r.IntN(131))
	}
	return prompt
}

// requireFree fails unless all slabs come back.
func requireFree(t *testing.T, p *Node) {
	t.Helper()
	require.Eventually(t, func() bool {
		s, err := p.KVState(context.Background(), false)
		return err == nil && s.Check == "ok" && s.Stats.Regions == 0 && s.Stats.Free == s.Stats.Slabs
	}, patience, time.Millisecond)
}

func TestAConversationContinuesWithItsState(t *testing.T) {
	p, plain := stateful(t, stateSlabs, 200, nil), stateful(t, 0, 200, nil)
	same := func(id string, prompt []int32, n int) (tokens []int32, cached int) {
		want, _ := answer(t, plain, tokensRequest(id, prompt, n))
		got, last := answer(t, p, tokensRequest(id, prompt, n))
		require.Equal(t, want, got)
		return got, last.Usage.CachedTokens
	}
	prompt := drawn(1, 150)
	first, cached := same("first", prompt, 30)
	require.Zero(t, cached)
	_, cached = same("again", prompt, 30)
	require.Equal(t, 128, cached, "the last whole slab before the end of the prompt")
	turn := append(slices.Concat(prompt, first), drawn(2, 20)...)
	_, cached = same("next turn", turn, 5)
	require.Equal(t, 179, cached, "all but the token that was sampled last")
	_, cached = same("other answer", append(slices.Clone(prompt[:140]), drawn(3, 30)...), 5)
	require.Equal(t, 128, cached)
	_, cached = same("shorter", append(slices.Clone(prompt[:100]), drawn(4, 30)...), 5)
	require.Equal(t, 64, cached, "a snapshot for each step of the prompt")
	requireFree(t, p)
}

// TestASystemPromptIsComputedTwice: the second one finds what it has in common with the first, and keeps its state there.
func TestASystemPromptIsComputedTwice(t *testing.T) {
	p := stateful(t, 20, 600, nil) // a snapshot every 320 tokens
	system := drawn(1, 250)
	for i, want := range []int{0, 0, 240, 240} {
		_, last := answer(t, p, tokensRequest(fmt.Sprint(i), append(slices.Clone(system), drawn(uint64(10+i), 40)...), 5))
		require.Equal(t, want, last.Usage.CachedTokens, "request %d", i)
	}
	requireFree(t, p)
}

func TestEqualPromptsWithAStateAreComputedOnce(t *testing.T) {
	p, plain := stateful(t, stateSlabs, 400, nil), stateful(t, 0, 400, nil)
	prompt := drawn(1, 150)
	want, _ := answer(t, plain, tokensRequest("r", prompt, 20))
	var streams []api.Stream
	for i := range 6 {
		s, err := p.Submit(t.Context(), tokensRequest(fmt.Sprint(i), prompt, 20))
		require.NoError(t, err)
		streams = append(streams, s)
	}
	cached := 0
	for _, s := range streams {
		tokens, last, err := read(s)
		require.NoError(t, err)
		require.NoError(t, last.Err)
		require.Equal(t, want, tokens)
		cached += last.Usage.CachedTokens
	}
	require.Equal(t, 5*128, cached)
	requireFree(t, p)
}

// TestStatesUnderRandomTraffic: conversations beside each other in a pool that is short, with and without predictions. Some are cancelled.
func TestStatesUnderRandomTraffic(t *testing.T) {
	const turns, talks = 4, 12
	plain := stateful(t, 0, 1000, nil)
	for i, slabs := range []int{40, 70, 200, 200} {
		p := stateful(t, stateSlabs, slabs, func(c *Config, _ *sim.Options) {
			if c.Sched.Predict, c.Sched.DraftRows, c.Sched.ChunkTokens = i%2 == 1, 8, 24; i == 3 {
				c.admitPatience = 1 // slabs for snapshots come too late
			}
		})
		var wg sync.WaitGroup
		var mu sync.Mutex
		cached := 0
		for talk := range talks {
			wg.Go(func() {
				r := rand.New(rand.NewPCG(7, uint64(talk)))
				prompt := append(drawn(uint64(talk%3), 60), drawn(uint64(100+talk), 20+r.IntN(60))...)
				for turn := range turns {
					id := fmt.Sprint(talk, " ", turn)
					q := tokensRequest(id, prompt, 10+r.IntN(60))
					q.Sampling = sample.Params{Temperature: 1, Seed: uint64(talk), TopP: 1}
					if r.IntN(4) == 0 {
						s, err := p.Submit(t.Context(), q)
						if err != nil {
							t.Error(err)
							return
						}
						for range r.IntN(20) { // it goes away somewhere in the middle
							if _, err := s.Next(t.Context()); err != nil {
								break
							}
						}
						s.Close()
						_, _, _ = read(s)
						q.ID += " again"
					}
					want, _ := answer(t, plain, q)
					s, err := p.Submit(t.Context(), q)
					if err != nil {
						t.Error(err)
						return
					}
					got, last, err := read(s)
					if err != nil || last.Err != nil || !slices.Equal(want, got) {
						t.Errorf("%s: %v, %v: %v, want %v", id, err, last.Err, got, want)
						return
					}
					mu.Lock()
					cached += last.Usage.CachedTokens
					mu.Unlock()
					prompt = append(slices.Concat(prompt, got), drawn(uint64(1000+turn), 5)...)
				}
			})
		}
		wg.Wait()
		requireFree(t, p)
		if slabs > 100 {
			require.Positive(t, cached)
		}
		t.Logf("%d slabs: %d tokens cached", slabs, cached)
	}
}

// requirePlain reads the streams of answers of some tokens, to prompts drawn by their numbers, to their ends: they are those of a pipeline
// without states.
func requirePlain(t *testing.T, streams []api.Stream, prompt, tokens int) {
	t.Helper()
	plain := stateful(t, 0, 1000, nil)
	for i, s := range streams {
		want, _ := answer(t, plain, tokensRequest(fmt.Sprint(i), drawn(uint64(i), prompt), tokens))
		got, last, err := read(s)
		require.NoError(t, err)
		require.NoError(t, last.Err)
		require.Equal(t, want, got)
	}
}

// TestStatesWaitInTheTier: sequences, of which each may need most of the memory, run at once.
func TestStatesWaitInTheTier(t *testing.T) {
	p := stateful(t, stateSlabs, 46, func(c *Config, o *sim.Options) { // two fit at first
		c.Sched.Predict, c.KVSpill = true, KVDisk{Dir: t.TempDir(), Size: 1 << 20}
		o.Speed, o.Device.OpSeconds = 1, 1e-5 // else the first one ends before the last one begins
	})
	var streams []api.Stream
	for i := range 5 {
		s, err := p.Submit(t.Context(), tokensRequest(fmt.Sprint(i), drawn(uint64(i), 40), 450))
		require.NoError(t, err)
		streams = append(streams, s)
	}
	requirePlain(t, streams, 40, 450)
	require.Positive(t, p.sum(t, "millrace_kv_spill_restores_total"))
	require.Zero(t, p.sum(t, "millrace_recomputed_tokens_total"))
	requireFree(t, p)
}

// TestStatesOutliveTheProcess: conversations beside each other in pools that are too small, on files that are too small for all or not, and
// the next turns in other processes. Some are cancelled.
func TestStatesOutliveTheProcess(t *testing.T) {
	plain := stateful(t, 0, 1000, nil)
	for i, size := range []int64{40 << 10, 512 << 10, 8 << 20} {
		dir := t.TempDir()
		prompts := make([][]int32, 10)
		for talk := range prompts {
			prompts[talk] = append(drawn(uint64(talk%3), 60), drawn(uint64(100+talk), 20+7*talk)...)
		}
		for turn := range 4 {
			c := testConfig(t, nil)
			withStates(t, &c, stateSlabs, []int{70, 100, 300}[i], func(c *Config, _ *sim.Options) {
				c.KVDisk, c.Sched.Predict = KVDisk{Dir: dir, Size: size}, i == 1
			})
			p, end := startAndEnd(t, c)
			var wg sync.WaitGroup
			for talk := range prompts {
				wg.Go(func() {
					q := tokensRequest(fmt.Sprint(talk, " ", turn), prompts[talk], 10+5*talk)
					if talk%4 == 1 {
						s, err := p.Submit(t.Context(), q)
						if err != nil {
							t.Error(err)
							return
						}
						for range talk {
							if _, err := s.Next(t.Context()); err != nil {
								break
							}
						}
						s.Close()
						_, _, _ = read(s)
						q.ID += " again"
					}
					want, _ := answer(t, plain, q)
					s, err := p.Submit(t.Context(), q)
					if err != nil {
						t.Error(err)
						return
					}
					got, last, err := read(s)
					if err != nil || last.Err != nil || !slices.Equal(want, got) {
						t.Errorf("%s: %v, %v: %v, want %v", q.ID, err, last.Err, got, want)
						return
					}
					if cached := len(prompts[talk]) - 6; i == 2 && turn > 0 && last.Usage.CachedTokens != cached {
						t.Errorf("%s: %d tokens cached, want %d", q.ID, last.Usage.CachedTokens, cached)
					}
					prompts[talk] = append(slices.Concat(prompts[talk], got), drawn(uint64(1000+turn), 5)...)
				})
			}
			wg.Wait()
			requireFree(t, p)
			if turn > 0 && i == 2 { // a smaller file may lose each state before its turn
				require.Positive(t, p.sum(t, "millrace_kv_disk_hits_total"))
			}
			if i == 2 { // else others push out what is about to be read
				require.Zero(t, p.sum(t, "millrace_kv_disk_errors_total"))
			}
			end()
		}
	}
}

// TestStatesDoNotOutliveTheDevice: after a step that failed everything is computed again.
func TestStatesDoNotOutliveTheDevice(t *testing.T) {
	p := stateful(t, stateSlabs, 200, func(_ *Config, o *sim.Options) { o.Fault = "step:20:async" })
	prompt := drawn(1, 150)
	first, _ := answer(t, p, tokensRequest("first", prompt, 5))
	s, err := p.Submit(t.Context(), tokensRequest("fails", prompt, 100))
	require.NoError(t, err)
	_, last, err := read(s)
	require.NoError(t, err)
	require.Error(t, last.Err)
	require.Eventually(t, func() bool { return p.health.Err() == nil }, patience, time.Millisecond)
	got, last := answer(t, p, tokensRequest("again", prompt, 5))
	require.Equal(t, first, got)
	require.Zero(t, last.Usage.CachedTokens)
	requireFree(t, p)
}

func TestABeamSearchWithAStateIsRefused(t *testing.T) {
	p := stateful(t, stateSlabs, 200, nil)
	q := tokensRequest("beams", drawn(1, 20), 5)
	q.Beams = &sample.BeamParams{Width: 2, LengthPenalty: 1}
	s, err := p.Submit(t.Context(), q)
	if err == nil {
		var last api.Event
		_, last, err = read(s)
		require.NoError(t, err)
		err = last.Err
	}
	require.ErrorContains(t, err, "found a beam search, expected none")
}

// statefulNodes are processes that compute some streams with states, of requests with prompts of 100 tokens, beside a gateway. Each
// step takes some milliseconds.
func statefulNodes(t *testing.T, n int, roles ...cluster.Role) (compute []*node, streams []api.Stream) {
	t.Helper()
	c := newTestNodes(t)
	c.dead = 2 * patience // a busy machine makes workers silent
	gateway := c.start(nil, cluster.Gateway, cluster.Tokenize, cluster.Detok)
	for _, role := range roles {
		compute = append(compute, c.start(func(c *Config) {
			withStates(t, c, stateSlabs, 800, func(c *Config, o *sim.Options) {
				c.Sched.MaxBatchSize, o.MaxSequences, o.MaxOutputs = 32, 32, 32
				o.Speed, o.Device.OpSeconds = 1, 2e-4 // else they end before they move, on a busy machine
			})
		}, role))
	}
	gateway.sees(t, len(roles))
	for i := range n {
		s, err := gateway.Submit(t.Context(), tokensRequest(fmt.Sprint(i), drawn(uint64(i), 100), 300))
		require.NoError(t, err)
		streams = append(streams, s)
	}
	for _, w := range compute {
		require.Eventually(t, func() bool { return w.worker.Steps() > 20 }, patience, time.Millisecond)
	}
	return compute, streams
}

// requireStateful reads the streams of statefulNodes to their ends: they moved to a worker, and no token was computed again.
func requireStateful(t *testing.T, to *node, streams []api.Stream, moved int) {
	t.Helper()
	requirePlain(t, streams, 100, 300)
	require.Zero(t, to.counter(t, "millrace_recomputed_tokens_total"))
	require.Zero(t, to.counter(t, "millrace_handover_failures_total"))
	require.GreaterOrEqual(t, to.counter(t, "millrace_handover_tokens_total"), float64(100*moved))
	requireFree(t, to.Node)
}

func TestADrainingWorkerHandsOverStates(t *testing.T) {
	compute, streams := statefulNodes(t, 12, cluster.Compute, cluster.Compute)
	moved := compute[0].worker.InFlight()
	require.Positive(t, moved)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	require.NoError(t, compute[0].Close(ctx))
	requireStateful(t, compute[1], streams, moved)
	compute[0].once.Do(compute[0].conn.Close)
}

func TestStatesMoveFromAPrefillToADecodeWorker(t *testing.T) {
	compute, streams := statefulNodes(t, 12, cluster.Prefill, cluster.Decode)
	require.Eventually(t, func() bool { return compute[0].worker.InFlight() == 0 }, patience, time.Millisecond)
	requireStateful(t, compute[1], streams, len(streams))
	require.Zero(t, compute[0].counter(t, "millrace_recomputed_tokens_total"))
	requireFree(t, compute[0].Node)
}

// TestAnAnswerKeepsItsStateForOthers, where the pool outlives its process: at every 64 tokens.
func TestAnAnswerKeepsItsStateForOthers(t *testing.T) {
	dir, err := os.MkdirTemp("/dev/shm", "millrace-test") //nolint:usetesting // TempDir is not on tmpfs
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	pools, err := kvfile.Open(dir, func(err error) { t.Error(err) })
	require.NoError(t, err)
	t.Cleanup(pools.Close)
	file, err := pools.Create(200, 8*16)
	require.NoError(t, err)
	t.Cleanup(file.Close)
	p := stateful(t, stateSlabs, 200, func(c *Config, _ *sim.Options) { c.Pool = func() *kvfile.File { return file } })
	q := tokensRequest("a", drawn(1, 100), 200)
	answer, _ := answer(t, p, q)
	fd, _ := file.Fd()
	require.NoError(t, unix.Flock(int(fd), unix.LOCK_UN)) // as the end of the process does
	dead := pools.Dead(p.name, slabsOf(p.cfg.Numerics, "sim"))
	require.NotNil(t, dead)
	prefixes := chain.Of(api.CacheSpace(q.Tenant, ""), 16, slices.Concat(q.PromptTokens, answer))
	for i := range stateSlabs {
		_, ok := dead.Stored(kvmgr.StateHash(prefixes[256/16-1], i))
		require.True(t, ok, "slab %d of the state after 256 tokens", i)
		_, ok = dead.Stored(kvmgr.StateHash(prefixes[272/16-1], i))
		require.False(t, ok)
	}
}
