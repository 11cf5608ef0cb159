package worker

import (
	"bytes"
	"testing"

	"github.com/asynkron/protoactor-go/actor"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/actors/msg"
	"github.com/millrace/millrace/metrics"
)

// newIdleProcess is a loop that does not run, whose inbox gets messages at its address. The KV manager gets those of imports.
func newIdleProcess(t *testing.T, log *bytes.Buffer) (l *loop, imports <-chan *msg.Import) {
	t.Helper()
	system := actor.NewActorSystem()
	t.Cleanup(system.Shutdown)
	kv := make(chan *msg.Import, 8)
	l = newIdleLoop(t, Config{
		Node: "here", Root: system.Root, Stage: metrics.New(metrics.Build{}).Stage("compute"), Log: zerolog.New(log),
		KV: system.Root.Spawn(actor.PropsFromFunc(func(ctx actor.Context) {
			if m, ok := ctx.Message().(*msg.Import); ok {
				kv <- m
			}
		})),
	})
	var added bool
	l.self, added = system.ProcessRegistry.Add(l.inbox, msg.ComputeActor)
	require.True(t, added)
	return l, kv
}

// TestMessagesToASequenceWaitForItsKeysAndValues: the loop gets a sequence before what is said of it, and others meanwhile.
func TestMessagesToASequenceWaitForItsKeysAndValues(t *testing.T) {
	l, imports := newIdleProcess(t, new(bytes.Buffer))
	watch := actor.NewPID("gateway", "watch")
	sequence := func(seq msg.SeqID) *msg.Generate {
		return &msg.Generate{Seq: seq, Choices: []msg.SeqID{seq}, Prompt: []int32{1}, MaxTokens: 9, Watch: watch}
	}
	moved, other := sequence(7), sequence(8)
	moved.Source = &msg.Source{}
	cancel := &msg.Cancel{Seq: 7}
	for _, m := range []any{moved, cancel, other, &msg.Cancel{Seq: 7, Owner: "another gateway"}} {
		l.Root.Send(l.self, m)
	}
	require.Equal(t, []any{other}, l.inbox.drain(nil))
	require.Equal(t, 2, l.inFlight.len(), "reports have it from the beginning")
	require.Same(t, moved, (<-imports).Generate)
	l.Root.Send(l.self, &msg.Imported{Generate: moved})
	require.Equal(t, []any{moved, cancel}, l.inbox.drain(nil))
	l.Root.Send(l.self, cancel)
	require.Equal(t, []any{cancel}, l.inbox.drain(nil))
}

// TestAPanicAtAMessageIsNotItsSenders: the worker takes the next message.
func TestAPanicAtAMessageIsNotItsSenders(t *testing.T) {
	var log bytes.Buffer
	l, _ := newIdleProcess(t, &log)
	require.NotPanics(t, func() { l.Root.Send(l.self, (*msg.Redirect)(nil)) })
	require.Contains(t, log.String(), "an actor failed")
	l.Root.RequestWithCustomSender(l.self, &msg.Cancel{Seq: 7}, actor.NewPID("gateway", "request")) // in an envelope
	require.Len(t, l.inbox.drain(nil), 1)
}

func TestAProcessHasOneWorker(t *testing.T) {
	l, _ := newIdleProcess(t, new(bytes.Buffer))
	_, err := New(l.Config)
	require.ErrorContains(t, err, "compute")
}
