package sched

import "fmt"

const (
	// covered is the share of answers that a prediction covers, while few sequences run. A higher one promises memory that few answers
	// use, so fewer sequences run. At a lower one more answers grow, and pause where memory is short.
	covered = 0.5
	// growth is the number of tokens that a sequence grows by, at least, when its answer exceeds the prediction, while few sequences run.
	// It requests them with its next lease, so fewer would save nothing, and more would keep slabs from others that may not be used.
	growth = 64
	// few is the number of sequences up to which each keeps all of its memory ahead of its tokens.
	few = 24
)

// ahead is the share of the memory ahead of its tokens that each sequence gets. The lengths of many answers even out: some end
// while others grow. So the more sequences run, the less each needs that it does not use yet.
func (s *Scheduler) ahead() float64 { return few / float64(max(len(s.running.seqs), few)) }

// growth returns the number of tokens that a sequence grows by, at least.
func (s *Scheduler) growth() int { return s.whole(max(int(growth*s.ahead()), 1)) }

// whole rounds tokens up to whole slabs: a promise of a part of a slab keeps all of it.
func (s *Scheduler) whole(tokens int) int {
	return (tokens + s.cfg.KV.SlabTokens - 1) / s.cfg.KV.SlabTokens * s.cfg.KV.SlabTokens
}

// leaseAhead returns the number of unused leased tokens below which the scheduler requests a longer lease. Half a slab is enough for
// the answer to come in time.
func (s *Scheduler) leaseAhead() int {
	most := s.cfg.LeaseAheadTokens
	return max(int(float64(most)*s.ahead()), min(most, s.cfg.KV.SlabTokens/2))
}

// promise returns the tokens to promise KV for when a sequence begins. Beams get all: each needs a slab at the same step.
func (s *Scheduler) promise(seq *sequence) int {
	if !s.cfg.Predict || seq.Beams > 0 {
		return seq.total()
	}
	left := s.answers.predict(seq.Tenant, seq.PromptTokens-seq.Answered, covered*s.ahead()) - seq.Answered
	return min(s.whole(seq.PromptTokens+max(left, s.growth())), seq.total())
}

// learn notes the length of an answer that ends. An answer that its client or its deadline ended counts with the tokens that
// it had: the prediction is of the memory that requests use, whatever ends them. A failure says nothing of a request.
func (s *Scheduler) learn(seq *sequence, r Reason) {
	if s.cfg.Predict && seq.Beams == 0 && seq.earlier+seq.generated > 0 && r != ReasonError {
		s.answers.add(seq.Tenant, seq.PromptTokens-seq.Answered, seq.Answered+seq.generated)
	}
}

// paused marks a sequence whose growth was denied.
func (s *Scheduler) paused(e *Event) error {
	seq := s.byID[e.ID]
	switch {
	case seq == nil: // it ended meanwhile
		return nil
	case seq.state != Running || seq.promising == seq.promised:
		return fmt.Errorf("%w: growth of sequence %d denied, which did not ask for any", ErrUnexpected, e.ID)
	}
	seq.denied, seq.promising, seq.leaseWanted = true, seq.promised, seq.leased
	return nil
}

// starved returns the most urgent sequence that cannot grow, nil if there is none.
func (s *Scheduler) starved() *sequence {
	for _, seq := range s.running.seqs {
		if seq.denied && seq != s.leaving {
			return seq
		}
	}
	return nil
}
