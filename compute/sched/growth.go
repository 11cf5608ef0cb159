package sched

import "fmt"

// growth is the number of tokens that a sequence grows by, at least, when its answer exceeds the prediction. It requests them with
// its next lease, so fewer would save nothing, and more would keep slabs from others that may not be used.
const growth = 64

// promise returns the tokens to promise KV for when a sequence begins. Beams get all: each needs a slab at the same step.
func (s *Scheduler) promise(seq *sequence) int {
	if !s.cfg.Predict || seq.Beams > 0 {
		return seq.total()
	}
	left := s.answers.predict(seq.Tenant, seq.PromptTokens-seq.Answered) - seq.Answered
	return seq.PromptTokens + min(max(left, growth), seq.MaxNewTokens)
}

// learn notes the length of an answer that ends. An answer that its client or its deadline ended counts with the tokens that
// it had: the prediction is of the memory that requests use, whatever ends them. A failure says nothing of a request.
func (s *Scheduler) learn(seq *sequence, r Reason) {
	if s.cfg.Predict && seq.Beams == 0 && seq.generated > 0 && r != ReasonError {
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
		if seq.denied {
			return seq
		}
	}
	return nil
}
