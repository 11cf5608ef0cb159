package worker

import (
	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/compute/sched"
)

// freeEach returns the draft tokens that each sequence of a step may have in the next one, of all free rows. Each costs a step of the first
// layers, so there are none after a step with prompts: the next one may have more of these, and then it has no draft tokens.
func (l *loop) freeEach(plan *sched.Plan, free int) int {
	if plan.PromptRows > 0 || len(l.outputs) == 0 || free <= 0 {
		return 0
	}
	return (free + len(l.outputs) - 1) / len(l.outputs)
}

// mayWrite returns the draft tokens that the first layers may make of a sequence: they keep the keys of the token before each, in slabs
// that are mapped. The last token of an answer needs no draft token.
func (s *sequence) mayWrite() int {
	return max(min(s.backed-len(s.tokens)+1, s.gen.MaxTokens-s.generated()-1), 0)
}

// draft makes draft tokens with the first layers, one of each sequence in a step of theirs. Each is drawn as the token at its position will
// be, so a sampled one is right as often as a greedy one, but for the penalties of the draft tokens before it.
func (l *loop) draft() error {
	for len(l.drafting) > 0 {
		l.batch = l.batch[:0]
		for _, o := range l.drafting {
			s := o.seq
			row := compute.Rows{Region: s.region, Tokens: s.tokens[len(s.tokens)-1:], Position: len(s.tokens) + len(s.draft) - 1,
				Output: true}
			if n := len(s.draft); n > 0 {
				row.Tokens = s.draft[n-1:]
			}
			l.batch = append(l.batch, row)
		}
		logits, err := l.Drafter.Draft(l.batch)
		if err != nil {
			return err
		}
		rest := l.drafting[:0]
		for i, o := range l.drafting {
			s := o.seq
			c, err := s.draw(stepRows{Logits: logits}, i, nil, len(s.tokens)+len(s.draft), &l.samplers[0].scratch)
			if err == nil {
				s.draft = append(s.draft, c.Token)
			}
			if err == nil && len(s.draft) < o.wanted { // without logits to draw from there are no more
				rest = append(rest, o)
			} else {
				l.accepted(o)
			}
		}
		l.drafting = rest
	}
	return nil
}
