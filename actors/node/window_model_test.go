package node

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/actors/worker"
	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/compute/device"
	"github.com/millrace/millrace/compute/model"
	"github.com/millrace/millrace/compute/sample"
	"github.com/millrace/millrace/kvmgr"
)

// These tests run models of testdata on the kernels, with and without giving slabs back: a Mistral whose layers see a window, and a Qwen2
// of whose three layers the first sees all tokens.

const (
	modelRows   = 64 // of a step
	modelDrafts = 8  // of its rows, those up to which it has draft tokens
	modelAnswer = 250
)

// windowed is a model whose layers see windows.
type windowed struct {
	dir    string // of testdata/models
	window int
	groups kvmgr.Counts
	early  int // first layers that make draft tokens; 0: these are looked up
}

var (
	allWindowed  = windowed{"mistral-window", 11, kvmgr.Counts{Windowed: 1}, 0}
	someWindowed = windowed{"qwen2-window", 7, kvmgr.Counts{Full: 1, Windowed: 2}, 0}
	oneCache     = windowed{"yoco", 9, kvmgr.Counts{Full: 1, Windowed: 2}, 0} // its second half of the layers has one cache
)

// slabs is the most slabs that a sequence of some tokens has, if it gives slabs back.
func (w windowed) slabs(tokens int) int {
	live := kvmgr.LiveSlabs(w.window, 2*modelRows, testSlabTokens)
	return kvmgr.Need{LiveSlabs: live, Groups: w.groups}.AtOnce((tokens + testSlabTokens - 1) / testSlabTokens)
}

// open opens the model with a longer context and a pool of slabs.
func (w windowed) open(t *testing.T, backend string, kv model.KVType, slabs int) *compute.Model {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"config.json", "model.safetensors"} {
		raw, err := os.ReadFile(filepath.Join("../../testdata/models", w.dir, name))
		require.NoError(t, err)
		if name == "config.json" {
			longer := strings.NewReplacer(`"max_position_embeddings": 128`, `"max_position_embeddings": 2048`, `"max_seq_len": 128`,
				`"max_seq_len": 2048`).Replace(string(raw))
			require.NotEqual(t, string(raw), longer)
			raw = []byte(longer)
		}
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), raw, 0o600))
	}
	const slab = 4096 // a page
	m, err := compute.Open(compute.Options{
		Dir: dir, Device: device.Options{Backend: backend, Threads: 1}, KV: kv, MaxRows: modelRows, MaxOutputs: 8,
		KVMemory: int64(slabs) * slab, NoPacked: true, DraftLayers: w.early, DraftRows: modelDrafts,
	})
	require.NoError(t, err)
	t.Cleanup(m.Close)
	require.Equal(t, w.window, m.Program.Window())
	require.Equal(t, w.groups, m.KV().Counts())
	require.Equal(t, slabs, m.Slabs())
	return m
}

// keepsAll is a model of whose windows no slab is given back.
type keepsAll struct{ *compute.Model }

func (m keepsAll) KV() kvmgr.Spec {
	kv := m.Model.KV()
	kv.Groups = slices.Repeat([]kvmgr.Group{kvmgr.Full{}}, len(kv.Groups))
	return kv
}

// modelConfig is a worker with a model. With release it gives slabs back.
func modelConfig(c *Config, m *compute.Model, release bool) {
	c.Model, c.Drafter = m, m.Drafter()
	c.Sched.MaxBatchTokens, c.Sched.DraftRows = modelRows, modelDrafts
	if !release {
		c.Model = keepsAll{m}
	}
}

// modelLongest is the most tokens of a request, and modelTurns of it and its next turn.
const modelLongest, modelTurns = 259 + modelAnswer, 259 + 2*modelAnswer + 5

// modelRequest has a prompt of its own, of several windows or shorter than a slab. Half of the requests are sampled.
func modelRequest(i int) *api.Request {
	r := rand.New(rand.NewPCG(11, uint64(i)))
	prompt := make([]int32, 60+r.IntN(200))
	if i%4 > 0 {
		prompt = prompt[:5+r.IntN(10)]
	}
	for k := range prompt {
		prompt[k] = int32(3 + r.IntN(128))
	}
	q := tokensRequest(fmt.Sprint(i), prompt, modelAnswer)
	if i%2 == 1 {
		q.Sampling = sample.Params{Temperature: 1.1, TopP: 0.95, Seed: uint64(i)}
	}
	return q
}

// nextTurn continues a request after its answer.
func nextTurn(q *api.Request, tokens []int32) *api.Request {
	next := *q
	next.ID, next.Arrival = q.ID+"-next", time.Now()
	next.PromptTokens = append(append(append([]int32{}, q.PromptTokens...), tokens...), 9, 8, 7, 6, 5)
	return &next
}

