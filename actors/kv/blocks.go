package kv

import (
	"crypto/rand"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/millrace/millrace/actors/msg"
	"github.com/millrace/millrace/cluster/prefix"
	"github.com/millrace/millrace/kvmgr"
)

// publishEvery is the time in which changes of the prefix cache are gathered.
const publishEvery = 20 * time.Millisecond

// blocksActor sends gateways what the prefix cache has: all of it on request, and every change after that. It costs nothing
// until the first request.
type blocksActor struct {
	node      string
	kv        *actor.PID
	publish   func(prefix.Event)
	source    *prefix.Source
	requested bool         // the KV manager lists its changes, or will
	waiting   []*actor.PID // gateways whose answer needs the first list
	begun     bool         // the first list is here
	timed     bool         // a flush is to come
}

// record makes the KV manager send changed messages from now on. The first one has all that the tree has.
type record struct{ reply *actor.PID }

// changed is a list of changes of the tree.
type changed struct{ list []kvmgr.Change }

// flush publishes the changes of the last publishEvery.
type flush struct{}

func newBlocksActor(node string, kv *actor.PID, publish func(prefix.Event)) *blocksActor {
	var salt prefix.Salt
	_, _ = rand.Read(salt[:]) // it never fails
	return &blocksActor{node: node, kv: kv, publish: publish, source: prefix.NewSource(salt)}
}

func (a *blocksActor) Receive(ctx actor.Context) {
	switch m := ctx.Message().(type) {
	case *msg.ListBlocks:
		switch {
		case a.begun:
			a.answer(ctx, m.Reply)
			return
		case !a.requested:
			a.requested = true
			ctx.Send(a.kv, &record{ctx.Self()})
		}
		a.waiting = append(a.waiting, m.Reply)
	case *changed:
		a.source.Apply(m.list)
		if !a.begun {
			a.begin(ctx)
			return
		}
		if !a.timed {
			a.timed = true
			root, self := ctx.ActorSystem().Root, ctx.Self()
			time.AfterFunc(publishEvery, func() { root.Send(self, &flush{}) })
		}
	case *flush:
		a.timed = false
		for _, e := range a.source.Flush() {
			a.publish(e)
		}
	}
}

// begin answers the gateways that requested a snapshot before there was one. No event is needed: it has all.
func (a *blocksActor) begin(ctx actor.Context) {
	a.source.Flush()
	a.begun = true
	for _, to := range a.waiting {
		a.answer(ctx, to)
	}
	a.waiting = nil
}

func (a *blocksActor) answer(ctx actor.Context, to *actor.PID) {
	s := a.source.Snapshot()
	m := &msg.Blocks{Node: a.node, Number: s.Number, Salt: s.Salt[:], IDs: make([]uint64, len(s.Blocks))}
	for i, id := range s.Blocks {
		m.IDs[i] = uint64(id)
	}
	ctx.Send(to, m)
}
