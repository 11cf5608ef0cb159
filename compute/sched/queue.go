package sched

import (
	"slices"
	"sort"
)

// queue holds sequences in the order of service: by priority, migrated sequences first, then by
// arrival, then by submission. A sequence that returns takes its old place. Insertion and removal
// use binary search and move pointers.
type queue struct {
	seqs []*sequence
	rows int // decode rows of all of them
}

// rank is what the order compares: that of a sequence, or of one that waits for it, see lend.
type rank struct {
	priority int
	migrated bool
	arrival  Time
	serial   uint64
}

// own returns the rank of a sequence that nobody waits for.
func (q *sequence) own() rank { return rank{q.Priority, q.Migrated, q.Arrival, q.serial} }

// before is the order; no two sequences have the same serial.
func (q rank) before(o rank) bool {
	switch {
	case q.priority != o.priority:
		return q.priority < o.priority
	case q.migrated != o.migrated:
		return q.migrated
	case q.arrival != o.arrival:
		return q.arrival < o.arrival
	}
	return q.serial < o.serial
}

func (q *sequence) before(o *sequence) bool { return q.rank.before(o.rank) }

// lend gives each running sequence the place of the most urgent one of those that wait for what it computes, if that is before its
// own. A sequence that is parked computes nothing, so nobody waits for one.
func (s *Scheduler) lend() {
	if !s.lending {
		return
	}
	s.lending = false
	for _, seq := range s.running.seqs {
		seq.rank = seq.own()
	}
	for _, seq := range s.waiting.seqs {
		if !seq.parked {
			continue
		}
		if by := s.byID[seq.by]; by != nil && by.state == Running && seq.before(by) {
			by.rank = seq.rank
		}
	}
	slices.SortFunc(s.running.seqs, func(a, b *sequence) int {
		switch {
		case a == b:
			return 0
		case a.before(b):
			return -1
		}
		return 1
	})
}

func (q *queue) len() int { return len(q.seqs) }

// place is the index of the first sequence that is not before s.
func (q *queue) place(s *sequence) int {
	return sort.Search(len(q.seqs), func(i int) bool { return !q.seqs[i].before(s) })
}

func (q *queue) insert(s *sequence) {
	i := q.place(s)
	q.seqs = append(q.seqs, nil)
	copy(q.seqs[i+1:], q.seqs[i:])
	q.seqs[i] = s
	q.rows += s.rows()
}

// remove takes out s, which is in the queue.
func (q *queue) remove(s *sequence) {
	i := q.place(s)
	n := copy(q.seqs[i:], q.seqs[i+1:])
	q.seqs[i+n] = nil
	q.seqs = q.seqs[:i+n]
	q.rows -= s.rows()
}
