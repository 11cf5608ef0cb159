package gateway

import (
	"context"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/actors/msg"
	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/cluster"
	"github.com/millrace/millrace/compute/sample"
	"github.com/millrace/millrace/kvmgr"
	"github.com/millrace/millrace/metrics"
	"github.com/millrace/millrace/tracing"
)

// patience bounds what must happen soon: only a failing test waits for it.
const patience = 20 * time.Second

// testGateway is a gateway whose tokenizer, detokenizer and worker are one actor, which hands
// all messages to the test.
type testGateway struct {
	*Gateway
	root   *actor.RootContext
	stages *actor.PID
	series *metrics.Metrics
	got    chan any
}

func newTestGateway(t *testing.T) *testGateway {
	system := actor.NewActorSystem()
	t.Cleanup(system.Shutdown)
	g := &testGateway{root: system.Root, got: make(chan any, 1000)}
	stages := g.root.Spawn(actor.PropsFromFunc(func(ctx actor.Context) {
		switch m := ctx.Message().(type) {
		case *msg.Tokenize, *msg.Detokenize, *msg.OpenText, *msg.CloseText, *msg.Generate, *msg.Cancel, *msg.Find, *msg.Redirect:
			g.got <- m
		}
	}))
	series := metrics.New(metrics.Build{})
	g.stages, g.series = stages, series
	none := func() error { return nil }
	var err error
	g.Gateway, err = New(Config{
		Node: stages.Address, System: system, Cluster: alone{stages.Address},
		Spawn: func(name string, a actor.Actor) (*actor.PID, error) {
			return g.root.SpawnNamed(actor.PropsFromProducer(func() actor.Actor { return a }), name)
		},
		SpawnRequest: func(a actor.Actor) *actor.PID {
			return g.root.Spawn(actor.PropsFromProducer(func() actor.Actor { return a }))
		},
		Local: Local{
			Model: "m", Series: series.Model("m"), Worker: stages, MaxBatchSize: 8, Err: none, Computes: none,
			Tokenizers: always{pid: stages}, Detokenizers: always{pid: stages},
		},
		MaxCalls: 2, Dead: time.Minute, StallAfter: time.Minute, Failover: time.Minute, Metrics: series, Tracer: tracing.Off(),
		Log: zerolog.Nop(),
	})
	require.NoError(t, err)
	return g
}

// always is a pool of one actor.
type always struct {
	pid  *actor.PID
	load int
}

func (a always) Next() *actor.PID { return a.pid }
func (a always) Load() int        { return a.load }

// alone is a process with all roles and without others.
type alone struct{ node string }

func (a alone) Members() []*cluster.Member {
	one := cluster.Pool{Actors: []string{"one"}}
	return []*cluster.Member{{
		Node: a.node, Roles: cluster.Roles(), Model: "m", Tokenizer: &cluster.Tokenizer{Pool: one}, Detok: &one,
		Worker: &cluster.Worker{WeightFacts: api.WeightFacts{ContextLength: 2048, Vocab: 4096}, Slabs: 100, FreeSlabs: 100,
			Need: kvmgr.Need{SlabTokens: 16}, Capacity: 8, Queue: 8},
	}}
}
func (alone) Others() []*cluster.Member { return nil }
func (alone) Alive(string) bool         { return true }
func (alone) Probe(string) uint64       { return 0 }
func (alone) Changed() <-chan struct{}  { return nil }
func (alone) Finished(string) bool      { return false }
func (alone) Died(string, uint64) bool  { return false }
func (alone) Partitioned() bool         { return false }

func next[T any](t *testing.T, g *testGateway) T {
	t.Helper()
	select {
	case m := <-g.got:
		v, ok := m.(T)
		require.True(t, ok, "found a %T", m)
		return v
	case <-time.After(patience):
		t.Fatal("no message")
	}
	panic("unreachable")
}

