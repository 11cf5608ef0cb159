package actors

import (
	"github.com/asynkron/protoactor-go/actor"

	"github.com/millrace/millrace/actors/msg"
)

// computeActor is the mailbox of the goroutine that owns the device: it hands
// over what comes in and never waits for a step.
type computeActor struct{ loop *loop }

func (a *computeActor) Receive(ctx actor.Context) {
	switch m := ctx.Message().(type) {
	case *msg.Generate, *msg.Cancel, *msg.Leased, *msg.Denied, *msg.Freed:
		a.loop.p.stages.compute.Enqueued()
		a.loop.inbox.push(m)
	}
}
