package stored

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/apitest"
	"github.com/millrace/millrace/api/call"
	"github.com/millrace/millrace/api/responses"
	"github.com/millrace/millrace/durable/batch"
	"github.com/millrace/millrace/durable/calls"
	"github.com/millrace/millrace/durable/objects"
	"github.com/millrace/millrace/e2e/natstest"
)

const patience = 60 * time.Second

type world struct {
	t      *testing.T
	server *server.Server
	engine *apitest.Engine
	keys   apitest.Keys
	ran    atomic.Int64
	gate   chan struct{}
	busy   atomic.Bool // no gateway takes a response from the queue
	reads  atomic.Int64
}

// readCounter counts the records that are read.
type readCounter struct {
	*objects.Store
	n *atomic.Int64
}

func (r readCounter) Get(ctx context.Context, tenant, id string) (objects.Object, io.ReadCloser, error) {
	r.n.Add(1)
	return r.Store.Get(ctx, tenant, id)
}

func (w *world) ready() error {
	if w.busy.Load() {
		return errors.New("busy")
	}
	return nil
}

type gateway struct {
	*Store
	nc      *nats.Conn
	calls   *calls.Calls
	objects *objects.Store
}

func newWorld(t *testing.T) *world {
	w := &world{t: t, keys: apitest.Keys{"a": {ID: "a", Tenant: "tenant a"}, "b": {ID: "b", Tenant: "tenant b"}}, gate: make(chan struct{})}
	w.server = natstest.Start(t, &server.Options{JetStream: true})
	w.engine = apitest.New(func(r *api.Request, s *apitest.Stream) {
		w.ran.Add(1)
		var last, all []string
		for _, m := range r.Messages {
			all = append(all, m.Role+":"+m.Content)
			last = []string{m.Content}
		}
		if last[0] == "wait" {
			if !s.Send(api.Event{Text: "begun ", Tokens: []int32{1}}) {
				return
			}
			select {
			case <-w.gate:
			case <-s.Closed():
				return
			}
		}
		apitest.Say(strings.Join(all, "|"))(r, s)
	})
	return w
}

func (w *world) gateway() *gateway {
	g := &gateway{nc: natstest.Connect(w.t, w.server, nats.MaxReconnects(-1))}
	js, err := jetstream.New(g.nc)
	require.NoError(w.t, err)
	work, err := batch.OpenWork(w.t.Context(), g.nc, js, 16<<20)
	require.NoError(w.t, err)
	g.objects, err = objects.Open(w.t.Context(), g.nc,
		objects.Options{Bucket: "MILLRACE_RESPONSES", Noun: "response", Keep: time.Hour, MaxBytes: 16 << 20, Tenants: w.keys.Tenants})
	require.NoError(w.t, err)
	g.calls, err = calls.New(g.nc, call.NewDirect(w.engine),
		calls.Options{Keys: w.keys, Watch: 50 * time.Millisecond, Answer: 50 * time.Millisecond})
	require.NoError(w.t, err)
	g.Store = New(Options{Logger: zerolog.Nop(), Calls: g.calls, Forget: g.calls.Forget, Keys: w.keys,
		Objects: readCounter{g.objects, &w.reads}, Work: work, Publish: js, Ready: w.ready, Lease: 2 * time.Second})
	w.t.Cleanup(func() {
		g.Close()
		g.calls.Close()
		g.objects.Close()
	})
	return g
}

func (w *world) as(key string) context.Context { return api.WithCaller(w.t.Context(), w.keys[key]) }

func (w *world) decode(fields string) *call.Call {
	c, err := responses.Decode([]byte(`{"model":"tiny-chat",`+fields+`}`), w.engine.Served, time.Now())
	require.NoError(w.t, err)
	return c
}

// answer runs a call and returns its answer to the end.
func (w *world) answer(g *gateway, key, fields string) (id, text string) {
	c := w.decode(fields)
	a, err := g.Run(w.as(key), c)
	require.NoError(w.t, err)
	defer a.Close()
	r, err := call.Collect(w.t.Context(), c, a.Events(w.t.Context()))
	require.NoError(w.t, err)
	return responses.IDOf(c), r.Choices[0].Text
}

type response struct {
	Status     string
	Store      bool
	Background bool
	Error      *struct{ Code string }
	Output     []struct{ Content []struct{ Text string } }
	Completed  *int64 `json:"completed_at"`
}

func (w *world) get(g *gateway, key, id string) (r response, err error) {
	body, err := g.Get(w.as(key), id)
	if err == nil {
		err = json.Unmarshal(body, &r)
	}
	return r, err
}

func notThere(t *testing.T, err error) {
	t.Helper()
	var e *api.Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, api.CodeNotFound, e.Code, e.Message)
}