func TestTokenizingHasABoundAndLeavesRequestsAlone(t *testing.T) {
	g := newTestGateway(t)
	ended := make(chan error, 2+mostTexts)
	for range cap(ended) {
		go func() {
			_, err := g.Tokenize(t.Context(), &api.TokenizeRequest{Prompt: "a"})
			ended <- err
		}()
	}
	require.Eventually(t, func() bool { return len(g.calls.inside) == cap(g.calls.inside) }, patience, time.Millisecond)
	_, err := g.Tokenize(t.Context(), &api.TokenizeRequest{Prompt: "a"})
	require.ErrorContains(t, err, "texts to tokenize")
	_, err = g.Detokenize(t.Context(), "m", []int32{1})
	require.ErrorContains(t, err, "texts to tokenize")
	calls := []*msg.Tokenize{next[*msg.Tokenize](t, g), next[*msg.Tokenize](t, g)} // the others wait
	s, err := g.Submit(t.Context(), &api.Request{ID: "r", Model: "m", N: 1, Prompt: "Once", Arrival: time.Now(), TopLogprobs: -1})
	require.NoError(t, err)
	require.Equal(t, "Once", next[*msg.Tokenize](t, g).Input.Prompt)
	for range cap(ended) {
		if len(calls) == 0 {
			calls = append(calls, next[*msg.Tokenize](t, g))
		}
		g.root.Send(calls[0].Reply, &msg.Tokenized{Tokens: []int32{1}})
		calls = calls[1:]
	}
	for range cap(ended) {
		require.NoError(t, <-ended)
	}
	s.Close()
}

// TestTheTokensOfTextsComeFromATokenizer: also for a prompt of token ids, and not from a version that does not know them.
func TestTheTokensOfTextsComeFromATokenizer(t *testing.T) {
	g := newTestGateway(t)
	submit := func(id string) (api.Stream, *msg.Tokenize) {
		s, err := g.Submit(t.Context(), &api.Request{ID: id, Model: "m", N: 1, PromptTokens: []int32{1}, IgnoreEOS: true,
			Arrival:     time.Now(),
			TopLogprobs: -1,
			Sampling:    sample.Params{BadWords: []string{"bad"}}})
		require.NoError(t, err)
		m := next[*msg.Tokenize](t, g)
		require.Equal(t, &sample.Texts{Words: []string{"bad"}}, m.Texts)
		require.NotNil(t, m.Input, "an earlier version expects it")
		return s, m
	}
	s, m := submit("new")
	tokens := &sample.TextTokens{Words: [][]int32{{3}}}
	g.root.Send(m.Reply, &msg.Tokenized{Tokens: []int32{9}, Texts: tokens})
	next[*msg.OpenText](t, g)
	started := next[*msg.Generate](t, g)
	require.Equal(t, []int32{1}, started.Prompt)
	require.Equal(t, tokens, started.Sampling.Tokens)
	s.Close()
	require.Equal(t, started.Seq, next[*msg.Cancel](t, g).Seq)
	require.Equal(t, started.Seq, next[*msg.CloseText](t, g).Seq)

	s, m = submit("old")
	g.root.Send(m.Reply, &msg.Tokenized{Tokens: []int32{9}})
	e, err := s.Next(t.Context())
	require.NoError(t, err)
	require.ErrorContains(t, e.Err, "bad_words or dry_sequence_breakers: the tokenizer is of a version without them")
}

// start submits a request of token ids, and returns it as its client and its worker have it.
func start(t *testing.T, g *testGateway) (api.Stream, *msg.Generate) {
	t.Helper()
	s, err := g.Submit(t.Context(), &api.Request{ID: "r", Model: "m", N: 1, PromptTokens: []int32{1}, IgnoreEOS: true, Arrival: time.Now(),
		TopLogprobs: -1})
	require.NoError(t, err)
	next[*msg.OpenText](t, g)
	return s, next[*msg.Generate](t, g)
}

