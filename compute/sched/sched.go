// Package sched decides what a device computes next. It is a state machine
// without clock, goroutine or I/O: events in, one Plan out. The same events at
// the same times give the same plans, so that every decision can be replayed.
//
// The compute loop that drives it:
//
//	for {
//		plan, err := s.Step(now, events)   // err: an event out of place, ignored
//		... send plan.Release, Reserve, Lease to the KV manager; report plan.Ended
//		... if plan.Hold: wait a moment for the answer; events = the answer; Step again
//		... map the slabs that came with the grants in events; if they are many, report a grant in parts
//		... if plan.Rows > 0: run plan.Chunks, sample the outputs
//		events = ... Sampled or Finished per output, and events that arrived meanwhile
//	}
//
// A step is merged: the decode rows of all running sequences and as many prompt
// rows as the budget leaves lie on one token axis. A sequence goes from waiting
// (in the queue) to running (its KV is granted; prefill, then decode) to its end. Where KV memory is short, a
// running sequence may be spilled for a time: its KV is in the tier.
// Only granted sequences run. The scheduler reserves KV for several sequences at
// once, and not again before the answer; the sequences wait meanwhile.
//
// Step may be called while the device runs the last plan. Then Sampled answers outputs whose tokens are not known yet, and the caller
// releases the KV that the new plan names when the device has finished the last one. A stop token of such an output, like a stop string,
// arrives as Finished one step later and costs at most one wasted row, whose token is ignored.
//
// It must not know tensors, text, actors or how KV memory is managed.
package sched

import (
	"errors"
	"fmt"
	"slices"
)

// Errors of Step: the driver broke the protocol. Step ignores the event and plans
// with all others.
var (
	ErrDuplicate  = errors.New("sched: sequence exists")
	ErrUnexpected = errors.New("sched: unexpected event")
)

// State is the state of a sequence.
type State uint8

// States of a sequence.
const (
	Waiting State = iota // in the queue, no KV
	Running              // KV is granted
	Away                 // KV is in the tier, or on its way back
)

func (s State) String() string { return [...]string{"waiting", "running", "away"}[s] }

// sequence is a live sequence.
type sequence struct {
	// Every step reads these and the first fields of Sequence: together they are in two cache lines.
	generated   int // tokens sampled
	computed    int // tokens in the KV cache once the last plan has run
	drafted     int // of them, draft tokens without an answer
	drafts      int // draft tokens for the next step
	forced      int // of them, the first ones that are right for sure
	leased      int // tokens backed by slabs; below computed while a grant comes in parts
	leaseWanted int // tokens of the longest lease requested
	position    int // of its next row when the step is planned; later steps have no earlier one
	state       State
	denied      bool  // its last growth was
	planned     bool  // this plan reserves for it, or passes it
	parked      bool  // another sequence computes what its prompt begins with
	flow        *flow // its tenant's
	Sequence

	serial    uint64 // order of submission
	rank      rank   // its place among others
	by        ID     // the sequence that computes for a parked one
	denials   int    // answers that were Denied
	deniedAt  uint64 // 1 + Scheduler.frees at the last reservation that was denied; 0: none was
	passedAt  uint64 // 1 + Scheduler.admissions when a plan passed it first; 0: none did
	triedAt   uint64 // Scheduler.frees at its last reservation
	admission uint64 // order of grants
	promised  int    // tokens whose slabs are promised
	promising int    // with the growth that is on its way
	from      int    // tokens before it need no KV: the last Lease gave their slabs back
	earlier   int    // tokens sampled before its last Spill, which count as its prompt
	kept      uint64 // 1 + Scheduler.frees when the KV manager kept it last
	branch    int    // see Event.Branch

	follower *sequence // whose output came after this one's in a step
}

// rows is the number of rows of a decode step.
func (q *sequence) rows() int { return max(q.Beams, 1) }

// total returns the declared length in tokens, for each beam if there are any.
func (q *sequence) total() int {
	if q.AtOnce {
		return q.PromptTokens
	}
	return q.PromptTokens + q.MaxNewTokens
}

// known counts the tokens whose ids are known.
func (q *sequence) known() int { return q.PromptTokens + q.generated }

// mayDraft returns how many draft tokens a decoding sequence may have in a step: inside its lease and
// its answer.
func (q *sequence) mayDraft() int {
	if q.drafts == 0 {
		return 0
	}
	return min(q.drafts, q.leased-q.known(), q.MaxNewTokens-q.generated-1)
}

// open says that a sequence waits for its output to be sampled.
func (q *sequence) open() bool { return q.computed == q.known()+q.drafted }

func (q *sequence) prefilling() bool { return q.computed < q.PromptTokens }

