package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/actors/msg"
	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/cluster"
	"github.com/millrace/millrace/cluster/bridge"
)

// kind is a process whose bits and text have the digests.
func kind(numerics, text string, more ...func(*Config)) func(*Config) {
	return func(c *Config) {
		c.Numerics, c.Text = numerics, text
		for _, f := range more {
			f(c)
		}
	}
}

// long is an answer, in tokens, that is not at its end when a test checks.
const long = 500

func soon(c *Config) { c.Cluster.FailoverTimeout = 300 * time.Millisecond }

// front is a gateway with tokenizers and detokenizers of text digest "T".
func front(c *testNodes, more ...func(*Config)) *node {
	return c.start(kind("", "T", more...), cluster.Gateway, cluster.Tokenize, cluster.Detok)
}

// flowing is a request whose first event was read; its worker waits at the gate.
func flowing(t *testing.T, gateway, worker *node, change func(*api.Request)) (s api.Stream, first api.Event) {
	t.Helper()
	r := tokensRequest("r", []int32{3, 7}, long)
	if change != nil {
		change(r)
	}
	s, err := gateway.Submit(t.Context(), r)
	require.NoError(t, err)
	return s, worker.device.until(t, s)
}

// until lets a gated device make steps until a stream has its next event.
func (d *testDevice) until(t *testing.T, s api.Stream) (e api.Event) {
	t.Helper()
	var err error
	there := make(chan struct{})
	go func() {
		defer close(there)
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		e, err = s.Next(ctx)
	}()
	for tick := time.NewTicker(5 * time.Millisecond); ; {
		select {
		case <-tick.C:
			if len(d.gate) == 0 { // else it would run on after the event
				d.gate <- struct{}{}
			}
			continue
		case <-there:
		}
		tick.Stop()
		require.NoError(t, err)
		require.NoError(t, e.Err)
		return e
	}
}

// requireNoEqual reads a stream to its end, which is that of an answer without an equal.
func requireNoEqual(t *testing.T, s api.Stream, words ...string) {
	t.Helper()
	_, last, err := read(s)
	require.NoError(t, err)
	var e *api.Error
	require.ErrorAs(t, last.Err, &e)
	require.Equal(t, "no_equal_worker", e.Reason)
	require.Equal(t, api.CodeUnavailable, e.Code)
	require.Positive(t, e.RetryAfter)
	for _, w := range words {
		require.Contains(t, e.Message, w)
	}
}

func (d *testDevice) begunPrompts() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.prompts
}

func TestAStreamWithoutAnEqualEndsAndIsNeverSpliced(t *testing.T) {
	c := newTestNodes(t)
	gateway := front(c, soon)
	a := c.start(kind("A", "T", gated, func(c *Config) { c.Class = "avx2" }), cluster.Compute)
	gateway.sees(t, 1)
	s, first := flowing(t, gateway, a, nil)
	require.Equal(t, &api.Pin{Numerics: "A", Text: "T", Prompt: api.HashPrompt([]int32{3, 7})}, first.Pin)
	b := c.start(kind("B", "T", func(c *Config) { c.Class = "portable" }), cluster.Compute)
	gateway.sees(t, 2)
	a.kill()
	requireNoEqual(t, s, "expected numerics digest A", "workers: 1 of B (portable)", "send the request again")
	require.Zero(t, b.device.begunPrompts())
}

func TestAStreamGoesOnAtAnEqualWhateverElseIsThere(t *testing.T) {
	c := newTestNodes(t)
	gateway := front(c)
	a := c.start(kind("A", "T", gated), cluster.Compute)
	gateway.sees(t, 1)
	s, first := flowing(t, gateway, a, nil)
	b := c.start(kind("B", "T"), cluster.Compute)
	c.start(kind("B", "T"), cluster.Compute)
	gateway.sees(t, 3)
	a.kill()
	gateway.sees(t, 2)
	again := c.start(kind("A", "T"), cluster.Compute) // it waited for this one
	got, last, err := read(s)
	require.NoError(t, err)
	require.NoError(t, last.Err)
	require.Equal(t, expected(again.device, []int32{3, 7}, long), append(first.Tokens, got...))
	require.Zero(t, b.device.begunPrompts())
}