// TestARequestActorThatPanicsCancelsItsSequences: at its worker and at its detokenizer.
func TestARequestActorThatPanicsCancelsItsSequences(t *testing.T) {
	g := newTestGateway(t)
	s, started := start(t, g)
	g.root.Send(started.Reply, (*msg.Text)(nil))
	require.Equal(t, started.Seq, next[*msg.Cancel](t, g).Seq)
	require.Equal(t, started.Seq, next[*msg.CloseText](t, g).Seq)
	e, err := s.Next(t.Context())
	require.NoError(t, err)
	var failure *api.Error
	require.ErrorAs(t, e.Err, &failure)
	require.ErrorContains(t, failure, "request stage failed")
}

func TestTheGateServesSomeLetsSomeWaitAndRefusesTheRest(t *testing.T) {
	g := newGate(1, 1)
	leave, err := g.enter(t.Context())
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	waits := make(chan error, 1)
	go func() {
		_, err := g.enter(ctx)
		waits <- err
	}()
	require.Eventually(t, func() bool { return len(g.inside) == 2 }, patience, time.Millisecond)
	_, err = g.enter(t.Context())
	var refused *api.Error
	require.ErrorAs(t, err, &refused)
	require.Equal(t, api.CodeOverloaded, refused.Code)
	require.Equal(t, reasonQueueFull, refused.Reason)
	require.Positive(t, refused.RetryAfter)
	cancel()
	require.ErrorIs(t, <-waits, context.Canceled)
	second := make(chan func(), 1)
	go func() {
		leave, err := g.enter(t.Context())
		if err != nil {
			t.Error(err)
		}
		second <- leave
	}()
	require.Eventually(t, func() bool { return len(g.inside) == 2 }, patience, time.Millisecond)
	leave()
	(<-second)()
	require.Empty(t, g.inside)
	require.Empty(t, g.served)
}

// members are processes that do nothing else.
type members struct {
	alone
	list []*cluster.Member
}

func (m members) Members() []*cluster.Member { return m.list }
func (m members) Others() []*cluster.Member  { return m.list }

func TestAModelHasTheFormatOfItsOldestTokenizer(t *testing.T) {
	tokenizer := func(started int64, format string) *cluster.Member {
		return &cluster.Member{Model: "m", Started: time.Unix(started, 0),
			Tokenizer: &cluster.Tokenizer{TextFacts: api.TextFacts{Format: format, Special: map[string]int32{format: 7}}}}
	}
	worker := &cluster.Member{Model: "m", Worker: &cluster.Worker{WeightFacts: api.WeightFacts{ContextLength: 8}}}
	list := newModels(members{list: []*cluster.Member{tokenizer(3, "new"), worker, tokenizer(2, "old"), tokenizer(4, "newest")}})
	require.Equal(t, "old", list.list()[0].Format)
	require.Equal(t, map[string]int32{"old": 7}, list.list()[0].Special)
	list.cluster = members{list: []*cluster.Member{worker}}
	list.refresh()
	require.Equal(t, "old", list.list()[0].Format, "without a tokenizer it stays")
}

// TestAModelIsAsShortAsItsShortestWorker says, with the cause of that one.
func TestAModelIsAsShortAsItsShortestWorker(t *testing.T) {
	worker := func(tokens int, why string) *cluster.Member {
		return &cluster.Member{Model: "m", Worker: &cluster.Worker{WeightFacts: api.WeightFacts{ContextLength: tokens, Shortened: why}}}
	}
	list := newModels(members{list: []*cluster.Member{worker(9, "nine"), worker(8, "eight"), worker(9, "")}})
	m, err := list.get("m")
	require.NoError(t, err)
	require.Equal(t, 8, m.ContextLength)
	require.Equal(t, "eight", m.Shortened)
}

