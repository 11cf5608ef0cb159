package calls_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/apitest"
	"github.com/millrace/millrace/api/call"
	"github.com/millrace/millrace/api/openai"
	"github.com/millrace/millrace/durable/calls"
	"github.com/millrace/millrace/durable/log"
	"github.com/millrace/millrace/e2e/faultproxy"
	"github.com/millrace/millrace/e2e/natstest"
	"github.com/millrace/millrace/metrics/metricstest"
)

const wait = 20 * time.Second // longest wait for an event that must happen

func natsServer(t testing.TB) *server.Server {
	t.Helper()
	return natstest.Start(t, &server.Options{JetStream: true})
}

// gateway is one process with its own connection.
type gateway struct {
	*calls.Calls
	nc *nats.Conn
}

func newGateway(t testing.TB, url string, e api.Engine, opts calls.Options) gateway {
	t.Helper()
	nc, err := nats.Connect(url, nats.MaxReconnects(-1), nats.ReconnectWait(10*time.Millisecond))
	require.NoError(t, err)
	if opts.Watch == 0 {
		opts.Watch = 20 * time.Millisecond
	}
	if opts.Answer == 0 {
		opts.Answer = 5 * time.Second
	}
	if opts.Timeout == 0 {
		opts.Timeout = 5 * time.Second
	}
	c, err := calls.New(nc, call.NewDirect(e), opts)
	require.NoError(t, err)
	t.Cleanup(func() { c.Close(); nc.Close() })
	return gateway{c, nc}
}

// kill closes the connection of a gateway, like the death of its process.
func (g gateway) kill() { g.nc.Close() }

func (g gateway) count(t testing.TB, name string) float64 {
	t.Helper()
	return metricstest.Sum(t, g.Calls, "millrace_resume_"+name)
}

const body = `{"prompt":"one","max_tokens":40,"stream":true,"stream_resume":true,"return_token_ids":true`

func decode(t testing.TB, e api.Engine, text string) *call.Call {
	t.Helper()
	decoded, err := openai.DecodeCompletion([]byte(text), e.Models(), time.Now())
	require.NoError(t, err)
	return decoded
}

// begin starts a call at a gateway.
func begin(t testing.TB, g gateway, e api.Engine, text string) call.Answer {
	t.Helper()
	r, err := g.Run(t.Context(), decode(t, e, text))
	require.NoError(t, err)
	t.Cleanup(r.Close)
	return r
}

func attach(t testing.TB, g gateway, id string) call.Answer {
	t.Helper()
	r, err := g.Attach(t.Context(), id)
	require.NoError(t, err)
	t.Cleanup(r.Close)
	return r
}

// view has the text that a client reads of a call.
type view struct {
	t      testing.TB
	call   *call.Call
	chunks *openai.Chunks
	events call.EventStream
	ctx    context.Context //nolint:containedctx // bounds the wait for each event
	seq    uint64
	text   strings.Builder
	done   bool
}

func see(t testing.TB, r call.Answer) *view {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), wait)
	t.Cleanup(cancel)
	return &view{t: t, call: r.Call(), chunks: openai.NewChunks(r.Call(), "fp"), events: r.Events(ctx), ctx: ctx}
}

// until reads until n events have arrived. 0 reads to the end.
func (v *view) until(n uint64) string {
	v.t.Helper()
	for !v.done && (n == 0 || v.seq < n) {
		ev, err := call.Next(v.ctx, v.events)
		require.NoError(v.t, err, "the events end after %d", v.seq)
		require.Equal(v.t, v.seq+1, ev.Seq)
		v.seq, v.done = ev.Seq, ev.Done
		if e := api.Failure(ev); e != nil {
			fmt.Fprintf(&v.text, "error %s: %s", e.Reason, e.Message)
			continue
		}
		for _, chunk := range v.chunks.Encode(ev) {
			v.text.Write(chunk)
			v.text.WriteByte('\n')
		}
	}
	return v.text.String()
}

