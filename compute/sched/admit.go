package sched

import "fmt"

// planReserves asks for the KV of the sequences at the head of the queue, as
// long as the batch has room.
//
// A denied sequence keeps its place, and nobody behind it is asked for before
// it is granted or ends: a stream of small sequences cannot starve a large one.
// It can be passed only by those whose own Reserve was out when it was denied
// for the first time (fewer than MaxBatchSize), and by higher priorities. It is
// asked for again once KV has been given back.
func (s *Scheduler) planReserves() {
	for s.probe == nil && s.running.rows+s.asking.rows < s.cfg.MaxBatchSize {
		seq := s.nextWaiting()
		if seq == nil || seq.denials > 0 && seq.asked == s.frees ||
			s.running.rows+s.asking.rows+seq.rows() > s.cfg.MaxBatchSize {
			return
		}
		if seq.denials > 0 {
			s.probe = seq
		}
		s.waiting.remove(seq)
		seq.state = Asking
		seq.flow.pending += seq.PromptTokens
		seq.flow.rows += seq.rows()
		seq.asked = s.frees
		seq.leaseAsk = s.leaseFor(seq, seq.PromptTokens)
		s.asking.insert(seq)
		s.plan.Reserve = append(s.plan.Reserve, Reservation{
			ID: seq.ID, Tokens: seq.total(), Lease: seq.leaseAsk, Prompt: seq.PromptTokens, Beams: seq.Beams,
		})
	}
}

// leaseFor is the lease, in tokens, that leaves room for LeaseAheadTokens behind
// the first used ones: whole slabs, inside the reservation. Beams begin a slab of
// their own behind the prompt.
func (s *Scheduler) leaseFor(seq *sequence, used int) int {
	first, end := 0, used+s.cfg.LeaseAheadTokens
	if seq.Beams > 0 && end > seq.PromptTokens {
		first = seq.PromptTokens
	}
	slabs := (end - first + s.cfg.SlabTokens - 1) / s.cfg.SlabTokens
	return min(first+slabs*s.cfg.SlabTokens, seq.total())
}

// planLeases asks for longer leases, ahead of need.
func (s *Scheduler) planLeases() {
	for _, seq := range s.running.seqs {
		if seq.leaseAsk > seq.leased || seq.leased == seq.total() ||
			seq.leased-seq.computed >= s.cfg.LeaseAheadTokens {
			continue
		}
		seq.leaseAsk = s.leaseFor(seq, seq.computed)
		s.plan.Lease = append(s.plan.Lease, Lease{ID: seq.ID, UpTo: seq.leaseAsk})
	}
}

func (s *Scheduler) granted(e *Event) error {
	seq := s.byID[e.ID]
	switch {
	case seq == nil:
		return nil // a longer lease for a sequence that ended meanwhile; Release is behind it
	case seq.state == Waiting:
		return fmt.Errorf("%w: grant for sequence %d, which asked for nothing", ErrUnexpected, e.ID)
	case e.Tokens <= seq.leased || e.Tokens > seq.total():
		return fmt.Errorf("%w: sequence %d granted up to token %d, leased %d, reserved %d",
			ErrUnexpected, e.ID, e.Tokens, seq.leased, seq.total())
	case seq.state == Running:
		seq.leased = e.Tokens
		return nil
	}
	s.answered(seq)
	if seq.ended {
		s.release(seq)
		return nil
	}
	seq.state = Running
	seq.leased = e.Tokens
	s.admissions++
	seq.admission = s.admissions
	s.running.insert(seq)
	return nil
}

func (s *Scheduler) denied(e *Event) error {
	seq := s.byID[e.ID]
	if seq == nil || seq.state != Asking {
		return fmt.Errorf("%w: denial for sequence %d, which asked for nothing", ErrUnexpected, e.ID)
	}
	s.answered(seq)
	seq.flow.rows -= seq.rows()
	if seq.ended {
		s.forget(seq)
		return nil
	}
	seq.flow.pending -= seq.PromptTokens
	seq.denials++
	seq.state = Waiting
	s.waiting.insert(seq)
	if e.Never {
		s.end(seq, ReasonTooLong)
	}
	return nil
}

// answered takes a sequence out of those that wait for the KV manager.
func (s *Scheduler) answered(seq *sequence) {
	s.asking.remove(seq)
	if s.probe == seq {
		s.probe = nil
	}
}
