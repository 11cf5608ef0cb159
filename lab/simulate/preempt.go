package simulate

import (
	"slices"

	"github.com/millrace/millrace/compute/sched"
)

// shortage is the leases of a paged memory that wait for the slabs of preempted sequences.
type shortage struct {
	leases []sched.Lease
	coming int // slabs of these sequences that no lease waits for
}

// take returns the leases. The preempted sequences have returned their slabs.
func (s *shortage) take() []sched.Lease {
	leases := s.leases
	*s = shortage{}
	return leases
}

// forget drops the lease of a sequence that ended.
func (s *shortage) forget(id sched.ID) {
	s.leases = slices.DeleteFunc(s.leases, func(l sched.Lease) bool { return l.ID == id })
}

// preempt takes its slabs from the sequence that arrived last, for a lease that finds none. The lease is taken up again
// when they are back.
func (w *worker) preempt(l sched.Lease) {
	q := &w.live[slotOf(l.ID)]
	if w.short.coming <= 0 && !q.preempted {
		w.short.coming = w.evict()
	}
	if q.preempted {
		return
	}
	w.short.coming--
	w.short.leases = append(w.short.leases, l)
}

// evict ends the sequence that arrived last, so that it begins again, and returns the number of its slabs.
func (w *worker) evict() (slabs int) {
	var last *live
	for i := range w.live {
		q := &w.live[i]
		if w.paged.held[q.id] > 0 && !q.preempted && (last == nil || q.At > last.At || q.At == last.At && q.id > last.id) {
			last = q
		}
	}
	last.preempted = true
	w.tally.preempted++
	w.events = append(w.events, sched.Cancel(last.id))
	return w.paged.held[last.id]
}
