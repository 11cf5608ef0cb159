package kv

import (
	"time"

	"github.com/asynkron/protoactor-go/actor"
)

// expireEvery is how long a disk rests before what has expired is removed.
const expireEvery = time.Minute

// diskActor reads and writes a store beside the KV manager, one slab after the other.
type diskActor struct {
	store Store
	rest  rest
}

func (a *diskActor) Receive(ctx actor.Context) {
	switch m := ctx.Message().(type) {
	case *actor.Started, *rested:
		a.store.Expire()
	case *readSlab:
		m.err = a.store.Read(m.block, m.data)
		ctx.Respond(m)
	case *writeSlab:
		a.store.Expire()
		m.err = a.store.Write(m.block, m.data)
		ctx.Respond(m)
	case *actor.Stopping:
		a.rest.end()
		return
	default:
		return
	}
	a.rest.begin(ctx, expireEvery)
}