func TestAResponseIsStoredAndContinued(t *testing.T) {
	w := newWorld(t)
	g, other := w.gateway(), w.gateway()
	first, text := w.answer(g, "a", `"input":"one","instructions":"be brief"`)
	require.Equal(t, "system:be brief|user:one", text)
	r, err := w.get(other, "a", first)
	require.NoError(t, err)
	require.Equal(t, "completed", r.Status)
	require.InDelta(t, time.Now().Unix(), *r.Completed, patience.Seconds())
	require.Equal(t, text, r.Output[0].Content[0].Text)
	second, text := w.answer(other, "a", `"input":"two","previous_response_id":"`+first+`"`)
	require.Equal(t, "user:one|assistant:system:be brief|user:one|user:two", text, "without the earlier instructions")
	_, text = w.answer(g, "a", `"input":"three","previous_response_id":"`+second+`"`)
	require.Contains(t, text, "user:one|assistant:system:be brief|user:one|user:two|assistant:")
	items, err := g.Items(w.as("a"), second)
	require.NoError(t, err)
	require.Len(t, items, 1)

	for _, id := range []string{first, "resp_nobody", "", "*", "../x"} {
		_, err = w.get(g, "b", id)
		notThere(t, err)
		_, err = g.Items(w.as("b"), id)
		notThere(t, err)
		_, err = g.CancelResponse(w.as("b"), id)
		notThere(t, err)
		_, err = g.Follow(w.as("b"), id)
		notThere(t, err)
		notThere(t, g.Delete(w.as("b"), id))
	}
	_, err = g.Run(w.as("b"), w.decode(`"input":"what did I say?","previous_response_id":"`+first+`"`))
	notThere(t, err)
	require.NoError(t, g.Delete(w.as("a"), first))
	_, err = w.get(other, "a", first)
	notThere(t, err)
	_, err = w.get(other, "a", second)
	require.NoError(t, err)
}

func TestStoreFalseWritesNothing(t *testing.T) {
	w := newWorld(t)
	g := w.gateway()
	id, _ := w.answer(g, "a", `"input":"secret","store":false`)
	_, err := w.get(g, "a", id)
	notThere(t, err)
	js, err := jetstream.New(g.nc)
	require.NoError(t, err)
	s, err := js.Stream(t.Context(), "OBJ_MILLRACE_RESPONSES")
	require.NoError(t, err)
	require.Zero(t, s.CachedInfo().State.LastSeq, "nothing was ever written")
	w.answer(g, "a", `"input":"x"`)
	s, err = js.Stream(t.Context(), "OBJ_MILLRACE_RESPONSES")
	require.NoError(t, err)
	require.NotZero(t, s.CachedInfo().State.LastSeq)
}

func TestWhereNothingIsStoredTheRequestSaysSo(t *testing.T) {
	w := newWorld(t)
	runner := Off(call.NewDirect(w.engine))
	for _, fields := range []string{`"input":"x","previous_response_id":"resp_1"`, `"input":"x","background":true`} {
		_, err := runner.Run(t.Context(), w.decode(fields))
		var e *api.Error
		require.ErrorAs(t, err, &e)
		require.Equal(t, api.CodeInvalid, e.Code)
		require.True(t, strings.HasPrefix(e.Message, e.Param+":"), e.Message)
	}
	c := w.decode(`"input":"x"`)
	a, err := runner.Run(t.Context(), c)
	require.NoError(t, err)
	a.Close()
	require.False(t, responses.Wanted(c).Store)
}

// background begins a response in the background and returns its ID.
func (w *world) background(g *gateway, key, fields string) string {
	c := w.decode(fields + `,"background":true`)
	a, err := g.Run(w.as(key), c)
	require.NoError(w.t, err)
	defer a.Close()
	var r response
	require.NoError(w.t, json.Unmarshal(a.(call.Bodied).Body(), &r))
	require.Equal(w.t, "queued", r.Status)
	require.Nil(w.t, r.Completed)
	require.True(w.t, r.Background)
	return responses.IDOf(c)
}

func (w *world) until(g *gateway, key, id, status string) (r response) {
	require.Eventually(w.t, func() bool {
		var err error
		r, err = w.get(g, key, id)
		return err == nil && r.Status == status
	}, patience, 20*time.Millisecond, status)
	return r
}

func TestAResponseInTheBackgroundSurvivesItsGateway(t *testing.T) {
	w := newWorld(t)
	first := w.gateway()
	id := w.background(first, "a", `"input":"wait"`)
	w.until(first, "a", id, "in_progress")
	require.Eventually(t, func() bool { return w.ran.Load() == 1 }, patience, time.Millisecond)
	follower, err := first.Follow(w.as("a"), id)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(w.as("a"))
	ev, err := call.Next(ctx, follower.Events(ctx))
	require.NoError(t, err)
	require.Equal(t, "begun ", ev.Text)
	cancel()
	follower.Close()

	first.nc.Close() // as good as dead
	second := w.gateway()
	close(w.gate)
	r := w.until(second, "a", id, "completed")
	require.True(t, strings.HasPrefix(r.Output[0].Content[0].Text, "begun "), "what its readers have seen is a part of the answer")
	require.NotNil(t, r.Completed)
	_, text := w.answer(second, "a", `"input":"two","previous_response_id":"`+id+`"`)
	require.Contains(t, text, "user:wait|assistant:begun ")
}

