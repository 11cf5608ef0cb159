package actors

import (
	"context"
	"testing"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/millrace/millrace/actors/msg"
	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/cluster/route"
)

// probe is an actor that hands over what it gets.
func probe(p *Pipeline) (*actor.PID, <-chan any) {
	got := make(chan any, 100)
	pid := p.system.Root.Spawn(actor.PropsFromFunc(func(ctx actor.Context) {
		switch m := ctx.Message().(type) {
		case *msg.Tokenized, *msg.Text, *msg.Lost:
			got <- m
		}
	}))
	return pid, got
}

func receive[T any](t *testing.T, from <-chan any) T {
	t.Helper()
	select {
	case m := <-from:
		v, ok := m.(T)
		require.True(t, ok, "found a %T", m)
		return v
	case <-time.After(patience):
		t.Fatal("no message")
	}
	panic("unreachable")
}

// requireServes checks that requests still get their answers, from every actor
// of the pools.
func requireServes(t *testing.T, p *Pipeline, d *testDevice) {
	t.Helper()
	for _, id := range []string{"a", "b", "c", "d"} {
		s, err := p.Submit(context.Background(), tokensRequest(id, []int32{1, 2}, 5))
		require.NoError(t, err)
		tokens, last, err := read(s)
		require.NoError(t, err)
		require.Equal(t, api.FinishLength, last.Finish)
		require.Equal(t, expected(d, []int32{1, 2}, 5), tokens)
	}
}

func TestATokenizerThatPanicsAnswersAndServesOn(t *testing.T) {
	d := newTestDevice(100)
	p := start(t, testConfig(t, d))
	reply, got := probe(p)
	for range 4 {
		p.system.Root.Send(p.placeTokenizer("m", route.Bond{}), &msg.Tokenize{Reply: reply, Input: nil})
		require.ErrorContains(t, receive[*msg.Tokenized](t, got).Err, "tokenize stage failed")
	}
	requireServes(t, p, d)
}

func TestADetokenizerThatPanicsAnswersEverySequenceOfItsMessageAndServesOn(t *testing.T) {
	d := newTestDevice(100)
	p := start(t, testConfig(t, d))
	reply, got := probe(p)
	broken := func() *openText { return &openText{reply: reply, compute: p.compute, span: noop.Span{}} } // without a stream
	a := &detokActor{p: p, tok: p.cfg.Tokenizer, open: map[msg.SeqID]*openText{1 << 40: broken(), 1<<40 + 2: broken()}}
	pid := p.system.Root.Spawn(actor.PropsFromProducer(func() actor.Actor { return a }))
	p.system.Root.Send(pid, &msg.OpenText{Seq: 1<<40 + 1, Reply: reply, Compute: p.compute})
	p.system.Root.Send(pid, &msg.Tokens{Tokens: []msg.Token{
		{Seq: 1 << 40, ID: 300}, {Seq: 1<<40 + 1, ID: 300}, {Seq: 1<<40 + 2, ID: 300},
	}})
	ended := map[msg.SeqID]api.Finish{}
	for range 3 {
		m := receive[*msg.Text](t, got)
		ended[m.Seq] = m.Finish
	}
	require.Equal(t, map[msg.SeqID]api.Finish{1 << 40: api.FinishError, 1<<40 + 1: api.FinishNone, 1<<40 + 2: api.FinishError}, ended)
	p.system.Root.Send(pid, &msg.Tokens{Tokens: []msg.Token{{Seq: 1<<40 + 1, ID: 301, Index: 1, Finish: api.FinishLength}}})
	require.Equal(t, api.FinishLength, receive[*msg.Text](t, got).Finish, "the sequence that was whole goes on after the restart")
	requireServes(t, p, d)
}

func TestADetokenizerTakesTheTokenThatIsNextAndTellsOfAGap(t *testing.T) {
	p := start(t, testConfig(t, newTestDevice(100)))
	reply, got := probe(p)
	a := &detokActor{p: p, tok: p.cfg.Tokenizer, open: map[msg.SeqID]*openText{}}
	pid := p.system.Root.Spawn(actor.PropsFromProducer(func() actor.Actor { return a }))
	p.system.Root.Send(pid, &msg.OpenText{Seq: 1, Reply: reply, Compute: p.compute, History: []int32{300, 301}})
	p.system.Root.Send(pid, &msg.Tokens{Tokens: []msg.Token{
		{Seq: 1, ID: 304, Index: 4}, {Seq: 1, ID: 302, Index: 2}, {Seq: 1, ID: 302, Index: 2}, {Seq: 1, ID: 303, Index: 3, Finish: api.FinishLength},
	}})
	require.Equal(t, &msg.Text{Seq: 1, Token: 304, Index: 4, Gap: true}, receive[*msg.Text](t, got))
	for _, id := range []int32{302, 303} {
		m := receive[*msg.Text](t, got)
		require.Equal(t, id, m.Token)
		require.NotEmpty(t, m.Text)
	}
	require.Empty(t, got)
}

func TestARequestActorThatPanicsTellsItsClientAndFreesItsSequences(t *testing.T) {
	d := newTestDevice(100)
	d.gate = make(chan struct{}, 1)
	p := start(t, testConfig(t, d))
	s, err := p.Submit(context.Background(), tokensRequest("r", []int32{1}, 1000))
	require.NoError(t, err)
	d.gate <- struct{}{}
	_, err = s.Next(context.Background())
	require.NoError(t, err)
	p.mu.Lock()
	pid := p.requests[(&api.Request{ID: "r"}).Key()]
	p.mu.Unlock()
	p.system.Root.Send(pid, (*msg.Text)(nil))
	_, last, err := read(s)
	require.NoError(t, err)
	require.ErrorContains(t, last.Err, "request stage failed")
	close(d.gate)
	requireClean(t, p, d)
	requireServes(t, p, d)
}