func TestARequestForEqualWorkersIsRefusedWhereThereAreNone(t *testing.T) {
	g := newTestGateway(t)
	request := func(equal *api.Pin) *api.Request {
		return &api.Request{ID: "r", Model: "m", N: 1, PromptTokens: []int32{1}, IgnoreEOS: true, Arrival: time.Now(), TopLogprobs: -1,
			Equal: equal}
	}
	for _, c := range []struct {
		pin  api.Pin
		want string
	}{
		{api.Pin{Numerics: "0123456789abcdef0"}, "numerics digest of the answer: expected 0123456789abcdef, found workers: 1 of no digest"},
		{api.Pin{Text: "fedcba98765432100"}, "text digest of the answer: expected fedcba9876543210, found processes: 1 of no digest"},
	} {
		_, err := g.Submit(t.Context(), request(&c.pin))
		var failure *api.Error
		require.ErrorAs(t, err, &failure)
		require.Equal(t, reasonNoEqual, failure.Reason)
		require.ErrorContains(t, err, c.want)
	}
	s, err := g.Submit(t.Context(), request(&api.Pin{}))
	require.NoError(t, err)
	next[*msg.OpenText](t, g)
	next[*msg.Generate](t, g)
	s.Close()
}

// TestAModelHasRoomForTokensBesideTheFirstSlabs of a sequence, on each of its workers.
func TestAModelHasRoomForTokensBesideTheFirstSlabs(t *testing.T) {
	worker := func(slabs, head int) *cluster.Member {
		return &cluster.Member{Model: "m", Worker: &cluster.Worker{WeightFacts: api.WeightFacts{ContextLength: 8000}, Slabs: slabs,
			Need: kvmgr.NewSpec(16, kvmgr.Full{Head: head}).Need()}}
	}
	list := newModels(members{list: []*cluster.Member{worker(100, 0), worker(100, 22), worker(90, 0)}})
	m, err := list.get("m")
	require.NoError(t, err)
	require.Equal(t, 78, m.slabs)
	require.Equal(t, 78, m.longest)
	require.True(t, m.noBeams)
	r := newRouting(&Config{Node: "me"}, newTestWatch().watch, nil)
	at := r.workers([]*cluster.Member{worker(100, 22)})[0]
	require.Equal(t, 22+8, at.KV.AtOnce(8))
	heavy := worker(100, 0)
	heavy.Worker.Need = kvmgr.NewSpec(16, kvmgr.Bounded{Slabs: 20}).Need()
	list = newModels(members{list: []*cluster.Member{worker(1000, 0), heavy}})
	m, err = list.get("m")
	require.NoError(t, err)
	require.Equal(t, 1000, m.longest, "of H2O any length fits")
	require.True(t, m.noBeams)
}

func TestAModelIsDescribedByItsOldestWorker(t *testing.T) {
	worker := func(age int64, d api.Description) *cluster.Member {
		return &cluster.Member{Model: "m", Worker: &cluster.Worker{WeightFacts: api.WeightFacts{Created: time.Unix(1e9-age, 0),
			ContextLength: 64, Description: d}, Slabs: 10,
			Need: kvmgr.Need{SlabTokens: 16}}}
	}
	young, old := api.Description{Digest: "y", Layers: 3},
		api.Description{Architecture: "llama", Digest: "d", Parameters: 5, Bytes: 7, GPU: true}
	list := newModels(members{list: []*cluster.Member{worker(1, young), worker(2, old), worker(1, young)}}).list()
	require.Len(t, list, 1)
	require.Equal(t, api.Description{Architecture: "llama", Digest: "d", Parameters: 5, Bytes: 7, GPU: true}, list[0].Description)
}

// TestATokenSaysThatItsRequestHasBegun: the word of its step comes from another process than its text, later or never.
func TestATokenSaysThatItsRequestHasBegun(t *testing.T) {
	g := newTestGateway(t)
	s, started := start(t, g)
	require.Equal(t, 1, g.requests.waiting())
	g.root.Send(started.Reply, &msg.Text{Seq: started.Seq, Token: 5})
	_, err := s.Next(t.Context())
	require.NoError(t, err)
	require.Zero(t, g.requests.waiting())
	w := httptest.NewRecorder()
	g.series.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	ones := []string{}
	for line := range strings.Lines(w.Body.String()) {
		if name, found := strings.CutSuffix(line, `{model="m"} 1`+"\n"); found {
			ones = append(ones, name)
		}
	}
	require.Subset(t, ones, []string{"millrace_generation_tokens_total", "millrace_prompt_tokens_total", "millrace_num_requests_running"})
	s.Close()
}
