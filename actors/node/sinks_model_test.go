package node

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/compute/device"
	"github.com/millrace/millrace/compute/model"
	"github.com/millrace/millrace/compute/sample"
	"github.com/millrace/millrace/kvmgr"
)

// These tests run a Llama with 4 sinks and a window of 28 tokens on the kernels. It has 128 positions; prompts and answers are longer.

var testEviction = model.Eviction{Sinks: 4, Window: 28, Context: 2048}

// sinkSlabs is the most slabs that a sequence of these workers has.
var sinkSlabs = 1 + kvmgr.LiveSlabs(testEviction.Window, 2*modelRows, testSlabTokens)

// sinkModel opens the Llama of testdata with a pool of slabs.
func sinkModel(t *testing.T, backend string, kv model.KVType, slabs int) *compute.Model {
	t.Helper()
	return lossyModel(t, backend, kv, testEviction, slabs)
}

// lossyModel opens the Llama of testdata, which has 128 positions, with a pool of slabs.
func lossyModel(t *testing.T, backend string, kv model.KVType, eviction model.Eviction, slabs int) *compute.Model {
	t.Helper()
	const from = "../../testdata/models/llama-gqa"
	dir := t.TempDir()
	for _, name := range []string{"config.json", "model.safetensors"} {
		raw, err := os.ReadFile(filepath.Join(from, name))
		require.NoError(t, err)
		if eviction.Sinks == 0 {
			raw = []byte(strings.Replace(string(raw), `"max_position_embeddings": 128`, `"max_position_embeddings": 2048`, 1))
		}
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), raw, 0o600))
	}
	o := compute.Options{
		Dir: dir, Device: device.Options{Backend: backend, Threads: 1}, KV: kv, Eviction: eviction, MaxRows: modelRows, MaxOutputs: 8,
		KVMemory: 1 << 20, NoPacked: true,
	}
	m, err := compute.Open(o)
	require.NoError(t, err)
	o.KVMemory = int64(slabs) * int64(m.Engine().Info().SlabBytes)
	m.Close()
	m, err = compute.Open(o)
	require.NoError(t, err)
	t.Cleanup(m.Close)
	require.Equal(t, slabs, m.Slabs())
	return m
}

func digestOf(m *compute.Model) string {
	n := m.Numerics()
	return n.Digest()
}

// sinkConfig is a worker with a model. With release it gives slabs back.
func sinkConfig(c *Config, m *compute.Model, release bool) {
	modelConfig(c, m, release)
	c.Facts.ContextLength, c.Sched.MaxSequenceTokens, c.Numerics = m.Program.MaxPositions, m.Program.MaxPositions, digestOf(m)
}

// oneByOne returns the tokens of the first n requests, each of which runs alone.
func oneByOne(t *testing.T, p *Node, n int) (answers [][]int32) {
	t.Helper()
	for i := range n {
		tokens, _ := answer(t, p, modelRequest(i))
		answers = append(answers, tokens)
	}
	return answers
}

// requireTogether: the requests have the given tokens when all run beside each other.
func requireTogether(t *testing.T, p *Node, answers [][]int32) {
	t.Helper()
	var wg sync.WaitGroup
	for i, want := range answers {
		wg.Go(func() {
			tokens, err := modelTokens(p, modelRequest(i))
			if err != nil || !equal(tokens, want) {
				t.Errorf("request %d: %v; token %d differs", i, err, commonTokens(tokens, want))
			}
		})
	}
	wg.Wait()
}