// counted is the value of a counter of model "m".
func (n *node) counted(t *testing.T, name string) (value int) {
	w := httptest.NewRecorder()
	n.cfg.Metrics.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	_, after, _ := strings.Cut(w.Body.String(), "millrace_"+name+"{model=\"m\"} ")
	_, err := fmt.Sscan(after, &value)
	require.NoError(t, err)
	return value
}

// TestWhatWasNotShownBeginsAgainElsewhere: with the whole answer and its usage of one kind.
func TestWhatWasNotShownBeginsAgainElsewhere(t *testing.T) {
	for name, buffered := range map[string]bool{"read by a collector": true, "not read": false} {
		t.Run(name, func(t *testing.T) {
			c := newTestNodes(t)
			gateway := front(c)
			a := c.start(kind("A", "T", gated), cluster.Compute)
			gateway.sees(t, 1)
			r := tokensRequest("r", []int32{3, 7}, long)
			r.Buffered, r.N = buffered, 2
			s, err := gateway.Submit(t.Context(), r)
			require.NoError(t, err)
			for range 8 {
				a.device.gate <- struct{}{}
			}
			require.Eventually(t, func() bool { return gateway.counted(t, "generation_tokens_total") > 2 }, patience, time.Millisecond)
			if buffered {
				e, err := s.Next(t.Context())
				require.NoError(t, err)
				require.Equal(t, "A", e.Pin.Numerics)
			}
			b := c.start(kind("B", "T"), cluster.Compute)
			gateway.sees(t, 2)
			a.kill()
			require.Eventually(t, func() bool { return b.device.begunPrompts() > 0 }, patience, time.Millisecond)
			requireWhole(t, s, b.device, buffered)
		})
	}
}

// requireWhole reads an answer of two choices that began again at a device of kind "B".
func requireWhole(t *testing.T, s api.Stream, d *testDevice, restarts bool) {
	t.Helper()
	got, pins, restarted := make([][]int32, 2), []string{}, false
	var last api.Event
	for {
		e, err := s.Next(t.Context())
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		if e.Restart {
			got, pins, restarted = make([][]int32, 2), nil, true
		}
		if e.Pin != nil {
			pins = append(pins, e.Pin.Numerics)
		}
		got[e.Choice] = append(got[e.Choice], e.Tokens...)
		last = e
	}
	require.NoError(t, last.Err)
	require.Equal(t, restarts, restarted)
	require.Equal(t, []string{"B"}, pins)
	for i := range got {
		require.Equal(t, expected(d, []int32{3, 7}, long), got[i], "choice %d", i)
	}
	require.Equal(t, &api.Usage{PromptTokens: 2, CompletionTokens: 2 * long}, last.Usage)
}

func TestAnAttemptOfWhichALogHasTokensNeverBeginsAgain(t *testing.T) {
	c := newTestNodes(t)
	gateway := front(c, soon)
	b := c.start(kind("B", "T"), cluster.Compute)
	gateway.sees(t, 1)
	r := tokensRequest("r", []int32{3, 7}, long)
	r.First, r.Buffered = "r.0", true
	r.Takeover = &api.Progress{Pin: api.Pin{Numerics: "A", Text: "T"}, Choices: []api.ChoiceProgress{{Tokens: []int32{5}}}}
	s, err := gateway.Submit(t.Context(), r)
	require.NoError(t, err)
	requireNoEqual(t, s, "expected numerics digest A", "1 of B")
	require.Zero(t, b.device.begunPrompts())

	r.ID, r.Takeover.Pin.Text, r.Takeover.Pin.Numerics = "r.2", "U", "B"
	s, err = gateway.Submit(t.Context(), r)
	require.NoError(t, err)
	requireNoEqual(t, s, "expected text digest U", "processes: 2 of T")
}

