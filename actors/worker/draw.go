package worker

import (
	"slices"

	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/compute/sample"
)

// stepRows are the rows of logits of a step, with the tokens that the device has drawn from them.
type stepRows struct {
	compute.Logits
	drawn []int32 // by row; below 0, or beyond the last: none
}

// drawOnDevice has a device that keeps its logits draw the tokens of the step that it can, in one call. Rows after a draft token, which
// may turn out to be another one, are drawn too.
func (l *loop) drawOnDevice() error {
	l.draws, l.logits.drawn = l.draws[:0], l.logits.drawn[:0]
	device, ok := l.logits.Logits.(compute.Draws)
	if !ok {
		return nil
	}
	for i := range l.outputs {
		if o := &l.outputs[i]; !o.late && o.scores == 0 && o.seq.beams == nil && o.seq.pool == nil {
			l.draws = o.seq.draws(l.draws, o)
		}
	}
	if len(l.draws) == 0 {
		return nil
	}
	l.tokens = slices.Grow(l.tokens[:0], len(l.draws))[:len(l.draws)]
	if err := device.Draw(l.draws, l.tokens); err != nil {
		return err
	}
	for i := range l.draws {
		row := l.draws[i].Row
		for len(l.logits.drawn) <= row {
			l.logits.drawn = append(l.logits.drawn, -1)
		}
		l.logits.drawn[row] = l.tokens[i]
	}
	return nil
}

// draws appends the draws of an output that need more of its rows than their largest logit.
func (s *sequence) draws(draws []sample.Draw, o *output) []sample.Draw {
	if s.forced > o.forced {
		return draws
	}
	for i := o.forced; i <= o.drafts; i++ {
		d, ok := s.sampler.Draw(len(s.tokens) + i)
		if !ok {
			break
		}
		if s.guide != nil {
			var err error
			if d.Mask, err = s.guide.mask(i); err != nil { // the draft token before it is not allowed, or sample returns the error
				break
			}
		}
		if d.Row = o.row + i - o.forced; !d.Greedy() {
			draws = append(draws, d)
		}
	}
	return draws
}

// draw draws the token at position from a row, which stays on the device if that has drawn the token, or said which logit is the largest.
func (s *sequence) draw(rows stepRows, row int, mask []uint32, position int, scratch *sample.Scratch) (sample.Choice, error) {
	if d, ok := s.sampler.Draw(position); ok {
		if row < len(rows.drawn) && rows.drawn[row] >= 0 {
			return sample.Choice{Token: rows.drawn[row]}, nil
		}
		if kept, ok := rows.Logits.(compute.Best); ok && mask == nil && d.Greedy() {
			if token, ok := kept.Best(row); ok {
				return sample.Choice{Token: token}, nil
			}
		}
	}
	return s.sampler.SampleMasked(rows.Row(row), mask, position, scratch)
}