// gather returns the whole answer of a gateway, or its error. It can be called outside of the test's
// goroutine.
func gather(ctx context.Context, g gateway, id string) string {
	r, err := g.Attach(ctx, id)
	if err != nil {
		return err.Error()
	}
	defer r.Close()
	var text strings.Builder
	chunks := openai.NewChunks(r.Call(), "fp")
	for ev := range call.All(ctx, r.Events(ctx)) {
		if e := api.Failure(ev); e != nil {
			return e.Message
		}
		for _, chunk := range chunks.Encode(ev) {
			text.Write(append(chunk, '\n'))
		}
	}
	return text.String()
}

// undisturbed returns the answer to a call without a log.
func undisturbed(t testing.TB, c *call.Call) string {
	t.Helper()
	events, err := call.NewDirect(deterministic(newGate(1<<30))).Continue(t.Context(), c, c.Progress(nil), 0)
	require.NoError(t, err)
	v := &view{t: t, call: c, chunks: openai.NewChunks(c, "fp"), events: events, ctx: t.Context()}
	return v.until(0)
}

// requireSame compares answers choice by choice. The order of chunks of different choices is not
// defined.
func requireSame(t testing.TB, want, got string) {
	t.Helper()
	sorted := func(text string) string {
		lines := strings.Split(text, "\n")
		slices.SortStableFunc(lines, func(a, b string) int {
			_, a, _ = strings.Cut(a, `"index":`)
			_, b, _ = strings.Cut(b, `"index":`)
			return strings.Compare(a[:min(1, len(a))], b[:min(1, len(b))])
		})
		return strings.Join(lines, "\n")
	}
	require.Equal(t, sorted(want), sorted(got))
}

var kinds = map[string]string{
	"one choice":      body + `}`,
	"three choices":   body + `,"n":3}`,
	"several prompts": `{"prompt":["one","two","three"],"max_tokens":40,"stream":true,"stream_resume":true,"n":2,"seed":5,"stream_options":{"include_usage":true}}`,
	"logprobs":        body + `,"logprobs":3}`,
	"echo":            body + `,"echo":true,"n":2}`,
	"beam search":     body + `,"use_beam_search":true,"n":3}`,
	"not a stream":    `{"prompt":"one","max_tokens":40,"stream_resume":true}`,
}

func TestAKilledGatewaysCallGoesOnAtAnother(t *testing.T) {
	t.Parallel() // it waits most of its time
	for name, text := range kinds {
		for _, at := range []int{0, 1, 17, 38} {
			t.Run(fmt.Sprintf("%s at %d", name, at), func(t *testing.T) {
				g := newGate(at)
				e := deterministic(g)
				url := natsServer(t).ClientURL()
				a, b := newGateway(t, url, e, calls.Options{}), newGateway(t, url, e, calls.Options{})
				first := begin(t, a, e, text)
				seen := see(t, first)
				before := ""
				if at > 0 {
					before = seen.until(uint64(at))
				}
				a.kill()
				g.open(1 << 30)
				second := attach(t, b, first.Call().ID)
				after := see(t, second).until(0)
				requireSame(t, undisturbed(t, first.Call()), after)
				require.True(t, strings.HasPrefix(after, before))
				if at > 0 && name != "beam search" {
					require.Equal(t, 1.0, b.count(t, "takeovers_total"))
				}
			})
		}
	}
}

func TestAReaderElsewhereFollowsALivingGateway(t *testing.T) {
	t.Parallel() // it waits most of its time
	g := newGate(10)
	e := deterministic(g)
	url := natsServer(t).ClientURL()
	a, b := newGateway(t, url, e, calls.Options{}), newGateway(t, url, e, calls.Options{})
	first := begin(t, a, e, body+`}`)
	here, there := see(t, first), see(t, attach(t, b, first.Call().ID))
	here.until(10)
	there.until(10)
	g.open(1 << 30)
	require.Equal(t, here.until(0), there.until(0))
	require.Zero(t, b.count(t, "takeovers_total"))
	require.Len(t, e.Requests(), 1)
}

func TestTheSameRequestTwiceRunsOnce(t *testing.T) {
	t.Parallel() // it waits most of its time
	e := deterministic(newGate(1 << 30))
	url := natsServer(t).ClientURL()
	a, b := newGateway(t, url, e, calls.Options{}), newGateway(t, url, e, calls.Options{})
	text := body + `,"request_id":"mine-1"}`
	want := undisturbed(t, decode(t, e, text))
	for _, g := range []gateway{a, a, b, b} {
		r := begin(t, g, e, text)
		require.Equal(t, "cmpl-mine-1", r.Call().ID)
		got := see(t, r).until(0)
		require.Len(t, got, len(want))
	}
	require.Len(t, e.Requests(), 1)

	other := body + `,"request_id":"mine-1","n":2}`
	_, err := b.Run(t.Context(), decode(t, e, other))
	require.Equal(t, api.Code(409), api.AsError(err).Code)
}

