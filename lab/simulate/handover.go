package simulate

import (
	"errors"
	"time"

	"github.com/millrace/millrace/cluster/route"
	"github.com/millrace/millrace/compute/sched"
	"github.com/millrace/millrace/kvmgr"
)

// The bounds of a server's gateway (actors/gateway) and KV manager (actors/kv) for sequences that leave their worker.
const (
	watchEvery = 50 * time.Millisecond  // sequences leave at ticks
	leaveLeast = 4                      // of a worker at a tick
	leaveShare = 16                     // of those that are there, one of this number
	fullTime   = 250 * time.Millisecond // how long one without room elsewhere stays
	roomAhead  = 256                    // tokens after the known ones for which there must be room
)

// begun notes that a sequence has its first token here: it leaves a prefill worker.
func (w *worker) begun(now time.Duration) {
	if w.ticks || !w.cfg.Route.Moves(now, w.at.Node, w.news) {
		return
	}
	w.ticks = true
	w.later(now.Truncate(watchEvery)+watchEvery, w.tick)
}

// tick begins the hand-overs of a few sequences.
func (w *worker) tick(now time.Duration) error {
	w.ticks = false
	most := max(leaveLeast, (len(w.live)-len(w.spare))/leaveShare)
	for i := range w.live {
		q := &w.live[i]
		if q.generated == 0 || q.leaving {
			continue
		}
		if most == 0 || q.stays > now || q.computed == 0 { // it is in the tier
			w.begun(now)
			continue
		}
		most--
		if err := w.leave(now, q); err != nil {
			return err
		}
	}
	return nil
}

// leave begins to copy the keys and values of a sequence to a decode worker. It runs meanwhile, and longer if there is no room.
func (w *worker) leave(now time.Duration, q *live) error {
	to := w.place(now, &q.Request, true)
	if to == nil || to.at.Duty != route.Decode {
		w.stay(now, q)
		return nil
	}
	known, end := q.Prompt+q.generated, q.Prompt+q.MaxTokens
	next := *q
	next.begun, next.aside, next.computed, next.released, next.reached = true, true, 0, 0, 0
	there := to.take(next)
	r := sched.Reservation{ID: there.id, Tokens: end, Promise: end, Lease: known - 1}
	if w.cfg.Admission.predicts() {
		r.Promise = min(end, known+roomAhead)
	}
	err := to.managed.reserveCopy(r)
	if errors.Is(err, kvmgr.ErrNoSlabs) || errors.Is(err, kvmgr.ErrNeverFits) {
		to.free(r.ID)
		w.stay(now, q)
		return nil
	}
	if err != nil {
		return err
	}
	to.report()
	q.leaving = true
	whole := (known - 1) / w.spec.SlabTokens // the last slab follows when the sequence ends here
	done := max(now, w.link, to.link) + duration(w.cfg.Device.HandoverSeconds(w.bytes(w.groups.Slabs(whole, to.managed.first(r.ID)))))
	w.link, to.link = done, done
	from := q.id
	w.later(done, func(now time.Duration) error { return w.cross(now, from, to, r.ID, whole) })
	return nil
}

func (w *worker) stay(now time.Duration, q *live) {
	q.stays = now + fullTime
	w.begun(now)
}

// cross ends a sequence here, and makes it continue at the other worker when the last slabs were copied, too.
func (w *worker) cross(now time.Duration, from sched.ID, to *worker, id sched.ID, whole int) error {
	q, there := w.find(from), to.find(id)
	switch {
	case there == nil && q == nil:
		return nil
	case there == nil: // its room was given to another one
		q.leaving = false
		w.stay(now, q)
		return nil
	case q == nil: // it has ended
		to.free(id)
		return to.kv.release(id)
	}
	w.events = append(w.events, sched.Cancel(from))
	q.left = true
	w.tally.handovers++
	there.generated, there.first, there.last = q.generated, q.first, q.last
	there.copied = q.Prompt + q.generated - 1
	there.reached = there.copied
	last := w.bytes((w.slabsOf(there.copied) - whole) * w.groups.Count())
	to.later(now+duration(w.cfg.Device.HandoverSeconds(last)), func(time.Duration) error {
		to.enqueue(to.find(id))
		return nil
	})
	return nil
}

// reserve reserves memory for a sequence, and returns the tokens that it leased and those that were copied here. If these have memory that
// may not grow to what the scheduler promises, it is given back and they are computed again.
func (w *worker) reserve(r sched.Reservation) (leased, computed int, err error) {
	q := w.find(r.ID)
	if q.aside {
		q.aside = false
		err = w.managed.Grow(kvmgr.Seq(r.ID), r.Promise)
		if err == nil {
			leased = min(r.Lease, w.managed.Limit(kvmgr.Seq(r.ID)))
			return leased, q.copied, w.managed.lease(r.ID, leased)
		}
		if !errors.Is(err, kvmgr.ErrNoSlabs) {
			return 0, 0, err
		}
		if err := w.kv.release(r.ID); err != nil {
			return 0, 0, err
		}
	}
	leased, err = w.kv.reserve(r)
	return leased, 0, err
}

// yield gives back the memory of copies whose sequences have no reservation yet, for others that could not run without it. A
// server does so after a second. Sequences that still run at their prefill workers stay there, the others are computed again.
func (w *worker) yield() (gave bool) {
	for i := range w.live {
		q := &w.live[i]
		if !q.aside {
			continue
		}
		q.aside = false
		gave = w.kv.release(q.id) == nil || gave
		if q.copied == 0 {
			w.free(q.id)
		}
	}
	return gave
}
