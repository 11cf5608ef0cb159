package kv

import (
	"slices"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/millrace/millrace/actors/msg"
	"github.com/millrace/millrace/kvmgr"
)

const (
	// roomAhead is the number of tokens after the known ones for which a worker that predicts answers needs room: about as
	// many are predicted while nothing is known.
	roomAhead = 256
	// roomPatience is how long a copied sequence has its room without being there.
	roomPatience = time.Second
)

// length is what is reserved for a sequence with some known tokens and a declared end.
func (x *exchange) length(known, end int) kvmgr.Length {
	l := kvmgr.Declared(max(end, known))
	if x.predicted {
		l.Promise = min(l.End, known+roomAhead)
	}
	return l
}

// crowded says that a step has no place for the sequence of a transfer beside those of the worker and those on their way to it.
// A sequence that runs elsewhere is better off there than in the queue here.
func (x *exchange) crowded(t *transfer) bool {
	return x.batchSize > 0 && max(x.rows+x.coming(t), x.kv.Stats().Regions) >= x.batchSize
}

// coming counts the sequences on their way to the worker, but for that of a transfer.
func (x *exchange) coming(but *transfer) int {
	n := len(x.kept)
	for _, t := range x.transfers {
		if t != but && (t.reserved || t.waiting != nil) {
			n++
		}
	}
	return n
}

// keep keeps the slabs of a transfer that has ended until its sequence reserves its own: nobody else gets them.
func (x *exchange) keep(t *transfer) {
	if !t.reserved { // another one may be, for the same sequence
		t.timer.Stop()
		return
	}
	x.kv.Settle(t.seq())
	x.kept = append(x.kept, t)
	t.since = time.Now()
	t.timer.Reset(roomPatience)
}

// placesKept says that the places of a step that are left are for sequences on their way, which run where they come from.
func (x *exchange) placesKept() bool {
	return x.batchSize > 0 && x.coming(nil) > 0 && x.kv.Stats().Regions >= x.batchSize
}

// arrived returns what is kept for a sequence that begins here, and says for how many tokens it was. 0 if it did not come from elsewhere.
func (x *exchange) arrived(seq msg.SeqID) (tokens int) {
	x.free(func(t *transfer) bool {
		came := t.waiting != nil && t.waiting.Generate.Seq == seq
		if came {
			tokens = t.length.Promise
		}
		return came
	})
	return tokens
}

// free returns the slabs that are kept for some sequences. It says whether there were any.
func (x *exchange) free(some func(*transfer) bool) bool {
	before := len(x.kept)
	x.kept = slices.DeleteFunc(x.kept, func(t *transfer) bool {
		if !some(t) {
			return false
		}
		t.timer.Stop()
		if _, err := x.kv.Release(t.seq()); err != nil {
			x.broken(err)
		}
		return true
	})
	return len(x.kept) < before
}

// giveUp returns the slabs that are kept for a sequence that did not come.
func (x *exchange) giveUp(ctx actor.Context, t *transfer) {
	// the last check of the transfer came after its end
	if early := roomPatience - time.Since(t.since); early > 0 && slices.Contains(x.kept, t) {
		t.timer.Reset(early)
		return
	}
	if x.free(func(kept *transfer) bool { return kept == t }) {
		x.announceRoom(ctx)
	}
}

// announceRoom notifies the worker that denied requests may have room now. It has not released anything itself.
func (x *exchange) announceRoom(ctx actor.Context) {
	if x.worker != nil {
		ctx.Send(x.worker, &msg.KVReady{Freed: true})
	}
}