// Scheduler is the state machine. It is for one goroutine.
type Scheduler struct {
	cfg   Config
	trims bool // of cfg.KV, which each sequence needs in each step
	byID  map[ID]*sequence
	// Each sequence of byID is in the queue of its state.
	waiting, running, away queue
	leaving, returning     *sequence        // a running one on its way to the tier, one that is away on its way back; nil without
	flows                  map[string]*flow // by tenant
	clock                  uint64           // virtual time at which a flow begins, at least
	shared                 *SharedLimit     // of live sequences
	answers                answers          // lengths of the answers that ended

	reserving   []ID        // sequences whose reservation has no answer, in order; an ended one is released when granted
	planned     []*sequence // those of the plan, until their answer they wait
	plannedRows int         // decode rows of planned
	passed      []*sequence // those that the plan passes, of one priority
	maxPasses   int         // maxPasses; tests have others

	spare      []*sequence // for the next Submits
	decodes    []*sequence // of the step: sequences with decode rows
	ready      []*sequence // of the step: sequences whose prompt may have rows
	gaveWay    int         // prompt rows of the last steps that left tenants out
	turn       uint64      // counts steps with turns, see takeTurns
	serial     uint64
	frees      uint64 // times that KV was given back
	trimmed    int    // tokens whose KV running sequences gave back since the last of these
	admissions uint64
	gate       uint64 // admissions up to this one may start (the waiting-served ratio)
	lending    bool   // a sequence has been parked, or is no longer
	held       int    // steps that the ratio has held prompts back
	idleTurn   uint64 // counts the steps that idle sequences waited for
	busyUntil  Time   // until then an idle step is short
	cautious   bool   // this step is
	wake       Time
	now        Time // of the step
	plan       Plan
	output     *sequence // the last one with an output in a plan
	follower   *sequence // whose output is sampled next, if they are in the order of the plan
}

// New returns a Scheduler without sequences, or an ErrConfig.
func New(cfg Config) (*Scheduler, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Scheduler{
		cfg: cfg, maxPasses: maxPasses, trims: cfg.KV.Trims(), byID: make(map[ID]*sequence), answers: newAnswers(),
		flows:  make(map[string]*flow),
		shared: NewSharedLimit(cfg.MaxBatchSize + cfg.MaxWaiting),
	}, nil
}

// Step applies the events in their order and plans the next step. If waiting sequences may
// begin in it, the plan has their reservations and no rows, and Plan.Hold is set: call Step again with
// the answer, or without it when it is late. The plan is valid even with an error, which
// names the events that were ignored.
func (s *Scheduler) Step(now Time, events []Event) (*Plan, error) {
	err := s.begin(now, events)
	s.planRestore()
	if s.planReserves(); s.plan.Hold {
		s.plan.Wake = s.wake
		return &s.plan, err
	}
	s.planSpill()
	s.gather()
	s.setIdleAside()
	s.giveWay()
	s.takeTurns()
	s.planDecode()
	s.planPrompts()
	s.planLeases()
	s.plan.Wake = s.wake
	return &s.plan, err
}

// begin applies the events before planning.
func (s *Scheduler) begin(now Time, events []Event) error {
	s.plan.reset()
	s.now = now
	var errs []error
	for i := range events {
		if err := s.apply(&events[i]); err != nil {
			errs = append(errs, err)
		}
	}
	s.expire(now)
	s.lend()
	return errors.Join(errs...)
}

func (s *Scheduler) apply(e *Event) error {
	switch e.Kind {
	case KindSubmit:
		return s.submit(e.Sequence)
	case KindCancel:
		s.end(s.byID[e.ID], ReasonCancelled)
	case KindGranted:
		return s.granted(e)
	case KindDenied:
		return s.denied(e)
	case KindParked:
		return s.park(e)
	case KindReady:
		s.unpark(e)
	case KindSampled:
		return s.sampled(e)
	case KindPaused:
		return s.paused(e)
	case KindSpilled:
		return s.spilled(e)
	case KindKept:
		return s.keep(e)
	case KindLost:
		return s.lost(e)
	case KindFreed:
		s.frees++
	case KindFinished:
		if e.Reason < ReasonStop || e.Reason > ReasonError {
			return fmt.Errorf("%w: sequence %d finished with reason %v", ErrUnexpected, e.ID, e.Reason)
		}
		s.end(s.byID[e.ID], e.Reason)
	default:
		return fmt.Errorf("%w: kind %d", ErrUnexpected, e.Kind)
	}
	return nil
}

func (s *Scheduler) submit(q *Sequence) error {
	if s.byID[q.ID] != nil || slices.Contains(s.reserving, q.ID) { // the answer to an ended one would count for this one
		return fmt.Errorf("%w: %d", ErrDuplicate, q.ID)
	}
	if r := s.refuse(q); r != ReasonNone {
		s.plan.Ended = append(s.plan.Ended, End{ID: q.ID, Reason: r})
		return nil
	}
	seq := s.take()
	s.serial++
	*seq = sequence{Sequence: *q, serial: s.serial}
	seq.rank = seq.own()
	s.byID[q.ID] = seq
	s.join(seq)
	s.waiting.insert(seq)
	s.noteDeadline(seq)
	return nil
}