// TestADrainingWorkerWithoutAnEqualFinishesItsSequences, and one with an equal hands them over.
func TestADrainingWorkerWithoutAnEqualFinishesItsSequences(t *testing.T) {
	c := newTestNodes(t)
	gateway := front(c)
	a := c.start(kind("A", "T", gated), cluster.Compute)
	b := c.start(kind("B", "T"), cluster.Compute)
	gateway.sees(t, 2)
	var streams []api.Stream
	var firsts []api.Event
	for i := 0; len(streams) < 2; i++ { // both of kind A
		s, err := gateway.Submit(t.Context(), tokensRequest(fmt.Sprint(i), []int32{3, 7}, long))
		require.NoError(t, err)
		e := a.device.until(t, s)
		if e.Pin.Numerics == "A" {
			streams, firsts = append(streams, s), append(firsts, e)
		}
	}
	before := b.device.begunPrompts()
	closed := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		closed <- a.Close(ctx)
	}()
	require.Eventually(t, func() bool {
		return slices.ContainsFunc(gateway.members.Others(), func(m *cluster.Member) bool { return m.Node == a.name && m.Draining })
	}, patience, time.Millisecond)
	a.device.open1()
	for i, s := range streams {
		got, last, err := read(s)
		require.NoError(t, err)
		require.NoError(t, last.Err)
		require.Equal(t, expected(a.device, []int32{3, 7}, long), append(firsts[i].Tokens, got...))
	}
	require.NoError(t, <-closed)
	require.Equal(t, before, b.device.begunPrompts())
	a.once.Do(a.conn.Close)
}

func TestWhatHasNoTokenYetLeavesAWorkerForAnotherKind(t *testing.T) {
	c := newTestNodes(t)
	gateway := front(c)
	a := c.start(kind("A", "T", gated), cluster.Compute)
	gateway.sees(t, 1)
	s, err := gateway.Submit(t.Context(), tokensRequest("r", []int32{3, 7}, 20))
	require.NoError(t, err)
	require.Eventually(t, func() bool { return gateway.gateway.Sequences(a.name) == 1 }, patience, time.Millisecond)
	b := c.start(kind("B", "T"), cluster.Compute)
	gateway.sees(t, 2)
	a.kill()
	got, last, err := read(s)
	require.NoError(t, err)
	require.NoError(t, last.Err)
	require.Equal(t, expected(b.device, []int32{3, 7}, 20), got)
}

func TestReadinessNeedsOneCompleteSetOfEquals(t *testing.T) {
	c := newTestNodes(t)
	gateway := c.start(nil, cluster.Gateway)
	c.start(kind("A", "T"), cluster.Compute)
	c.start(kind("", "U"), cluster.Tokenize)
	c.start(kind("", "T"), cluster.Detok)
	require.Eventually(t, func() bool { return len(gateway.members.Others()) == 3 }, patience, time.Millisecond)
	require.ErrorContains(t, gateway.Ready(), "with a tokenizer and a detokenizer of its text digest: found processes: 2 of T, 1 of U")
	_, err := gateway.Submit(t.Context(), tokensRequest("r", []int32{3}, 1))
	require.ErrorContains(t, err, "of its text digest")
	c.start(kind("", "T"), cluster.Tokenize)
	gateway.sees(t, 4)
}