func TestOneOfTwoTakesOverAndBothReadersGetEverything(t *testing.T) {
	t.Parallel() // it waits most of its time
	for range 5 {
		g := newGate(10)
		e := deterministic(g)
		url := natsServer(t).ClientURL()
		a := newGateway(t, url, e, calls.Options{})
		b, c := newGateway(t, url, e, calls.Options{}), newGateway(t, url, e, calls.Options{})
		first := begin(t, a, e, body+`,"n":2}`)
		see(t, first).until(20)
		a.kill()
		results := make(chan string)
		for _, g := range []gateway{b, c} {
			go func() { results <- gather(t.Context(), g, first.Call().ID) }()
		}
		require.Eventually(t, func() bool { return b.count(t, "takeovers_total")+c.count(t, "takeovers_total") == 1 }, wait,
			time.Millisecond)
		g.open(1 << 30)
		want := undisturbed(t, first.Call())
		require.Equal(t, want, <-results)
		require.Equal(t, want, <-results)
		require.Equal(t, 1.0, b.count(t, "takeovers_total")+c.count(t, "takeovers_total"))
	}
}

func TestAnOwnerThatComesBackIsFencedAndItsReaderLosesNothing(t *testing.T) {
	t.Parallel() // it waits most of its time
	g := newGate(10)
	e := deterministic(g)
	hub := natsServer(t)
	url := hub.ClientURL()
	wall, err := faultproxy.NewProxy(t.Context(), hub.Addr().String())
	require.NoError(t, err)
	t.Cleanup(func() { wall.Close() })
	a := newGateway(t, "nats://"+wall.Addr(), e, calls.Options{})
	b := newGateway(t, url, e, calls.Options{Answer: 100 * time.Millisecond})
	first := begin(t, a, e, body+`}`)
	zombie := see(t, first)
	zombie.until(10)
	wall.Blackhole() // as if the process was stopped with SIGSTOP
	second := see(t, attach(t, b, first.Call().ID))
	second.until(10)
	require.Eventually(t, func() bool { return b.count(t, "takeovers_total") == 1 }, wait, time.Millisecond)
	wall.Heal()
	g.open(1 << 30)
	want := undisturbed(t, first.Call())
	require.Equal(t, want, second.until(0))
	require.Equal(t, want, zombie.until(0), "the zombie's own reader reads the log")
	require.Equal(t, 1.0, a.count(t, "fenced_total"))
	require.Equal(t, 1.0, b.count(t, "takeovers_total"))
}

func TestALogIsRefreshedBeforeItExpires(t *testing.T) {
	t.Parallel() // it waits most of its time
	g := newGate(10)
	e := deterministic(g)
	url := natsServer(t).ClientURL()
	a := newGateway(t, url, e, calls.Options{Age: 200 * time.Millisecond, Keep: time.Millisecond})
	first := begin(t, a, e, body+`}`)
	see(t, first).until(10)
	require.Eventually(t, func() bool { return a.count(t, "rewritten_total") >= 4 }, wait, time.Millisecond)
	b := newGateway(t, url, e, calls.Options{Age: 200 * time.Millisecond})
	a.kill()
	there := see(t, attach(t, b, first.Call().ID))
	g.open(1 << 30)
	require.Equal(t, undisturbed(t, first.Call()), there.until(0))
}

