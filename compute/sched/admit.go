package sched

import (
	"cmp"
	"fmt"
	"math"
	"slices"
)

// maxPasses is the number of sequences that may be admitted while one waits for KV that it was denied, before nothing passes it any
// more. Each keeps KV that the one that waits would have collected. Twice as many lower the mean wait a little more: see
// docs/decisions/passing.md.
const maxPasses = 16

// planReserves reserves KV for the sequences at the head of the queue while the batch has room. It
// does nothing while earlier reservations have no answer.
//
// The KV manager stops at the first reservation that it denies for now. The denied sequence keeps its place, and the scheduler
// reserves for it again once KV has been released. Meanwhile smaller ones of its priority may pass it: see passes. Higher priorities
// always do.
//
// While a sequence cannot grow, or is away, none of its priority or a lower one is reserved, but for those whose KV came with them: what
// others return is for it.
func (s *Scheduler) planReserves() {
	if len(s.reserving) > 0 {
		return
	}
	starved, rows := s.starved(), s.running.rows
	if s.returning != nil {
		rows += s.returning.rows()
	}
	smallest, most := math.MaxInt, math.MaxInt // tokens of those that are passed, and reservations for which they may be
	for rows+s.plannedRows < s.cfg.MaxBatchSize && len(s.planned) < most {
		seq := s.nextWaiting()
		if seq == nil || rows+s.plannedRows+seq.rows() > s.cfg.MaxBatchSize || len(s.passed) > 0 && s.passed[0].Priority != seq.Priority {
			break
		}
		if !seq.Copied && (starved != nil && starved.rank.priority <= seq.Priority || s.away.len() > 0 &&
			s.away.seqs[0].Priority <= seq.Priority) {
			break
		}
		denied := seq.deniedAt == s.frees+1
		if !denied && (len(s.passed) == 0 || s.size(seq) < smallest) {
			s.reserve(seq)
			continue
		}
		if most = min(most, s.passes(seq)); most > len(s.planned) {
			seq.planned = true
			s.passed = append(s.passed, seq)
			smallest = min(smallest, s.size(seq))
		}
	}
	// These sequences wait until they are granted. They were counted only to choose the next one.
	for _, seq := range s.planned {
		seq.planned = false
		seq.flow.pending -= seq.PromptTokens
		seq.flow.rows -= seq.rows()
	}
	for _, seq := range s.passed {
		seq.planned = false
	}
	s.plan.Hold = len(s.planned) > 0
	clear(s.planned)
	clear(s.passed)
	s.planned, s.passed, s.plannedRows = s.planned[:0], s.passed[:0], 0
}

// passes returns how many sequences may be admitted before one that was denied KV, or needs as much as one that was: up to maxPasses since
// it was passed over first, and none if its reader has begun to read.
func (s *Scheduler) passes(seq *sequence) int {
	if seq.Migrated || seq.earlier > 0 || len(s.passed) == s.maxPasses {
		return 0
	}
	if seq.passedAt == 0 {
		seq.passedAt = s.admissions + 1
	}
	return s.maxPasses - int(s.admissions-(seq.passedAt-1))
}

// size returns the tokens to promise KV for when a sequence begins, of all its beams.
func (s *Scheduler) size(seq *sequence) int {
	promise := s.promise(seq)
	return seq.PromptTokens + (promise-seq.PromptTokens)*seq.rows()
}

// reserve adds a sequence to the reservations of the plan.
func (s *Scheduler) reserve(seq *sequence) {
	seq.planned = true
	s.planned = append(s.planned, seq)
	s.plannedRows += seq.rows()
	seq.flow.pending += seq.PromptTokens
	seq.flow.rows += seq.rows()
	s.reserving = append(s.reserving, seq.ID)
	s.plan.Reserve = append(s.plan.Reserve, s.reservation(seq))
}

// reservation returns what a sequence needs to run.
func (s *Scheduler) reservation(seq *sequence) Reservation {
	seq.triedAt = s.frees
	seq.leaseWanted = s.leaseFor(seq, seq.PromptTokens)
	seq.promised = max(s.promise(seq), seq.leaseWanted)
	seq.promising = seq.promised
	return Reservation{
		ID: seq.ID, Tokens: seq.total(), Promise: seq.promised, Lease: seq.leaseWanted, Prompt: seq.PromptTokens, Beams: seq.Beams,
	}
}

// leaseFor returns the lease, in tokens, that leaves leaseAhead tokens after the used ones: whole
// slabs, inside the declared length. Beams begin a slab of their own after the prompt.
func (s *Scheduler) leaseFor(seq *sequence, used int) int {
	first, end := 0, used+s.leaseAhead()
	if seq.Beams > 0 && end > seq.PromptTokens {
		first = seq.PromptTokens
	}
	return min(first+s.whole(end-first), seq.total())
}

// planLeases requests longer leases, ahead of need, and growth where they exceed the promise. The most urgent sequence
// comes first, so that the least urgent one pauses.
func (s *Scheduler) planLeases() {
	ahead := s.leaseAhead()
	for _, seq := range s.running.seqs {
		if seq == s.leaving || seq.leaseWanted > seq.leased || seq.leased == seq.total() {
			continue
		}
		want, from := s.nextLease(seq, ahead)
		if want <= seq.leased {
			continue
		}
		promise := seq.promised
		if want > promise && seq.denied && seq.triedAt == s.frees {
			want = promise
		} else if want > promise {
			promise = min(max(want, promise+s.growth()), seq.total())
			seq.triedAt = s.frees
		}
		if want <= seq.leased {
			continue
		}
		s.gaveBack(from - seq.from)
		seq.leaseWanted, seq.promising, seq.from = want, promise, from
		s.plan.Lease = append(s.plan.Lease, Lease{ID: seq.ID, UpTo: want, Promise: promise, From: from})
	}
}

