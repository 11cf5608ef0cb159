package worker

import (
	"github.com/asynkron/protoactor-go/actor"

	"github.com/millrace/millrace/actors/msg"
)

// imports holds a sequence until its keys and values have come from another worker, or those of a prefix from a dead one; false
// if they are nowhere.
func (a *computeActor) imports(ctx actor.Context, g *msg.Generate) bool {
	if g.Beams != nil || g.Whole() || g.Source == nil && (a.loop.Inherits == nil || !a.loop.Inherits()) {
		return false
	}
	a.held[g.Seq] = nil
	ctx.Send(a.loop.KV, &msg.Import{Reply: ctx.Self(), Generate: g})
	return true
}

// hold keeps a message to a sequence that is held; false if it is not.
func (a *computeActor) hold(seq msg.SeqID, m any) bool {
	list, ok := a.held[seq]
	if ok {
		a.held[seq] = append(list, m)
	}
	return ok
}

// imported gives a sequence to the loop, and the messages that came meanwhile.
func (a *computeActor) imported(m *msg.Imported) {
	g := m.Generate
	list := a.held[g.Seq]
	delete(a.held, g.Seq)
	if entry := a.loop.inFlight.get(g.Seq); entry != nil && g.Source != nil {
		entry.adopted = m.Adopted
		entry.spans.next(spanQueue)
	}
	a.loop.inbox.push(g)
	for _, m := range list {
		a.loop.inbox.push(m)
	}
}