// TestTheLogOfAnEndedCallGoesAndThatOfARunningOneStays checks that JetStream holds the logs of running
// calls, and those of ended calls for a limited time.
func TestTheLogOfAnEndedCallGoesAndThatOfARunningOneStays(t *testing.T) {
	t.Parallel() // it waits most of its time
	g := newGate(10)
	e := deterministic(g)
	url := natsServer(t).ClientURL()
	const keep = 200 * time.Millisecond
	a := newGateway(t, url, e, calls.Options{Keep: keep})
	b := newGateway(t, url, e, calls.Options{Keep: keep, Rejoin: 100 * time.Millisecond})
	running := begin(t, a, e, body+`}`)
	here := see(t, running)
	here.until(10)
	began := time.Now()
	ended := begin(t, a, e, `{"prompt":"short","max_tokens":5,"stream":true,"stream_resume":true}`)
	want := see(t, ended).until(0)
	again, err := b.Attach(t.Context(), ended.Call().ID)
	if time.Since(began) < keep { // on a slow machine the log may be removed already
		require.NoError(t, err)
		require.Equal(t, want, see(t, again).until(0))
		again.Close()
	}
	messages := func(id string) uint64 {
		js, err := jetstream.New(a.nc)
		require.NoError(t, err)
		s, err := js.Stream(t.Context(), log.Stream)
		require.NoError(t, err)
		subject := log.Subject + tenantToken("") + "." + id
		info, err := s.Info(t.Context(), jetstream.WithSubjectFilter(subject))
		require.NoError(t, err)
		return info.State.Subjects[subject]
	}
	require.Eventually(t, func() bool { return messages(ended.Call().ID) == 0 }, wait, time.Millisecond)
	require.NotZero(t, messages(running.Call().ID))
	_, err = b.Attach(t.Context(), ended.Call().ID)
	require.Equal(t, api.CodeNotFound, api.AsError(err).Code)
	a.kill()
	there := see(t, attach(t, b, running.Call().ID))
	g.open(1 << 30)
	require.Equal(t, undisturbed(t, running.Call()), there.until(0))
}

func TestACallWithoutReadersIsCancelledAfterTheWindow(t *testing.T) {
	t.Parallel() // it waits most of its time
	e := deterministic(newGate(5))
	url := natsServer(t).ClientURL()
	a := newGateway(t, url, e, calls.Options{Window: 100 * time.Millisecond})
	b := newGateway(t, url, e, calls.Options{})
	r := begin(t, a, e, body+`}`)
	see(t, r).until(5)
	there := attach(t, b, r.Call().ID)
	r.Close()
	require.Never(t, func() bool { return a.count(t, "abandoned_total") > 0 }, 400*time.Millisecond, 10*time.Millisecond,
		"a reader at another gateway keeps it")
	there.Close()
	require.Eventually(t, func() bool { return a.count(t, "abandoned_total") == 1 }, wait, time.Millisecond)
	e.WaitIdle()
	require.Contains(t, see(t, attach(t, b, r.Call().ID)).until(0), "the answer had no reader")
	require.Eventually(t, func() bool { return a.count(t, "streams")+b.count(t, "streams") == 0 }, wait, time.Millisecond)
}

func TestCancelReachesTheOwnerOrItsSuccessor(t *testing.T) {
	t.Parallel() // it waits most of its time
	for _, dead := range []bool{false, true} {
		e := deterministic(newGate(5))
		url := natsServer(t).ClientURL()
		a, b := newGateway(t, url, e, calls.Options{}), newGateway(t, url, e, calls.Options{})
		r := begin(t, a, e, body+`}`)
		see(t, r).until(5)
		if dead {
			a.kill()
		}
		require.NoError(t, b.Cancel(t.Context(), r.Call().ID))
		require.Contains(t, see(t, attach(t, b, r.Call().ID)).until(0), "error cancelled: cancelled by the client")
		require.NoError(t, b.Cancel(t.Context(), r.Call().ID), "again changes nothing")
	}
}

func TestARefusalLeavesNoLog(t *testing.T) {
	t.Parallel() // it waits most of its time
	e := deterministic(newGate(1 << 30))
	e.Refuse = func(*api.Request) error { return &api.Error{Code: api.CodeOverloaded, Message: "full"} }
	a := newGateway(t, natsServer(t).ClientURL(), e, calls.Options{})
	text := body + `,"request_id":"mine"}`
	_, err := a.Run(t.Context(), decode(t, e, text))
	require.Equal(t, api.CodeOverloaded, api.AsError(err).Code)
	e.Refuse = nil
	require.Equal(t, undisturbed(t, decode(t, e, text)), see(t, begin(t, a, e, text)).until(0))
}

