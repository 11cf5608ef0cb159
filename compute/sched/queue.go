package sched

import "sort"

// queue holds sequences in the order of service: by priority, migrated sequences first, then by
// arrival, then by submission. A sequence that returns takes its old place. Insertion and removal
// use binary search and move pointers.
type queue struct {
	seqs []*sequence
	rows int // decode rows of all of them
}

// before is the order; no two sequences have the same serial.
func (q *sequence) before(o *sequence) bool {
	switch {
	case q.Priority != o.Priority:
		return q.Priority < o.Priority
	case q.Migrated != o.Migrated:
		return q.Migrated
	case q.Arrival != o.Arrival:
		return q.Arrival < o.Arrival
	}
	return q.serial < o.serial
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
