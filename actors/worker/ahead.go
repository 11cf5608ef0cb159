package worker

import (
	"slices"
	"time"

	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/compute/sample"
	"github.com/millrace/millrace/compute/sched"
)

// flight is a step in the air: the device has it, and its tokens are not known. The next step is planned and started meanwhile, from
// tokens that lie on the device, as if each output had a token that ends nothing. One that does end its sequence costs a row of the next
// step. The sequences' KV changes hands only when no step is in the air.
type flight struct {
	Step
	chunks  []flown
	outputs []output
	tokens  []int32 // of the outputs, once the device has said them
	said    bool
}

// flown is a sequence up to a position.
type flown struct {
	seq *sequence
	end int
}

// mayStart reports whether a plan's step may be in the air while the next one is planned: the device draws all of its tokens, whatever
// those before them are, the next step has no draft tokens, and a row too many does no harm. It leaves the draws in l.draws.
func (l *loop) mayStart(plan *sched.Plan) bool {
	if l.ahead == nil || !l.Sched.KV.Rollback || l.Drafter != nil || plan.Outputs > 0 && plan.Outputs < l.Sched.DraftRows {
		return false
	}
	l.draws = l.draws[:0]
	for i := range plan.Chunks {
		c := &plan.Chunks[i]
		s := l.sequences[c.ID]
		if c.Drafts > 0 || c.Scored || s.beams != nil || s.pool != nil || s.guide != nil {
			return false
		}
		if c.Output {
			d, ok := s.sampler.DrawAhead(c.Start + c.Rows)
			if !ok {
				return false
			}
			d.Row = len(l.draws)
			l.draws = append(l.draws, d)
		}
	}
	return true
}

// touches reports whether a plan's effects give up KV that a step in the air reads or writes, or need the tokens that it draws.
func touches(plan *sched.Plan) bool {
	return len(plan.Ended)+len(plan.Release)+len(plan.Spill)+len(plan.Restore) > 0 ||
		slices.ContainsFunc(plan.Lease, func(e sched.Lease) bool { return e.From > 0 })
}

// startStep starts the plan's rows, and ends the step before, whose tokens they may have.
func (l *loop) startStep(plan *sched.Plan) error {
	last, f := l.flight, &l.flights[0]
	if f == last {
		f = &l.flights[1]
	}
	f.Step = Step{At: time.Now(), Sequences: len(plan.Chunks), DecodeRows: plan.DecodeRows, PromptRows: plan.PromptRows}
	f.chunks, f.outputs, f.said = f.chunks[:0], f.outputs[:0], false
	l.batch = l.batch[:0]
	for i := range plan.Chunks {
		c := &plan.Chunks[i]
		s := l.sequences[c.ID]
		l.noteBegin(s, c, f.At)
		l.batch = append(l.batch, s.rows(c))
		f.chunks = append(f.chunks, flown{s, c.Start + c.Rows})
		if c.Output {
			f.outputs = append(f.outputs, output{id: c.ID, seq: s, assumed: true})
		}
	}
	if !slices.ContainsFunc(l.draws, func(d sample.Draw) bool { return !d.Greedy() }) {
		l.draws = l.draws[:0]
	}
	if err := l.ahead.Start(l.batch, l.draws); err != nil {
		return err
	}
	l.flight = f
	if last != nil {
		if err := l.endStep(last, f); err != nil {
			return err
		}
	}
	for i := range f.outputs {
		if s := f.outputs[i].seq; !s.endIsSent {
			s.flying[0] = compute.Drawn(i)
			l.events = append(l.events, sched.Sampled(s.id()))
		}
	}
	if f.said { // a step was run since: its tokens do not lie on the device any more
		return l.land()
	}
	return nil
}

// land ends the step in the air, if there is one.
func (l *loop) land() error {
	f := l.flight
	if f == nil {
		return nil
	}
	l.flight = nil
	return l.endStep(f, nil)
}

// endStep waits for a step, and sends its tokens on. next was started after it, or is nil.
func (l *loop) endStep(f, next *flight) error {
	if err := l.await(f); err != nil {
		return err
	}
	f.At = latest(f.At, l.landed)
	l.landed = time.Now()
	f.Took = l.landed.Sub(f.At)
	for i := range f.outputs {
		o := &f.outputs[i]
		s := o.seq
		if s.endIsSent { // a row too many
			continue
		}
		if f.tokens[i] < 0 {
			if err := l.drawAgain(o, next); err != nil {
				return err
			}
		} else {
			s.choices, s.next = append(s.choices[:0], sample.Choice{Token: f.tokens[i]}), s.next[:0]
			s.sampler.Accept(f.tokens[i])
		}
		l.accept(o, 0)
		s.flying[0] = s.tokens[len(s.tokens)-1] // of a row that is planned, and that nobody wants if there is no new token
	}
	for _, c := range f.chunks {
		l.noteComputed(c.seq, c.end)
	}
	f.Sampling = time.Since(l.landed)
	l.noteStep(f.Step)
	return nil
}

func latest(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

// await waits until the device has said the tokens of a step.
func (l *loop) await(f *flight) error {
	if f.said {
		return nil
	}
	f.tokens = slices.Grow(f.tokens[:0], len(f.outputs))[:len(f.outputs)]
	f.said = true
	return l.ahead.Drawn(f.tokens)
}

// drawAgain samples an output whose token the device does not say, from a row of its own: nobody can read the logits of its step. The row
// of its sequence in the next step had no token then, and is computed again, too.
func (l *loop) drawAgain(o *output, next *flight) error {
	s, known := o.seq, len(o.seq.tokens)
	if next != nil {
		if err := l.await(next); err != nil {
			return err
		}
		if i := slices.IndexFunc(next.outputs, func(n output) bool { return n.seq == s }); i >= 0 {
			next.tokens[i] = -1
		}
	}
	logits, err := l.Runner.Run([]compute.Rows{{Region: s.region, Tokens: s.tokens[known-1:], Position: known - 1, Output: true}})
	if err != nil {
		return err
	}
	l.logits.Logits, l.logits.drawn = logits, l.logits.drawn[:0]
	o.err = s.sample(l.logits, &output{seq: s}, &l.samplers[0].scratch)
	return nil
}