func TestARefusalWhileTakingOverIsTriedAgain(t *testing.T) {
	t.Parallel() // it waits most of its time
	g := newGate(5)
	e := deterministic(g)
	url := natsServer(t).ClientURL()
	full := deterministic(g)
	refusals := 0
	full.Refuse = func(*api.Request) error {
		if refusals++; refusals < 3 {
			return &api.Error{Code: api.CodeOverloaded, Message: "full"}
		}
		return nil
	}
	a, b := newGateway(t, url, e, calls.Options{}), newGateway(t, url, full, calls.Options{})
	r := begin(t, a, e, body+`}`)
	see(t, r).until(5)
	a.kill()
	g.open(1 << 30)
	require.Equal(t, undisturbed(t, r.Call()), see(t, attach(t, b, r.Call().ID)).until(0))
	require.Equal(t, 3, refusals)
}

func TestAGatewayThatStopsHandsItsCallsOver(t *testing.T) {
	t.Parallel() // it waits most of its time
	g := newGate(5)
	e := &contexts{Engine: deterministic(g)}
	url := natsServer(t).ClientURL()
	a := newGateway(t, url, e, calls.Options{})
	r := begin(t, a, e, body+`}`)
	here := see(t, r)
	here.until(5)
	a.Drain(t.Context())
	require.Equal(t, 1.0, a.count(t, "streams"), "without another gateway the call keeps running")
	b := newGateway(t, url, e, calls.Options{})
	a.Drain(t.Context())
	require.Contains(t, here.until(0), "error moved")
	_, err := a.Attach(t.Context(), r.Call().ID)
	require.Equal(t, "moved", api.AsError(err).Reason)
	g.open(1 << 30)
	require.Equal(t, undisturbed(t, r.Call()), see(t, attach(t, b, r.Call().ID)).until(0))
	require.Zero(t, a.count(t, "fenced_total"))
	require.ErrorIs(t, context.Cause(e.submitted[0]), api.ErrTakenOver, "running requests are left to the other gateway")
	first, second := e.Requests()[0], e.Requests()[1]
	require.NotEqual(t, first.ID, second.ID)
	require.Equal(t, first.Origin(), second.Origin(), "the gateway finds the sequences by their origin")
}

// contexts is an engine that records the contexts of its requests.
type contexts struct {
	*apitest.Engine

	submitted []context.Context
}

func (e *contexts) Submit(ctx context.Context, r *api.Request) (api.Stream, error) {
	e.submitted = append(e.submitted, ctx)
	return e.Engine.Submit(ctx, r)
}

func TestACallOfManyMessagesSurvives(t *testing.T) {
	t.Parallel() // it waits most of its time
	g := newGate(5)
	e := deterministic(g)
	url := natsServer(t).ClientURL()
	a, b := newGateway(t, url, e, calls.Options{}), newGateway(t, url, e, calls.Options{})
	long := fmt.Sprintf(`{"prompt":%q,"max_tokens":20,"stream":true,"stream_resume":true,"echo":true}`, strings.Repeat("abcdefg ", 400_000))
	r := begin(t, a, e, long)
	see(t, r).until(5)
	a.kill()
	g.open(1 << 30)
	require.Equal(t, undisturbed(t, r.Call()), see(t, attach(t, b, r.Call().ID)).until(0))
}

func TestManyCallsThroughTakeovers(t *testing.T) {
	t.Parallel() // it waits most of its time
	g := newGate(8)
	e := deterministic(g)
	url := natsServer(t).ClientURL()
	a, b := newGateway(t, url, e, calls.Options{}), newGateway(t, url, e, calls.Options{})
	const streams = 50
	results := make(chan string, streams)
	var started []call.Answer
	for i := range streams {
		r := begin(t, a, e, fmt.Sprintf(`%s,"seed":%d}`, body, i))
		see(t, r).until(8)
		started = append(started, r)
	}
	a.kill()
	g.open(1 << 30)
	for _, r := range started {
		go func() {
			results <- gather(t.Context(), b, r.Call().ID)
		}()
	}
	var want, got []string
	for _, r := range started {
		want, got = append(want, undisturbed(t, r.Call())), append(got, <-results)
	}
	require.ElementsMatch(t, want, got)
}