// plainAnswers are the answers of requests, and of their next turns, each computed alone by a worker that keeps all slabs.
func (w windowed) plainAnswers(t *testing.T, backend string, kv model.KVType, n int) (answers, turns [][]int32) {
	t.Helper()
	cfg := testConfig(t, newTestDevice(0))
	modelConfig(&cfg, w.open(t, backend, kv, 200), false)
	p := start(t, cfg)
	for i := range n {
		q := modelRequest(i)
		tokens, _ := answer(t, p, q)
		answers = append(answers, tokens)
		next, _ := answer(t, p, nextTurn(q, tokens))
		turns = append(turns, next)
	}
	return answers, turns
}

// TestSlabsGivenBackChangeNoToken: twelve requests and their next turns run beside each other, in a pool of a few windows, or of one
// conversation where some layers see all tokens: the other layers' slabs of its tokens would not fit. Sequences move to the tier, and
// prompts begin with what the prefix cache has of their last window.
func TestSlabsGivenBackChangeNoToken(t *testing.T) {
	for name, c := range map[string]struct {
		backend string
		kv      model.KVType
		short   windowed // the one of short mode
	}{
		"bf16": {"cpu", model.KVAuto, allWindowed}, "int8": {"cpu", model.KVInt8, someWindowed},
		"int4": {"cpu", model.KVInt4, oneCache}, "ref": {"ref", model.KVAuto, allWindowed},
	} {
		for _, w := range []windowed{allWindowed, someWindowed, oneCache} {
			if w == oneCache && c.backend == "ref" {
				continue // its slabs have two pages of floats
			}
			if testing.Short() && w != c.short {
				continue
			}
			t.Run(w.dir+"/"+name, func(t *testing.T) { w.changeNoToken(t, c.backend, c.kv) })
		}
	}
}

func (w windowed) changeNoToken(t *testing.T, backend string, kv model.KVType) {
	const n = 12
	answers, turns := w.plainAnswers(t, backend, kv, n+1)
	m := w.open(t, backend, kv, w.slabs(modelTurns)+2)
	cfg := testConfig(t, newTestDevice(0))
	modelConfig(&cfg, m, true)
	cfg.Sched.Predict = true
	cfg.KVSpill = KVDisk{Dir: t.TempDir(), Size: 1 << 20}
	p := start(t, cfg)
	briefly(t, p)
	restored := func() int { return p.sum(t, "millrace_kv_spill_restores_total") }
	const rounds = 10 // requests that a busy machine runs one after the other meet no full pool
	for round := 0; round == 0 || restored() == 0 && round < rounds && !t.Failed(); round++ {
		var wg sync.WaitGroup
		for i := range n {
			wg.Go(func() {
				q := modelRequest(i)
				tokens, err := modelTokens(p, q)
				if err != nil || !equal(tokens, answers[i]) {
					t.Errorf("request %d: %v; token %d differs", i, err, commonTokens(tokens, answers[i]))
					return
				}
				s, err := p.Submit(context.Background(), nextTurn(q, tokens))
				if err != nil {
					t.Error(err)
					return
				}
				next, last, err := read(s)
				if err != nil || last.Err != nil || !equal(next, turns[i]) {
					t.Errorf("next turn of %d: %v, %v; token %d differs", i, err, last.Err, commonTokens(next, turns[i]))
				}
			})
		}
		wg.Wait()
	}
	q := modelRequest(n)
	tokens, _ := answer(t, p, q)
	require.Equal(t, answers[n], tokens)
	next, last := answer(t, p, nextTurn(q, tokens))
	require.Equal(t, turns[n], next)
	require.Equal(t, len(q.PromptTokens)+len(tokens)-1, last.Usage.CachedTokens, "its last window is there")
	require.Less(t, m.Slabs()/w.groups.Count()*testSlabTokens, modelTurns, "and all slabs of the tokens before it are not")
	require.Positive(t, restored())
	require.Zero(t, p.sum(t, "millrace_recomputed_tokens_total"))
	requireModelClean(t, p, m)
}

// commonTokens is how many tokens two answers begin with alike.
func commonTokens(a, b []int32) (n int) {
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}

func modelTokens(p *Node, q *api.Request) ([]int32, error) {
	s, err := p.Submit(context.Background(), q)
	if err != nil {
		return nil, err
	}
	tokens, last, err := read(s)
	if err == nil {
		err = last.Err
	}
	return tokens, err
}

func requireModelClean(t *testing.T, p *Node, m *compute.Model) {
	t.Helper()
	require.Eventually(t, func() bool {
		state, err := p.KVState(context.Background(), false)
		return err == nil && state.Check == "ok" && state.Stats.Regions == 0 && state.Stats.Free == m.Slabs()
	}, patience, time.Millisecond, "every slab comes back")
}