// TestIdsOfOneTokenizerNeverGoToTheWorkerOfAnother, nor its tokens to another detokenizer.
func TestIdsOfOneTokenizerNeverGoToTheWorkerOfAnother(t *testing.T) {
	c := newTestNodes(t)
	gateway := c.start(nil, cluster.Gateway)
	for _, text := range []string{"T", "U"} {
		c.start(kind("", text), cluster.Tokenize)
		c.start(kind("", text), cluster.Detok)
		c.start(kind("of "+text, text), cluster.Compute)
	}
	gateway.sees(t, 6)
	found := map[api.Pin]int{}
	for i := range 40 {
		r := tokensRequest(fmt.Sprint(i), []int32{3}, 2)
		if i%2 == 0 {
			r.PromptTokens, r.Prompt = nil, "Once"
		}
		s, err := gateway.Submit(t.Context(), r)
		require.NoError(t, err)
		e, err := s.Next(t.Context())
		require.NoError(t, err)
		require.NoError(t, e.Err)
		e.Pin.Prompt = ""
		found[*e.Pin]++
		_, _, err = read(s)
		require.NoError(t, err)
	}
	require.Len(t, found, 2, "both sets are used: %v", found)
	for pin := range found {
		require.Equal(t, "of "+pin.Text, pin.Numerics)
	}
}

// TestARequestBeginsInACompleteSetOnly, although a pair of workers without a tokenizer is there.
func TestARequestBeginsInACompleteSetOnly(t *testing.T) {
	c := newTestNodes(t)
	gateway := front(c, soon)
	whole := c.start(kind("A", "T"), cluster.Compute)
	for range 2 {
		c.start(kind("B", "U"), cluster.Compute)
	}
	c.start(kind("", "U"), cluster.Detok)
	gateway.sees(t, 4)
	for _, r := range []*api.Request{tokensRequest("ids", []int32{3, 7}, 5), tokensRequest("text", nil, 5)} {
		if r.PromptTokens == nil {
			r.Prompt = "Once"
		}
		s, err := gateway.Submit(t.Context(), r)
		require.NoError(t, err)
		_, last, err := read(s)
		require.NoError(t, err)
		require.NoError(t, last.Err)
	}
	require.Equal(t, 2, whole.device.begunPrompts())
}

func TestARequestIdIsItsTenantsOwn(t *testing.T) {
	c := newTestNodes(t)
	gateway := front(c)
	second := front(c)
	a := c.start(kind("A", "T", gated), cluster.Compute)
	gateway.sees(t, 2)
	second.sees(t, 2)
	mine, first := flowing(t, gateway, a, func(r *api.Request) { r.Tenant = "mine" })
	theirs, _ := flowing(t, gateway, a, func(r *api.Request) { r.Tenant = "theirs" })
	_, err := gateway.Submit(t.Context(), func() *api.Request {
		r := tokensRequest("r", []int32{1}, 1)
		r.Tenant = "mine"
		return r
	}())
	require.ErrorContains(t, err, `request id "r" is in use`)
	before := a.running()

	again := tokensRequest("r.1", []int32{3, 7}, long) // another tenant says that it had it
	again.First, again.Tenant = "r", "thief"
	again.Takeover = &api.Progress{Pin: *first.Pin, Choices: []api.ChoiceProgress{{Tokens: first.Tokens}}}
	stolen, err := second.Submit(t.Context(), again)
	require.NoError(t, err)
	require.Eventually(t, func() bool { return len(a.running()) == 3 }, patience, time.Millisecond, "it gets a sequence of its own")
	for _, seq := range before {
		require.NotEqual(t, second.name, a.owner(seq))
	}
	theirs.Close()
	a.device.open1()
	got, last, err := read(mine)
	require.NoError(t, err)
	require.NoError(t, last.Err)
	require.Equal(t, expected(a.device, []int32{3, 7}, long), append(first.Tokens, got...))
	_, last, err = read(stolen)
	require.NoError(t, err)
	require.NoError(t, last.Err)
}

