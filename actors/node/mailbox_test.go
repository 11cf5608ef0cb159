package node

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"github.com/stretchr/testify/require"
)

// recorder notes what an actor gets, in its order, and panics at a string.
type recorder struct {
	got  chan any
	gate chan struct{} // nil: open
}

func (r *recorder) Receive(ctx actor.Context) {
	switch m := ctx.Message().(type) {
	case int:
		if r.gate != nil {
			<-r.gate
		}
		r.got <- m
	case string:
		panic(m)
	case *actor.Restarting, *actor.Stopped:
		r.got <- fmt.Sprintf("%T", m)
	}
}

func spawnRecorder(t *testing.T, r *recorder) (*actor.ActorSystem, *actor.PID) {
	t.Helper()
	system := actor.NewActorSystem()
	t.Cleanup(func() { system.Shutdown() })
	return system, system.Root.Spawn(actor.PropsFromProducer(func() actor.Actor { return r }, actor.WithMailbox(newMailbox),
		actor.WithGuardian(actor.NewOneForOneStrategy(10, time.Minute, actor.DefaultDecider))))
}

func TestAMailboxKeepsTheOrderOfEverySender(t *testing.T) {
	const senders, each = 8, 2000
	r := &recorder{got: make(chan any, senders*each)}
	system, pid := spawnRecorder(t, r)
	var wg sync.WaitGroup
	for s := range senders {
		wg.Go(func() {
			for i := range each {
				system.Root.Send(pid, s*each+i)
			}
		})
	}
	wg.Wait()
	last := map[int]int{}
	for range senders * each {
		n, ok := receive[int](t, r.got), true
		require.True(t, ok)
		s := n / each
		if before, ok := last[s]; ok {
			require.Equal(t, before+1, n, "sender %d", s)
		}
		last[s] = n
	}
}

func TestAPanicLosesOnlyItsOwnMessage(t *testing.T) {
	r := &recorder{got: make(chan any, 10), gate: make(chan struct{})}
	system, pid := spawnRecorder(t, r)
	for _, m := range []any{1, "broken", 2, 3} {
		system.Root.Send(pid, m)
	}
	close(r.gate)
	for _, want := range []any{1, "*actor.Restarting", 2, 3} {
		require.Equal(t, want, receive[any](t, r.got))
	}
}

func TestAStopGoesBeforeWhatWaits(t *testing.T) {
	r := &recorder{got: make(chan any, 10), gate: make(chan struct{})}
	system, pid := spawnRecorder(t, r)
	system.Root.Send(pid, 1)
	system.Root.Send(pid, 2)
	done := system.Root.StopFuture(pid)
	close(r.gate)
	require.NoError(t, done.Wait())
	first := receive[any](t, r.got)
	if first == 1 { // it was taken out before the stop came
		first = receive[any](t, r.got)
	}
	require.Equal(t, "*actor.Stopped", first, "2 is never handled")
}

func TestAMailboxAllocatesNothingOnceItHasItsSize(t *testing.T) {
	m, ok := newMailbox().(*mailbox)
	require.True(t, ok)
	m.RegisterHandlers(discard{}, actor.NewSynchronizedDispatcher(300))
	var v any = "message"
	m.PostUserMessage(v)
	require.Zero(t, testing.AllocsPerRun(1000, func() { m.PostUserMessage(v) }))
}

type discard struct{}

func (discard) InvokeSystemMessage(any)  {}
func (discard) InvokeUserMessage(any)    {}
func (discard) EscalateFailure(any, any) {}

// TestAQueueThatIsNeverEmptyStaysSmall: it is as large as what waits in it, in order.
func TestAQueueThatIsNeverEmptyStaysSmall(t *testing.T) {
	const waiting, through = 10, 10_000
	var q queue
	for i := range waiting {
		q.push(i)
	}
	for i := range through {
		require.Equal(t, i, q.pop())
		q.push(waiting + i)
	}
	require.Equal(t, waiting, q.len())
	require.LessOrEqual(t, cap(q.items), 8*waiting)
}