// TestBeamsKeepAllSlabsOfAWindow, and have the same answers beside sequences that give theirs back.
func TestBeamsKeepAllSlabsOfAWindow(t *testing.T) {
	beams := func() *api.Request {
		q := modelRequest(0)
		q.Beams, q.MaxTokens = &sample.BeamParams{Width: 3, LengthPenalty: 1}, 60
		return q
	}
	for _, w := range []windowed{allWindowed, someWindowed, oneCache} {
		w.keepsBeams(t, beams)
	}
}

func (w windowed) keepsBeams(t *testing.T, beams func() *api.Request) {
	t.Helper()
	var answers [2][]int32
	for i, release := range []bool{false, true} {
		m := w.open(t, "cpu", model.KVAuto, 100*w.groups.Count())
		cfg := testConfig(t, newTestDevice(0))
		modelConfig(&cfg, m, release)
		p := start(t, cfg)
		_, err := modelTokens(p, modelRequest(0)) // its prompt is in the prefix cache, in part
		require.NoError(t, err)
		other := make(chan error, 1)
		go func() {
			_, err := modelTokens(p, modelRequest(1))
			other <- err
		}()
		answers[i], err = modelTokens(p, beams())
		require.NoError(t, err)
		require.NoError(t, <-other)
		requireModelClean(t, p, m)
	}
	require.Equal(t, answers[0], answers[1])
}

// pacedModel makes a step for each token of its gate.
type pacedModel struct {
	*compute.Model
	gate chan struct{}
}

func (m *pacedModel) Run(batch []compute.Rows) (compute.Logits, error) {
	<-m.gate
	return m.Model.Run(batch)
}

// TestAHandOverOfWindowsChangesNoToken, and nothing is computed again.
func TestAHandOverOfWindowsChangesNoToken(t *testing.T) {
	for _, w := range []windowed{allWindowed, someWindowed, oneCache} {
		t.Run(w.dir, func(t *testing.T) {
			const n = 6
			answers, _ := w.plainAnswers(t, "cpu", model.KVAuto, n)
			next := requireStopLosesNoToken(t, answers, func(c *Config) *compute.Model {
				m := w.open(t, "cpu", model.KVAuto, n*w.slabs(modelLongest))
				modelConfig(c, m, true)
				return m
			})
			require.Positive(t, next.counter(t, "millrace_handover_tokens_total"))
			require.Zero(t, next.counter(t, "millrace_handover_failures_total"))
			require.Zero(t, next.counter(t, "millrace_recomputed_tokens_total"))
		})
	}
}

// requireStopLosesNoToken stops one of two workers in the middle of the answers to the first requests, which must be those given. It
// returns the other worker, where they end.
func requireStopLosesNoToken(t *testing.T, answers [][]int32, open func(*Config) *compute.Model) (next *node) {
	t.Helper()
	n := len(answers)
	c := newTestNodes(t)
	c.dead = 2 * patience     // a busy machine makes workers silent
	var gates []chan struct{} // of each worker
	gateway, _, _, workers := four(c, 2, func(c *Config) {
		gates = append(gates, make(chan struct{}))
		c.Model = &pacedModel{open(c), gates[len(gates)-1]}
	})
	free := sync.OnceFunc(func() {
		for _, gate := range gates {
			close(gate)
		}
	})
	t.Cleanup(free)
	var streams []api.Stream
	for i := range n {
		s, err := gateway.Submit(context.Background(), modelRequest(i))
		require.NoError(t, err)
		streams = append(streams, s)
	}
	require.Eventually(t, func() bool {
		placed := [2]int{len(workers[0].worker.Sequences()), len(workers[1].worker.Sequences())}
		return placed[0] > 0 && placed[0]+placed[1] == n
	}, patience, time.Millisecond)
	late := time.After(patience)
	for i, w := range workers { // none finishes while the other begins
		for slices.ContainsFunc(w.worker.Sequences(), func(s worker.Sequence) bool { return s.Generated <= 50 }) {
			select {
			case gates[i] <- struct{}{}:
			case <-late:
				t.Fatal("the steps are not made")
			}
		}
	}
	// What the gateway does not have yet is not computed again: it never got it.
	require.Eventually(t, func() bool { return gateway.counted(t, "generation_tokens_total") > 50*n }, patience, time.Millisecond)
	closed := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		closed <- workers[0].Close(ctx)
	}()
	quit := make(chan struct{})
	var pacing sync.WaitGroup
	for _, gate := range gates {
		pacing.Go(func() {
			tick := time.NewTicker(8 * time.Millisecond)
			defer tick.Stop()
			for {
				select {
				case <-quit:
					return
				case <-tick.C:
				}
				select {
				case gate <- struct{}{}:
				case <-quit:
					return
				}
			}
		})
	}
	err := <-closed
	close(quit)
	pacing.Wait()
	free()
	require.NoError(t, err)
	for i, s := range streams {
		tokens, last, err := read(s)
		require.NoError(t, err)
		require.NoError(t, last.Err)
		require.Equal(t, answers[i], tokens, "request %d", i)
	}
	workers[0].once.Do(workers[0].conn.Close)
	return workers[1]
}
