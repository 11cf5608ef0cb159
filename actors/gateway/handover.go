package gateway

import (
	"github.com/asynkron/protoactor-go/actor"

	"github.com/millrace/millrace/actors/msg"
	"github.com/millrace/millrace/cluster"
	"github.com/millrace/millrace/cluster/route"
	"github.com/millrace/millrace/kvmgr/chain"
)

// handover is a sequence that leaves a worker: its keys and values are copied to another one.
type handover struct {
	from msg.Source
	to   *seat // that has a part of them already; nil: none
}

// decodeElsewhere moves a sequence from its prefill worker to a decode worker. One that cannot be handed over stays: beam
// searches, and all without room there.
func (a *requestActor) decodeElsewhere(ctx actor.Context, seq msg.SeqID) {
	if _, at := a.place(seq); at != nil {
		at.next = nil // an earlier copy has had its time
	}
	a.prefetch(ctx, seq, prefillDone)
}

// prefetch copies the keys and values of a sequence to the worker where it is about to continue, while it still runs; false
// if that cannot be done, or was begun before and has not ended since.
func (a *requestActor) prefetch(ctx actor.Context, seq msg.SeqID, why string) bool {
	lead, at := a.place(seq)
	if at == nil || at.next != nil || a.state.api.Beams != nil || a.state.whole() {
		return false
	}
	q := a.query()
	first := a.state.choice(lead)
	q.Avoid, q.Begun = at.full, len(a.state.choices[first].tokens) > 0
	to := a.routes.compute(q, a.slabs(first))
	if to == nil || why == prefillDone && to.duty != route.Decode || !a.routes.copies(at.compute.Address, to.worker.Address) {
		return false
	}
	at.next, at.why = to, why
	ctx.Send(kvAt(to.worker.Address), &msg.Prefetch{
		Reply: ctx.Self(), Source: msg.Source{KV: kvAt(at.compute.Address), Seq: lead}, Space: a.state.space(),
		Tokens: a.state.known(first), End: a.state.end(),
	})
	return true
}

// finishes keeps a sequence at its draining worker that is better off there, for as long as the worker lives: a beam search, whose
// beams would be computed again, and a sequence with a grammar if no equal worker has the same text digest. It returns false for
// any other sequence.
func (a *requestActor) finishes(seq msg.SeqID) bool {
	lead, at := a.place(seq)
	if at == nil {
		return false
	}
	if a.state.api.Beams == nil {
		if a.state.api.Grammar == nil || !a.state.bond.fixed {
			return false
		}
		if q := a.query(); a.routes.elsewhere(&q, at.compute.Address) {
			return false
		}
	}
	a.watch.stays(lead, at.compute.Address)
	return true
}

// prefetched stops a sequence, to continue it where its keys and values are once all of its tokens are here: a state is of the last one,
// and of no use before it. Without room there it stays, and leaves a little later, for another worker if one is there.
func (a *requestActor) prefetched(ctx actor.Context, m *msg.Prefetched) {
	at := a.places[m.Seq]
	switch {
	case at == nil || at.next == nil:
	case m.Full:
		if at.why == workerDraining {
			at.full = at.next.worker.Address
		}
		at.next = nil
		a.watch.stays(m.Seq, at.compute.Address)
	default:
		at.stopped = true
		ctx.Send(at.compute, &msg.Cancel{Seq: m.Seq, Owner: a.node})
	}
}

// leaving notes where the keys and values of a lost sequence are; nothing if the worker may not have them.
func (a *requestActor) leaving(seq msg.SeqID, why string) (h handover) {
	lead, at := a.place(seq)
	if at == nil {
		return h
	}
	if why == workerForgot && at.stopped { // the message that it has stopped was lost
		why = at.why
	}
	switch why {
	case workerDraining, prefillDone:
		h = handover{from: msg.Source{KV: kvAt(at.compute.Address), Seq: lead}, to: at.next}
	case workerDead, workerSilent: // what a worker has that is only silent is not read: it owns its pool
		known := len(a.state.choices[a.state.choice(lead)].tokens)
		h = handover{from: msg.Source{KV: kvAt(at.compute.Address), Seq: lead, Dead: true, Complete: known > at.from}}
	}
	return h
}

// seat chooses the worker of a sequence, the one that has its keys and values first.
func (a *requestActor) seat(first int, prompt []chain.Hash) *seat {
	q, h := a.query(), a.handovers[first]
	if h.to != nil && a.routes.takes(&q, h.to.worker.Address) {
		return h.to
	}
	q.Begun = h.from.KV != nil && !h.from.Dead
	return a.routes.compute(q, prompt)
}

// source returns where a worker finds the keys and values of a sequence; nil: nowhere.
func (a *requestActor) source(first int, worker *actor.PID) *msg.Source {
	h, ok := a.handovers[first]
	delete(a.handovers, first)
	if !ok || a.state.api.Beams != nil || a.state.whole() || !h.from.Dead && !a.routes.copies(h.from.KV.Address, worker.Address) {
		return nil
	}
	return &h.from
}

// kvAt is the KV manager of a node.
func kvAt(node string) *actor.PID { return actor.NewPID(node, msg.KVActor) }

// copies says whether slabs can be copied from one node to another.
func (r *routing) copies(from, to string) bool {
	var found []*cluster.Worker
	for _, m := range r.cluster.Members() {
		if (m.Node == from || m.Node == to) && m.Worker != nil && m.Worker.Layout != "" {
			found = append(found, m.Worker)
		}
	}
	return len(found) == 2 && found[0].Layout == found[1].Layout && found[0].Numerics == found[1].Numerics
}