func TestAPromptThatTwoTokenizersDiedOfEndsWithAnError(t *testing.T) {
	c := newTestNodes(t)
	c.dead = 2 * patience // silence, which a busy machine causes too, is not death
	gateway := c.start(nil, cluster.Gateway)
	c.start(nil, cluster.Compute)
	c.start(nil, cluster.Detok)
	names := map[string]*node{}
	for range 3 {
		n := c.start(nil, cluster.Tokenize)
		for _, name := range n.tokenizers.Names() { // it has the prompt, and says nothing
			n.system.Root.Stop(actor.NewPID(n.name, name))
		}
		names[n.name] = n
	}
	prompts := make(chan string, 100) // the nodes that they go to
	_, err := gateway.conn.Subscribe(bridge.Subject("*", msg.Kind(&msg.Tokenize{})),
		func(m *nats.Msg) { prompts <- strings.Split(m.Subject, ".")[2] })
	require.NoError(t, err)
	gateway.sees(t, 5)
	r := tokensRequest("r", nil, 5)
	r.Prompt = "Once"
	s, err := gateway.Submit(t.Context(), r)
	require.NoError(t, err)
	for range 2 {
		var has *node
		require.Eventually(t, func() bool {
			select {
			case node := <-prompts:
				has = names[node]
			default:
			}
			return has != nil
		}, patience, time.Millisecond)
		has.kill()
		delete(names, has.name)
	}
	_, last, err := read(s)
	require.NoError(t, err)
	require.ErrorContains(t, last.Err, "2 tokenizers died while they had the prompt")
}

// TestAPromptThatNoTokenizerGotIsNotLost: two are dead already, and the gateway notices the one after
// the other, with a prompt on its way to each of them.
func TestAPromptThatNoTokenizerGotIsNotLost(t *testing.T) {
	c := newTestNodes(t)
	gateway := c.start(nil, cluster.Gateway)
	c.start(nil, cluster.Compute)
	c.start(nil, cluster.Detok)
	soon := c.start(nil, cluster.Tokenize)
	late := c.start(func(c *Config) { c.Cluster.Beat = 300 * time.Millisecond }, cluster.Tokenize)
	gateway.sees(t, 4)
	late.conn.Close()
	soon.conn.Close()
	var streams []api.Stream
	for i := range 10 {
		r := tokensRequest(fmt.Sprint("r", i), nil, 5)
		r.Prompt = "Once"
		s, err := gateway.Submit(t.Context(), r)
		require.NoError(t, err)
		streams = append(streams, s)
	}
	c.start(nil, cluster.Tokenize)
	for _, s := range streams {
		_, last, err := read(s)
		require.NoError(t, err)
		require.NoError(t, last.Err)
	}
}

func TestATokenizerThatStopsFinishesItsPrompts(t *testing.T) {
	c := newTestNodes(t)
	gateway := c.start(nil, cluster.Gateway)
	tokenize := c.start(nil, cluster.Tokenize)
	require.Eventually(t, func() bool { return len(gateway.members.Others()) == 1 }, patience, time.Millisecond)
	to := tokenize.tokenizers.Next() // a prompt is on its way
	require.False(t, tokenize.idle())
	tokenize.system.Root.Send(to, &msg.Detokenize{Reply: actor.NewPID(tokenize.name, "nobody")})
	require.Eventually(t, tokenize.idle, patience, time.Millisecond)
}

// TestAnAnswerOfWhichOnlyTheEndWasLostEnds: with the text that its detokenizer held back, and for the
// reason that its worker gives.
func TestAnAnswerOfWhichOnlyTheEndWasLostEnds(t *testing.T) {
	p := start(t, testConfig(t, newTestDevice(100)))
	for _, c := range []struct {
		stop   []int32
		finish api.Finish
	}{{nil, api.FinishLength}, {[]int32{301}, api.FinishStop}} {
		r := tokensRequest("r", []int32{1, 2}, 2)
		r.StopTokens = c.stop
		r.Takeover = &api.Progress{Choices: []api.ChoiceProgress{{Tokens: []int32{300, 301}}}}
		s, err := p.Submit(t.Context(), r)
		require.NoError(t, err)
		tokens, last, err := read(s)
		require.NoError(t, err)
		require.Empty(t, tokens, "they are there")
		require.Equal(t, c.finish, last.Finish)
		require.Equal(t, 2, last.Usage.CompletionTokens)
	}
}