// gaveBack counts tokens whose KV running sequences give back. Requests that were denied are repeated after each growth's worth of them.
func (s *Scheduler) gaveBack(tokens int) {
	if s.trimmed += tokens; s.trimmed >= growth {
		s.trimmed = 0
		s.frees++
	}
}

// nextLease returns the lease that a running sequence needs next, in tokens, and the first token that is still read. It has no more tokens
// than its lease if it needs none yet. ahead is as of leaseAhead.
//
// With a window the lease of a prompt comes in parts: the next one while the step runs that uses up the last.
func (s *Scheduler) nextLease(seq *sequence, ahead int) (want, from int) {
	used := seq.computed
	if !s.trims || seq.Beams > 0 {
		if seq.leased-used >= ahead {
			return seq.leased, 0
		}
		return s.leaseFor(seq, used), 0
	}
	if seq.leased < seq.PromptTokens {
		used, ahead = seq.PromptTokens, s.cfg.MaxBatchTokens
	}
	if seq.leased-seq.computed >= ahead {
		return seq.leased, seq.from
	}
	from = s.cfg.KV.FirstKept(seq.position)
	return min(s.leaseFor(seq, used), s.cfg.KV.Limit(from)), from
}

func (s *Scheduler) granted(e *Event) error {
	seq := s.byID[e.ID]
	requested := slices.Contains(s.reserving, e.ID)
	switch {
	case seq == nil && requested: // it ended meanwhile
		s.answered(e.ID)
		s.plan.Release = append(s.plan.Release, e.ID)
		s.frees++
		return nil
	case seq == nil:
		return nil // a longer lease for a sequence that ended meanwhile; Release follows it
	case seq.state == Waiting && !requested:
		return fmt.Errorf("%w: grant for sequence %d, which has no reservation on its way", ErrUnexpected, e.ID)
	case seq.state == Away && seq != s.returning:
		return fmt.Errorf("%w: grant for sequence %d, which is in the tier", ErrUnexpected, e.ID)
	case e.Tokens <= seq.leased || e.Tokens > seq.total():
		return fmt.Errorf("%w: sequence %d granted up to token %d, leased %d, reserved %d",
			ErrUnexpected, e.ID, e.Tokens, seq.leased, seq.total())
	case seq.state != Running && e.Lease != 0 && (e.Lease < e.Tokens || e.Lease > seq.leaseWanted):
		return fmt.Errorf("%w: sequence %d granted %d tokens, at first %d, requested %d", ErrUnexpected, e.ID, e.Lease, e.Tokens,
			seq.leaseWanted)
	case seq.state != Running && (e.Computed < 0 || e.Computed >= seq.PromptTokens):
		return fmt.Errorf("%w: sequence %d granted with %d tokens computed, of a prompt of %d, leased %d",
			ErrUnexpected, e.ID, e.Computed, seq.PromptTokens, e.Tokens)
	}
	if seq.state == Running {
		seq.leased, seq.promised, seq.denied = e.Tokens, seq.promising, false
		return nil
	}
	if seq.state == Waiting {
		seq.passedAt = 0
		s.answered(e.ID)
		s.waiting.remove(seq)
	} else {
		s.away.remove(seq)
		s.arrived(seq)
		s.frees++ // the tier has its slots back
	}
	seq.state = Running
	seq.leased, seq.computed, seq.branch = e.Tokens, e.Computed, e.Branch
	if e.Lease > 0 {
		seq.leaseWanted = e.Lease
	}
	seq.flow.pending += seq.PromptTokens - seq.computed
	seq.flow.rows += seq.rows()
	s.admissions++
	seq.admission = s.admissions
	s.running.insert(seq)
	return nil
}

func (s *Scheduler) denied(e *Event) error {
	if !slices.Contains(s.reserving, e.ID) {
		return fmt.Errorf("%w: denial for sequence %d, which has no reservation on its way", ErrUnexpected, e.ID)
	}
	if i := slices.Index(s.reserving, e.ID); e.Never {
		s.answered(e.ID)
	} else { // the KV manager stopped here. It answers earlier ones, in any order
		s.reserving = s.reserving[:i]
	}
	seq := s.byID[e.ID]
	switch {
	case seq == nil: // it ended meanwhile
	case e.Never:
		s.end(seq, cmp.Or(e.Reason, ReasonTooLong))
	default:
		seq.denials++
		seq.deniedAt = seq.triedAt + 1
	}
	return nil
}

// park lets others pass a sequence until ready is called.
func (s *Scheduler) park(e *Event) error {
	if !slices.Contains(s.reserving, e.ID) {
		return fmt.Errorf("%w: sequence %d parked, which has no reservation on its way", ErrUnexpected, e.ID)
	}
	s.answered(e.ID)
	if seq := s.byID[e.ID]; seq != nil { // else it ended meanwhile
		seq.parked, seq.by, s.lending = true, e.By, true
	}
	return nil
}

func (s *Scheduler) unpark(e *Event) {
	if seq := s.byID[e.ID]; seq != nil && seq.parked {
		seq.parked, s.lending = false, true
	}
}

// answered removes a sequence from the reservations on their way.
func (s *Scheduler) answered(id ID) {
	i := slices.Index(s.reserving, id)
	s.reserving = slices.Delete(s.reserving, i, i+1)
}
