package kv

import (
	"time"

	"github.com/asynkron/protoactor-go/actor"
)

// rest sends rested to an actor that has received nothing for a time. The receive timeout of the actor library does the
// same, but changes the actor's context beside its messages: a data race.
type rest struct{ timer *time.Timer }

// rested is the message of a rest.
type rested struct{}

// begin starts the rest anew.
func (r *rest) begin(ctx actor.Context, length time.Duration) {
	if r.timer != nil {
		r.timer.Reset(length)
		return
	}
	root, self := ctx.ActorSystem().Root, ctx.Self()
	r.timer = time.AfterFunc(length, func() { root.Send(self, &rested{}) })
}

func (r *rest) end() {
	if r.timer != nil {
		r.timer.Stop()
	}
}