func TestAResponseInTheBackgroundIsCancelled(t *testing.T) {
	w := newWorld(t)
	g, other := w.gateway(), w.gateway()
	id := w.background(g, "a", `"input":"wait"`)
	require.Eventually(t, func() bool { return w.ran.Load() == 1 }, patience, time.Millisecond)
	body, err := other.CancelResponse(w.as("a"), id)
	require.NoError(t, err)
	require.Contains(t, string(body), `"status":"cancelled"`)
	w.engine.WaitIdle() // it has stopped
	require.Nil(t, w.until(g, "a", id, "cancelled").Completed)
	require.Eventually(t, func() bool {
		info, err := g.opts.Work.Info(t.Context())
		return err == nil && info.State.Msgs == 0
	}, patience, 20*time.Millisecond)
	require.Equal(t, "cancelled", w.until(g, "a", id, "cancelled").Status, "and it stays so")
	_, err = g.CancelResponse(w.as("a"), id)
	require.NoError(t, err, "again")
}

func TestAResponseInTheBackgroundThatFailsSaysWhy(t *testing.T) {
	w := newWorld(t)
	w.engine.Refuse = func(*api.Request) error { return api.TooLong("input", "too long") }
	g := w.gateway()
	r := w.until(g, "a", w.background(g, "a", `"input":"x"`), "failed")
	require.Equal(t, "context_length_exceeded", r.Error.Code)
}

func TestTheStreamOfAResponseInTheBackgroundIsItsAnswer(t *testing.T) {
	w := newWorld(t)
	g := w.gateway()
	c := w.decode(`"input":"x","background":true,"stream":true`)
	a, err := g.Run(w.as("a"), c)
	require.NoError(t, err)
	r, err := call.Collect(w.as("a"), c, a.Events(w.as("a")))
	require.NoError(t, err)
	require.Equal(t, "user:x", r.Choices[0].Text)
	require.NotZero(t, r.Ended)
	stored := w.until(g, "a", responses.IDOf(c), "completed")
	require.Equal(t, "user:x", stored.Output[0].Content[0].Text)
	require.Equal(t, r.Ended, *stored.Completed, "the time of the log, whoever reads it")
}

func TestAFullTenantIsRefusedAndOthersAreNot(t *testing.T) {
	w := newWorld(t)
	g := w.gateway()
	large, err := json.Marshal(strings.Repeat("x", 3<<20))
	require.NoError(t, err)
	var refused error
	for range 10 {
		c := w.decode(`"input":` + string(large))
		a, err := g.Run(w.as("a"), c)
		if refused = err; err != nil {
			break
		}
		_, err = call.Collect(t.Context(), c, a.Events(t.Context()))
		require.NoError(t, err)
		a.Close()
	}
	var e *api.Error
	require.ErrorAs(t, refused, &e)
	require.Equal(t, "responses_full", e.Reason)
	w.answer(g, "b", `"input":"x"`)
	w.answer(g, "a", `"input":"x","store":false`)
}

// TestATenantsShareIsTakenBeforeItsCallsRun begins more responses than fit, all at once. Those above the share are refused before the
// engine sees them.
func TestATenantsShareIsTakenBeforeItsCallsRun(t *testing.T) {
	w := newWorld(t)
	g := w.gateway()
	large, err := json.Marshal([]map[string]string{{"role": "user", "content": strings.Repeat("x", 1<<20)},
		{"role": "user", "content": "wait"}})
	require.NoError(t, err)
	var running []call.Answer
	var refused error
	for range 100 {
		a, err := g.Run(w.as("a"), w.decode(`"input":`+string(large)))
		if refused = err; err != nil {
			break
		}
		running = append(running, a)
	}
	require.Equal(t, "responses_full", api.AsError(refused).Reason)
	require.Less(t, len(running), 8) // two tenants have 8 MiB each
	require.Eventually(t, func() bool { return w.ran.Load() == int64(len(running)) }, patience, time.Millisecond)
	w.answer(g, "b", `"input":"x"`)
	for _, a := range running {
		require.NoError(t, a.Cancel(t.Context()))
		a.Close()
	}
	w.answer(g, "a", `"input":"x"`)
}

// TestFollowersOfAQueuedResponseDoNotReadItAgain waits longer than a poll took, with 20 followers, and then runs the response.
func TestFollowersOfAQueuedResponseDoNotReadItAgain(t *testing.T) {
	w := newWorld(t)
	w.busy.Store(true)
	g := w.gateway()
	id := w.background(g, "a", `"input":"x"`)
	const followers = 20
	before := w.reads.Load()
	texts := make(chan string, followers)
	for range followers {
		a, err := g.Follow(w.as("a"), id)
		require.NoError(t, err)
		go func() {
			defer a.Close()
			text := ""
			for ev := range call.All(w.as("a"), a.Events(w.as("a"))) {
				text += ev.Text
			}
			texts <- text
		}()
	}
	time.AfterFunc(500*time.Millisecond, func() { w.busy.Store(false) })
	for range followers {
		require.Equal(t, "user:x", <-texts)
	}
	require.LessOrEqual(t, w.reads.Load()-before, int64(followers+5), "each reads it once, and so do those who run it")
}
