package node

import (
	"context"
	"testing"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/actors/msg"
	"github.com/millrace/millrace/api"
)

// probe is an actor that hands over what it gets.
func probe(p *Node) (*actor.PID, <-chan any) {
	got := make(chan any, 100)
	pid := p.system.Root.Spawn(actor.PropsFromFunc(func(ctx actor.Context) {
		switch m := ctx.Message().(type) {
		case *msg.Tokenized, *msg.Text, *msg.Lost, *msg.Found:
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
func requireServes(t *testing.T, p *Node, d *testDevice) {
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
		p.system.Root.Send(p.tokenizers.Next(), &msg.Tokenize{Reply: reply, Input: nil})
		require.ErrorContains(t, receive[*msg.Tokenized](t, got).Err, "tokenize stage failed")
	}
	requireServes(t, p, d)
}

func TestARequestActorThatPanicsTellsItsClientAndFreesItsSequences(t *testing.T) {
	d := newTestDevice(100)
	d.gate = make(chan struct{}, 1)
	p := start(t, testConfig(t, d))
	first, err := p.Submit(context.Background(), tokensRequest("first", []int32{1}, 1)) // with the guardian of all requests
	require.NoError(t, err)
	d.gate <- struct{}{}
	_, _, err = read(first)
	require.NoError(t, err)
	require.Eventually(t, func() bool { return p.Running() == 0 }, patience, time.Millisecond)
	before := p.processes()
	s, err := p.Submit(context.Background(), tokensRequest("r", []int32{1}, 1000))
	require.NoError(t, err)
	d.gate <- struct{}{}
	_, err = s.Next(context.Background())
	require.NoError(t, err)
	var pid *actor.PID
	for id := range p.processes() {
		if !before[id] {
			pid = actor.NewPID(p.name, id)
		}
	}
	p.system.Root.Send(pid, (*msg.Text)(nil))
	_, last, err := read(s)
	require.NoError(t, err)
	require.ErrorContains(t, last.Err, "request stage failed")
	close(d.gate)
	requireClean(t, p, d)
	requireServes(t, p, d)
}