// refuse returns why a sequence cannot be accepted, or ReasonNone: it has a place then.
func (s *Scheduler) refuse(q *Sequence) Reason {
	switch {
	case q.PromptTokens < 1 || q.MaxNewTokens < 1 || q.Beams < 0 || q.Beams > s.cfg.MaxBatchSize,
		q.Weight < 0 || q.Weight > MaxWeight:
		return ReasonInvalid
	case q.AtOnce && q.PromptTokens > min(s.cfg.MaxSequenceTokens, s.cfg.MaxBatchTokens),
		!q.AtOnce && (q.PromptTokens > s.cfg.MaxSequenceTokens-1 || q.MaxNewTokens > s.cfg.MaxSequenceTokens-q.PromptTokens):
		return ReasonTooLong
	case q.Migrated:
		s.shared.Admit(q.Tenant, q.Weight, 1)
	case !s.shared.Enter(q.Tenant, q.Weight):
		return ReasonQueueFull
	}
	return ReasonNone
}

// ofOutput is the sequence of a sampled output, nil if it has ended. Outputs are sampled in the order of the plan: a map's search for
// each was a fifth of a step's planning.
func (s *Scheduler) ofOutput(id ID) *sequence {
	seq := s.follower
	if seq == nil || seq.ID != id || seq.state != Running {
		seq = s.byID[id]
	}
	if s.follower = nil; seq != nil {
		s.follower = seq.follower
	}
	return seq
}

func (s *Scheduler) sampled(e *Event) error {
	seq := s.ofOutput(e.ID)
	if seq == nil {
		return nil // the wasted row of a sequence that ended meanwhile
	}
	switch {
	case seq.state != Running || !seq.open():
		return fmt.Errorf("%w: a token for sequence %d, which has no output open", ErrUnexpected, e.ID)
	case e.Tokens < 1 || e.Tokens > 1+seq.drafted || e.Drafts < 0 || e.Forced < 0 || e.Forced > e.Drafts || seq.Beams > 0 && e.Drafts > 0:
		return fmt.Errorf("%w: %d tokens and %d draft tokens for sequence %d, which has %d outputs open",
			ErrUnexpected, e.Tokens, e.Drafts, e.ID, 1+seq.drafted)
	}
	seq.generated += e.Tokens
	// The KV of rejected draft tokens is written again.
	seq.computed, seq.drafted, seq.drafts, seq.forced = seq.known()-1, 0, e.Drafts, e.Forced
	if seq.generated == seq.MaxNewTokens {
		s.end(seq, ReasonLength)
	}
	return nil
}

// end reports the end of a sequence (nil: nothing) and releases its KV.
func (s *Scheduler) end(seq *sequence, r Reason) {
	if seq == nil {
		return
	}
	s.plan.Ended = append(s.plan.Ended, End{ID: seq.ID, Reason: r, Generated: seq.earlier + seq.generated})
	s.shared.Leave(seq.Tenant, 1)
	s.learn(seq, r)
	s.unqueue(seq)
	switch seq.state {
	case Waiting:
		s.lending = s.lending || seq.parked
		s.waiting.remove(seq)
		s.forget(seq)
	case Running:
		s.running.remove(seq)
		seq.flow.rows -= seq.rows()
		s.release(seq)
	case Away:
		s.away.remove(seq)
		s.release(seq)
	}
}

// release gives back the KV of a granted sequence and forgets it.
func (s *Scheduler) release(seq *sequence) {
	s.plan.Release = append(s.plan.Release, seq.ID)
	s.frees++
	s.forget(seq)
}

// take returns a sequence to fill in.
func (s *Scheduler) take() *sequence {
	n := len(s.spare)
	if n == 0 {
		return new(sequence)
	}
	seq := s.spare[n-1]
	s.spare = s.spare[:n-1]
	return seq
}

// forget drops a sequence that is in no queue any more.
func (s *Scheduler) forget(seq *sequence) {
	delete(s.byID, seq.ID)
	s.leave(seq)
	s.arrived(seq)
	*seq = sequence{}
	s.spare = append(s.spare, seq)
}

// noteDeadline keeps wake at or before the earliest deadline.
func (s *Scheduler) noteDeadline(seq *sequence) {
	if seq.Deadline != 0 && (s.wake == 0 || seq.Deadline < s.wake) {
		s.wake = seq.Deadline
	}
}

// expire ends the sequences whose deadline has passed.
func (s *Scheduler) expire(now Time) {
	if s.wake == 0 || now < s.wake {
		return
	}
	s.wake = 0
	for _, q := range [...]*queue{&s.running, &s.away, &s.waiting} {
		for i := q.len() - 1; i >= 0; i-- { // from the end: end may remove
			seq := q.seqs[i]
			switch {
			case seq.Deadline != 0 && seq.Deadline <= now:
				s.end(seq, ReasonDeadline)
			default:
				s.noteDeadline(seq)
			}
		}
	}
}
