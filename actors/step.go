package actors

import (
	"slices"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/millrace/millrace/actors/msg"
	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/compute/sample"
	"github.com/millrace/millrace/compute/sched"
)

// step runs the plan's rows and samples its outputs.
func (l *loop) step(plan *sched.Plan) error {
	begin := time.Now()
	l.batch, l.outputs = l.batch[:0], l.outputs[:0]
	row := 0 // of the logits
	for _, c := range plan.Chunks {
		s := l.sequences[c.ID]
		if !s.started {
			s.started = true
			s.account.spans.next(spanPrefill)
			l.p.system.Root.Send(s.gen.Reply, &msg.Started{At: begin})
		}
		if c.Beams > 0 {
			l.batch = append(l.batch, s.beams.next(s.region, c.Start))
		} else {
			l.batch = append(l.batch, compute.Rows{
				Region: s.region, Tokens: s.tokens[c.Start : c.Start+c.Rows], Position: c.Start, Output: c.Output,
			})
		}
		if c.Output {
			l.outputs = append(l.outputs, output{id: c.ID, seq: s, row: row})
			row += max(1, c.Beams)
		}
	}
	logits, err := l.runner.Run(l.batch)
	if err != nil {
		return err
	}
	l.logits = logits
	l.sampleAll()
	for i := range l.outputs {
		l.accept(&l.outputs[i])
	}
	took := time.Since(begin)
	l.p.metrics.Step(took, plan.DecodeRows, plan.PromptRows)
	l.progress.Store(time.Now().UnixNano())
	l.steps.Add(1)
	return nil
}

// parallelLogits is the work, in logits, from which sampling is split over
// goroutines: below, starting them costs more than it gains.
const parallelLogits = 1 << 16

// sampleAll draws a token from each output. A draw depends on its own row
// only, so the split does not matter.
func (l *loop) sampleAll() {
	l.stride = min(len(l.outputs), len(l.samplers))
	if len(l.outputs)*l.runner.Vocab() < parallelLogits || l.stride < 2 {
		l.stride = 1
	}
	for _, s := range l.samplers[:l.stride] {
		l.sampling.Add(1)
		if s.first > 0 {
			go s.begin()
		}
	}
	l.samplers[0].begin()
	l.sampling.Wait()
}

// sampler draws the outputs first, first + the loop's stride, ... of a step.
type sampler struct {
	first   int
	scratch sample.Scratch
	begin   func() // kept, so that no step allocates it
}

func (l *loop) newSampler(first int) *sampler {
	s := &sampler{first: first}
	s.begin = func() {
		defer l.sampling.Done()
		s.sample(l.outputs, l.logits, l.stride)
	}
	return s
}

func (s *sampler) sample(outputs []output, logits compute.Logits, stride int) {
	for i := s.first; i < len(outputs); i += stride {
		o := &outputs[i]
		if b := o.seq.beams; b != nil {
			o.err = b.search.Advance(func(i int) []float32 { return logits.Row(o.row + i) })
			continue
		}
		o.choice, o.err = o.seq.sampler.Sample(logits.Row(o.row), len(o.seq.tokens), &s.scratch)
	}
}

// accept appends a sampled token to its sequence, sends it on and tells the
// scheduler.
func (l *loop) accept(o *output) {
	s := o.seq
	if o.err != nil {
		l.end(s, api.FinishError, &api.Error{Code: api.CodeInternal, Message: o.err.Error()})
		l.events = append(l.events, sched.Finished(o.id, sched.ReasonError))
		return
	}
	if !s.decodes {
		s.decodes = true
		s.account.spans.next(spanDecode)
	}
	if s.beams != nil {
		l.acceptBeams(o)
		return
	}
	id := o.choice.Token
	s.sampler.Accept(id)
	s.tokens = append(s.tokens, id)
	generated := s.generated()
	t := msg.Token{
		Seq: s.gen.Seq, ID: id, Index: generated - 1, Logprob: o.choice.Logprob, Top: o.choice.Top,
		Stopped: slices.Contains(s.gen.StopTokens, id),
	}
	switch {
	case t.Stopped:
		t.Finish = api.FinishStop
		l.events = append(l.events, sched.Finished(o.id, sched.ReasonStop))
	case generated == s.gen.MaxTokens:
		t.Finish = api.FinishLength
		fallthrough
	default:
		l.events = append(l.events, sched.Sampled(o.id)) // the scheduler ends it at its limit
	}
	l.outbox.add(s.gen.Detok, t)
	if t.Finish != api.FinishNone {
		l.ended(s, t.Finish, nil)
	} else {
		s.account.generated.Store(int64(generated))
	}
}

// outbox gathers tokens by detokeniser, so that each gets one message a step.
type outbox struct {
	to    []*actor.PID
	batch []*msg.Tokens
}

func (o *outbox) add(to *actor.PID, t msg.Token) {
	i := slices.IndexFunc(o.to, func(pid *actor.PID) bool { return pid == to || pid.Equal(to) })
	if i < 0 {
		i = len(o.to)
		o.to = append(o.to, to)
		o.batch = append(o.batch, msg.NewTokens())
	}
	o.batch[i].Tokens = append(o.batch[i].Tokens, t)
}

// flush sends what was gathered.
func (o *outbox) flush(p *Pipeline) {
	for i, b := range o.batch {
		p.countLocal(o.to[i], p.stages.detok)
		p.system.Root.Send(o.to[i], b)
	}
	clear(o.batch)
	o.to, o.batch = o.to[:0], o.batch[:0]
}
