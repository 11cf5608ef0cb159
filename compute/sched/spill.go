package sched

import "fmt"

// planSpill makes room for a sequence that cannot grow: it pauses another one, whose KV moves to the tier meanwhile. One sequence
// is on its way at a time. The KV manager may keep it, and the next one is tried then.
func (s *Scheduler) planSpill() {
	if !s.cfg.Spill || s.leaving != nil {
		return
	}
	starved := s.starved()
	if starved == nil {
		return
	}
	if seq := s.victim(starved, s.stuck()); seq != nil {
		s.leaving = seq
		s.plan.Spill = append(s.plan.Spill, Spill{ID: seq.ID, Tokens: seq.computed})
	}
}

// stuck says that no running sequence can have rows before one of them makes room.
func (s *Scheduler) stuck() bool {
	for _, seq := range s.running.seqs {
		if !seq.denied || seq.computed < seq.leased || seq.open() {
			return false
		}
	}
	return s.returning == nil && s.running.len() > 1
}

// victim returns the least urgent sequence that may make room for a starved one: of the lowest priority, of the tenant that has the
// most KV for its weight, the last one. Nil if that is the starved one itself, which keeps what it has until others end.
// Only when all are stuck, any will do.
func (s *Scheduler) victim(starved *sequence, stuck bool) (victim *sequence) {
	for _, f := range s.flows {
		f.leased = 0
	}
	for _, seq := range s.running.seqs {
		seq.flow.leased += (seq.leased - seq.from) * seq.rows()
	}
	for _, seq := range s.running.seqs {
		switch {
		case seq.Beams > 0 || seq.computed == 0 || seq.open() || seq.leaseWanted > seq.leased || seq.kept == s.frees+1:
		case seq.rank.priority < starved.rank.priority && !stuck:
		case victim == nil || seq.rank.priority > victim.rank.priority ||
			seq.flow.leased*victim.flow.weight >= victim.flow.leased*seq.flow.weight:
			victim = seq
		}
	}
	if victim == starved && !stuck {
		return nil
	}
	return victim
}

// spilled puts a sequence among those that are away. Its tokens so far count as its prompt, as those of a migrated one.
func (s *Scheduler) spilled(e *Event) error {
	seq := s.byID[e.ID]
	switch {
	case seq == nil: // it ended meanwhile
		return nil
	case seq != s.leaving:
		return fmt.Errorf("%w: sequence %d is spilled, which was not to be", ErrUnexpected, e.ID)
	}
	s.running.remove(seq)
	seq.rank = seq.own()
	s.arrived(seq)
	seq.flow.rows -= seq.rows()
	if seq.prefilling() {
		seq.flow.pending -= seq.PromptTokens - seq.computed
	} else {
		s.line(seq.flow)
	}
	n := seq.generated
	seq.PromptTokens, seq.MaxNewTokens = seq.PromptTokens+n, seq.MaxNewTokens-n
	seq.Answered, seq.earlier, seq.generated = seq.Answered+n, seq.earlier+n, 0
	seq.state, seq.computed, seq.drafted, seq.drafts, seq.forced = Away, 0, 0, 0, 0
	seq.withdraw()
	s.frees++
	if s.running.len() > 0 { // those that wait to grow go first; when all have ended meanwhile, it returns at once
		seq.triedAt = s.frees
	}
	s.away.insert(seq)
	return nil
}

// withdraw takes back what a sequence requested of the KV manager and does not have.
func (q *sequence) withdraw() {
	q.leased, q.leaseWanted, q.from, q.promised, q.promising, q.denied = 0, 0, 0, 0, 0, false
}

// planRestore brings back a sequence that is away, before others are admitted: of the highest priority, of the least-served
// tenant, the first one. One is on its way at a time, and none while one of its priority or a higher one cannot grow.
func (s *Scheduler) planRestore() {
	if s.away.len() == 0 || s.returning != nil || s.leaving != nil || len(s.reserving) > 0 {
		return
	}
	seq := s.away.seqs[0]
	for _, q := range s.away.seqs {
		if q.Priority == seq.Priority && q.flow.due() < seq.flow.due() {
			seq = q
		}
	}
	if starved := s.starved(); seq.triedAt == s.frees || starved != nil && starved.rank.priority <= seq.Priority ||
		s.running.rows+seq.rows() > s.cfg.MaxBatchSize {
		return
	}
	s.returning = seq
	s.plan.Restore = append(s.plan.Restore, s.reservation(seq))
}

// keep leaves a sequence where it is, until KV is given back.
func (s *Scheduler) keep(e *Event) error {
	seq := s.byID[e.ID]
	switch seq {
	case nil: // it ended meanwhile
		return nil
	case s.returning:
		seq.withdraw()
	case s.leaving:
		seq.kept = s.frees + 1
	default:
		return fmt.Errorf("%w: sequence %d is kept, which was not to move", ErrUnexpected, e.ID)
	}
	s.arrived(seq)
	return nil
}

// lost makes a sequence that was away wait for a reservation, and be computed again.
func (s *Scheduler) lost(e *Event) error {
	seq := s.byID[e.ID]
	switch {
	case seq == nil: // it ended meanwhile
		return nil
	case seq.state != Away:
		return fmt.Errorf("%w: the KV of sequence %d is lost, which is not in the tier", ErrUnexpected, e.ID)
	}
	s.away.remove(seq)
	s.arrived(seq)
	seq.withdraw()
	seq.state, seq.denials = Waiting, 0
	s.frees++
	s.waiting.insert(seq)
	return nil
}

// arrived says that a sequence is on no way any more.
func (s *Scheduler) arrived(seq *sequence) {
	if s.leaving == seq {
		s.leaving = nil
	}
	if s.returning == seq {
		s.returning = nil
	}
}