// TestSinksStayAndNoTokenChanges: twelve requests of 250 tokens and more run beside each other in a pool of a few windows, and have the
// tokens that each has alone where nothing is given back.
func TestSinksStayAndNoTokenChanges(t *testing.T) {
	const n = 12
	for name, c := range map[string]struct {
		backend string
		kv      model.KVType
	}{"bf16": {"cpu", model.KVAuto}, "int8": {"cpu", model.KVInt8}, "ref": {"ref", model.KVAuto}} {
		t.Run(name, func(t *testing.T) {
			cfg := testConfig(t, newTestDevice(0))
			sinkConfig(&cfg, sinkModel(t, c.backend, c.kv, 200), false)
			p := start(t, cfg)
			answers := oneByOne(t, p, n)
			m := sinkModel(t, c.backend, c.kv, 2*sinkSlabs)
			cfg = testConfig(t, newTestDevice(0))
			sinkConfig(&cfg, m, true)
			cfg.Sched.Predict = true
			p = start(t, cfg)
			briefly(t, p)
			requireTogether(t, p, answers)
			for i, cached := range []int{-1, testEviction.Window - 1} { // the second time, what the first window sees
				q := modelRequest(0)
				q.ID = fmt.Sprint("again ", i)
				again, last := answer(t, p, q)
				require.Equal(t, answers[0], again)
				require.True(t, cached < 0 || cached == last.Usage.CachedTokens, "found %d cached tokens, expected %d",
					last.Usage.CachedTokens, cached)
			}
			require.Zero(t, p.sum(t, "millrace_recomputed_tokens_total"))
			requireModelClean(t, p, m)
		})
	}
}

// beamsBesideAnother returns the tokens of a beam search that runs beside another request.
func beamsBesideAnother(t *testing.T, p *Node) []int32 {
	t.Helper()
	other := make(chan error, 1)
	go func() {
		_, err := modelTokens(p, modelRequest(1))
		other <- err
	}()
	q := modelRequest(0)
	q.Beams, q.MaxTokens = &sample.BeamParams{Width: 3, LengthPenalty: 1}, 60
	tokens, err := modelTokens(p, q)
	require.NoError(t, err)
	require.NoError(t, <-other)
	return tokens
}

// TestBeamsKeepAllSlabsBesideSinks, and have the same answers beside sequences that give theirs back.
func TestBeamsKeepAllSlabsBesideSinks(t *testing.T) {
	var answers [2][]int32
	for i, release := range []bool{false, true} {
		m := sinkModel(t, "cpu", model.KVAuto, 100)
		cfg := testConfig(t, newTestDevice(0))
		sinkConfig(&cfg, m, release)
		p := start(t, cfg)
		answers[i] = beamsBesideAnother(t, p)
		requireModelClean(t, p, m)
	}
	require.Equal(t, answers[0], answers[1])
}

// TestAnswersNameTheEviction of the worker.
func TestAnswersNameTheEviction(t *testing.T) {
	m := sinkModel(t, "cpu", model.KVAuto, 40)
	cfg := testConfig(t, newTestDevice(0))
	sinkConfig(&cfg, m, true)
	p := start(t, cfg)
	s, err := p.Submit(context.Background(), modelRequest(1))
	require.NoError(t, err)
	defer s.Close()
	ev, err := s.Next(t.Context())
	require.NoError(t, err)
	require.NotNil(t, ev.Pin)
	require.Equal(t, "streaming-4-28", ev.Pin.KV())
	require.Equal(t, "fp_"+digestOf(m)[:16]+"-streaming-4-28", ev.Pin.Fingerprint())
}

// TestAWorkerThatStopsLosesNoTokenWhereSlabsAreNotCopied: its sequences are computed again elsewhere.
func TestAWorkerThatStopsLosesNoTokenWhereSlabsAreNotCopied(t *testing.T) {
	const n = 4
	for name, open := range map[string]func(t *testing.T, c *Config, release bool) *compute.Model{
		"sinks": func(t *testing.T, c *Config, release bool) *compute.Model {
			slabs := 200
			if release {
				slabs = n * sinkSlabs
			}
			m := sinkModel(t, "cpu", model.KVAuto, slabs)
			sinkConfig(c, m, release)
			return m
		},
		"kivi": func(t *testing.T, c *Config, _ bool) *compute.Model {
			m := lossyModel(t, "cpu", model.KVKivi, model.Eviction{}, 300)
			kiviConfig(c, m)
			return m
		},
		"h2o": func(t *testing.T, c *Config, release bool) *compute.Model {
			slabs := 300
			if release {
				slabs = n * heavySlabs
			}
			m := lossyModel(t, "cpu", model.KVAuto, testHeavy, slabs)
			kiviConfig(c, m)
			return m
		},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := testConfig(t, newTestDevice(0))
			open(t, &cfg, false)
			alone := start(t, cfg)
			answers := oneByOne(t, alone, n)
			next := requireStopLosesNoToken(t, answers, func(c *Config) *compute.Model { return open(t, c, true) })
			require.Positive(t, next.counter(t, "millrace_recomputed_tokens_total"))
			require.Zero(t, next.counter(t, "millrace_handover_tokens_total"))
		})
	}
}

// kiviConfig is a worker with a model of KIVI, or of H2O.
func kiviConfig(c *Config, m *compute.Model) {
	modelConfig(c, m, true)
	c.Facts.ContextLength, c.Sched.MaxSequenceTokens, c.Numerics = m.Program.MaxPositions, m.Program.MaxPositions, digestOf(m)
}

// TestKiviChangesNoTokenBesideOthers: each sequence has its last tokens in slabs of its own.
func TestKiviChangesNoTokenBesideOthers(t *testing.T) {
	const n = 8
	for _, backend := range []string{"cpu", "ref"} {
		t.Run(backend, func(t *testing.T) {
			worker := func(slabs int) (*Node, *compute.Model) {
				m := lossyModel(t, backend, model.KVKivi, model.Eviction{}, slabs)
				cfg := testConfig(t, newTestDevice(0))
				kiviConfig(&cfg, m)
				return start(t, cfg), m
			}
			alone, _ := worker(100)
			answers := oneByOne(t, alone, n)
			p, m := worker(200)
			briefly(t, p)
			requireTogether(t, p, answers)
			q := modelRequest(0)
			q.Beams = &sample.BeamParams{Width: 3, LengthPenalty: 1}
			_, err := p.Submit(t.Context(), q)
			require.ErrorContains(t, err, "found a beam search, expected none with this --kv-type")
			requireModelClean(t, p, m)
		})
	}
}

// testHeavy evicts after 128 tokens, and then after each 64 of them.
var testHeavy = model.Eviction{H2O: true, Heavy: 40, Recent: 30}

// heavySlabs is the most slabs that a sequence of these workers has: 144 tokens.
const heavySlabs = (40+30+64)/testSlabTokens + 1

// TestHeavyTokensStayAndNoTokenChanges: requests of 250 tokens and more have the tokens that each has alone beside others, and alone in a
// pool of 144 tokens.
func TestHeavyTokensStayAndNoTokenChanges(t *testing.T) {
	const n = 8
	for _, backend := range []string{"cpu", "ref"} {
		t.Run(backend, func(t *testing.T) {
			worker := func(slabs int) (*Node, *compute.Model) {
				m := lossyModel(t, backend, model.KVAuto, testHeavy, slabs)
				require.Equal(t, heavySlabs, m.KV().Need().LiveSlabs)
				cfg := testConfig(t, newTestDevice(0))
				kiviConfig(&cfg, m)
				return start(t, cfg), m
			}
			alone, m := worker(heavySlabs)
			answers := oneByOne(t, alone, n)
			requireModelClean(t, alone, m)
			p, m := worker(3 * heavySlabs)
			briefly(t, p)
			requireTogether(t, p, answers)
			require.Zero(t, p.sum(t, "millrace_recomputed_tokens_total"))
			q := modelRequest(0)
			q.Beams = &sample.BeamParams{Width: 3, LengthPenalty: 1}
			_, err := p.Submit(t.Context(), q)
			require.ErrorContains(t, err, "found a beam search, expected none with this --kv-type or --kv-eviction")
			q = modelRequest(0)
			q.ID, q.N = "choices", 3
			_, last := answer(t, p, q)
			require.Zero(t, last.Usage.CachedTokens, "sequences share no prefix")
			require.Equal(t, "h2o-40-30", m.Program.Lossy())
			require.Regexp(t, "-h2o-40-30$", digestOf(m))
			requireModelClean(t, p, m)

			m = lossyModel(t, backend, model.KVAuto, model.Eviction{}, 200)
			cfg := testConfig(t, newTestDevice(0))
			kiviConfig(&cfg, m)
			require.NotEqual(t, answers, oneByOne(t, start(t, cfg), n), "it changes answers")
		})
	}
}
