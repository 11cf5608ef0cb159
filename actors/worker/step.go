package worker

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

// step runs the plan's rows and samples its outputs, or starts them.
func (l *loop) step(plan *sched.Plan) error {
	if l.mayStart(plan) {
		return l.startStep(plan)
	}
	if err := l.land(); err != nil {
		return err
	}
	begin := time.Now()
	l.batch, l.outputs, l.pools, l.drafting = l.batch[:0], l.outputs[:0], l.pools[:0], l.drafting[:0]
	row := 0 // of the logits
	drafts := 0
	for _, c := range plan.Chunks {
		drafts += c.Drafts
		s := l.sequences[c.ID]
		l.noteBegin(s, &c, begin)
		rows := s.rows(&c)
		if rows.Hidden > 0 {
			l.pools = append(l.pools, pooled{seq: s, rows: rows, last: c.Output})
			continue
		}
		if c.Scored {
			for i := range c.Rows {
				if at := c.Start + i + 1; at < len(s.gen.Prompt) {
					l.outputs = append(l.outputs, output{id: c.ID, seq: s, row: row + i, scores: at})
				}
			}
		}
		if c.Output {
			first := row
			if c.Scored {
				first += c.Rows - 1
			}
			l.outputs = append(l.outputs, output{id: c.ID, seq: s, row: first, drafts: c.Drafts, forced: c.Forced})
		}
		row += rows.Outputs()
		l.batch = append(l.batch, rows)
	}
	for i := range l.pools { // after all others
		l.batch = append(l.batch, l.pools[i].rows)
	}
	logits, err := l.Runner.Run(l.batch)
	if err != nil {
		return err
	}
	l.logits.Logits = logits
	l.readPools()
	computed := time.Now()
	l.awaitMasks()
	if err := l.drawOnDevice(); err != nil {
		return err
	}
	l.sampleAll()
	sampling := time.Since(computed)
	free := l.Sched.DraftRows - len(l.outputs)
	if l.Drafter != nil {
		free = l.freeEach(plan, free)
	}
	for i := range l.outputs {
		if o := &l.outputs[i]; !o.late {
			l.accept(o, free)
		}
	}
	if err := l.draft(); err != nil {
		return err
	}
	for _, c := range plan.Chunks {
		l.noteComputed(l.sequences[c.ID], c.Start+c.Rows)
	}
	l.noteStep(Step{At: begin, Took: time.Since(begin), Sampling: sampling, Sequences: len(plan.Chunks), DecodeRows: plan.DecodeRows,
		DraftRows: drafts, PromptRows: plan.PromptRows})
	return nil
}

// noteBegin notes a chunk of a sequence, if it is the first one.
func (l *loop) noteBegin(s *sequence, c *sched.Chunk, at time.Time) {
	if s.started {
		return
	}
	s.started, s.cached = true, int32(c.Start)
	s.entry.spans.next(spanPrefill)
	l.Metrics.Prefix(len(s.tokens), c.Start)
	if len(s.gen.Generated) > 0 {
		l.Metrics.Recomputed(len(s.tokens)-1-c.Start, s.entry.adopted)
	}
	l.Root.Send(s.gen.Reply, &msg.Started{At: at})
}

// noteComputed notes that a step has computed a sequence up to a position.
func (l *loop) noteComputed(s *sequence, end int) {
	s.entry.computed.Store(int64(end))
	s.stands = end
	l.commit(s, end)
}

// noteStep notes a step that has ended.
func (l *loop) noteStep(s Step) {
	l.took = s.Took
	l.Metrics.Step(s.Took, s.Sampling, s.DecodeRows, s.PromptRows)
	l.recent.add(s)
	l.progress.Store(time.Now().UnixNano())
	l.steps.Add(1)
}

// commit offers the slabs that a step up to a position has filled to other sequences, and at the end of the prompt
// the tokens of the last one.
func (l *loop) commit(s *sequence, end int) {
	if l.Encoder { // keys and values depend on the whole text
		return
	}
	slab, prompt := l.Sched.KV.SlabTokens, len(s.gen.Prompt)+len(s.gen.Generated)
	switch {
	case s.beams != nil, s.pool != nil: // each beam has an answer of its own; a vector has none
		end = min(end, prompt)
	case s.postponed != nil: // the token after the known ones is drawn later
		end = min(end, len(s.tokens))
	default: // the last token is known, and its keys and values are not there yet; those of rejected draft tokens are written again
		end = min(end, len(s.tokens)-1)
	}
	tail := s.committed < prompt && end >= prompt
	if tail || end/slab > s.committed/slab {
		s.committed = end
		l.offer(s, end, tail)
	}
}

// rows are those of a chunk.
func (s *sequence) rows(c *sched.Chunk) compute.Rows {
	if c.Beams > 0 {
		return s.beams.next(s.region, c.Start)
	}
	known := len(s.tokens)
	if c.Start == known { // the step before draws the token
		return compute.Rows{Region: s.region, Tokens: s.flying[:], Position: c.Start, Output: c.Output}
	}
	s.tokens = append(s.tokens, s.draft[:c.Drafts]...)
	rows := compute.Rows{
		Region: s.region, Tokens: s.tokens[c.Start : c.Start+c.Rows], Position: c.Start, Output: c.Output, Drafts: c.Drafts - c.Forced,
		Second: s.gen.Second,
	}
	s.tokens = s.tokens[:known]
	if c.Scored { // the rows before the last one have outputs as draft tokens do
		rows.Output, rows.Drafts = true, c.Rows-1
	}
	if s.pool != nil {
		s.pool.ask(&rows)
	}
	return rows
}

// parallelLogits is the work, in logits, from which sampling is split over
// goroutines: below, starting them costs more than it gains.
const parallelLogits = 1 << 16

// sampleAll draws a token from each output. A draw depends on its own row
// only, so the split does not matter.
func (l *loop) sampleAll() {
	l.stride = min(len(l.outputs), len(l.samplers))
	if len(l.outputs)*l.Runner.Vocab() < parallelLogits || l.stride < 2 {
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

func (s *sampler) sample(outputs []output, rows stepRows, stride int) {
	for i := s.first; i < len(outputs); i += stride {
		o := &outputs[i]
		if o.late {
			continue
		}
		if b := o.seq.beams; b != nil {
			o.err = b.search.Advance(func(i int) []float32 { return rows.Row(o.row + i) })
			continue
		}
		if o.scores > 0 {
			o.err = o.seq.score(rows.Row(o.row), o.scores)
			continue
		}
		if o.seq.pool != nil {
			o.err = o.seq.pool.logits(rows.Row(o.row))
			continue
		}
		o.err = o.seq.sample(rows, o, &s.scratch)
	}
}

// sample takes the forced tokens of an output, and draws a token from its row and, as long as it is the draft token,
// from the row of the draft token: each as if the ones before it had been steps of their own.
func (s *sequence) sample(rows stepRows, o *output, scratch *sample.Scratch) error {
	s.choices = s.choices[:0]
	for _, token := range s.draft[:min(s.forced, o.forced+1)] { // one more is forced if not all of them were in the step
		s.choices = append(s.choices, sample.Choice{Token: token})
		s.sampler.Accept(token)
	}
	for i := o.forced; s.forced <= o.forced; i++ {
		var mask []uint32
		if s.guide != nil {
			var err error
			if mask, err = s.guide.mask(i); err != nil {
				return err
			}
		}
		c, err := s.draw(rows, o.row+i-o.forced, mask, len(s.tokens)+i, scratch)
		if err != nil {
			return err
		}
		s.choices = append(s.choices, c)
		s.sampler.Accept(c.Token)
		if i == o.drafts || c.Token != s.draft[i] {
			break
		}
	}
	s.next = s.next[:0]
	if s.guide == nil {
		return nil
	}
	err := s.guide.take(len(s.choices), s.choices[len(s.choices)-1].Token)
	if left := s.gen.MaxTokens - s.generated() - len(s.choices); err == nil && !s.gen.Sampling.Logprobs {
		s.next, err = s.guide.forced(s.next, min(left, mostForced))
	}
	return err
}

// accept appends the tokens of an output to its sequence, sends them on and notifies the
// scheduler. With free rows in the next step it makes draft tokens, or leaves that to draft.
func (l *loop) accept(o *output, free int) {
	s := o.seq
	if s.endIsSent { // an output before it failed
		return
	}
	if o.err != nil {
		l.end(s, api.FinishError, l.failure(s, o.err))
		l.events = append(l.events, sched.Finished(o.id, sched.ReasonError))
		return
	}
	if o.scores > 0 {
		return
	}
	if s.pool != nil {
		l.endPool(s)
		return
	}
	if !s.decodes {
		s.decodes = true
		s.entry.spans.next(spanDecode)
	}
	if s.beams != nil {
		l.acceptBeams(o)
		return
	}
	l.generated.Add(uint64(len(s.choices)))
	l.Metrics.Drafted(o.drafts-o.forced, max(len(s.choices)-1-o.forced, 0))
	for i := range s.choices {
		finish := l.send(s, &s.choices[i])
		if finish == api.FinishStop {
			l.events = append(l.events, sched.Finished(o.id, sched.ReasonStop))
			return
		}
		if finish == api.FinishLength {
			if !o.assumed {
				l.events = append(l.events, sched.Accepted(o.id, i+1, 0)) // the scheduler ends it at its limit
			}
			return
		}
	}
	s.entry.generated.Store(int64(s.generated()))
	s.drafter.Learn(o.drafts-o.forced, max(len(s.choices)-1-o.forced, 0))
	s.draft, s.forced = append(s.draft[:0], s.next...), len(s.next)
	if o.assumed {
		return
	}
	if free > 0 && s.forced == 0 {
		if l.Drafter != nil {
			if o.wanted = s.drafter.Length(min(free, s.mayWrite())); o.wanted > 0 {
				l.drafting = append(l.drafting, o)
				return
			}
		} else {
			s.draft = append(s.draft, s.drafter.Draft(s.tokens, free)...)
		}
	}
	l.accepted(o)
}

// accepted notifies the scheduler of an output whose sequence has its draft tokens.
func (l *loop) accepted(o *output) {
	s := o.seq
	if s.guide != nil {
		s.guide.compute(s.draft, s.forced)
	}
	l.events = append(l.events, sched.Forced(o.id, len(s.choices), len(s.draft), s.forced))
}

// send appends a token to its sequence and sends it on; whether it is the last one, and why.
func (l *loop) send(s *sequence, c *sample.Choice) api.Finish {
	s.tokens = append(s.tokens, c.Token)
	generated := s.generated()
	t := msg.Token{
		Seq: s.gen.Seq, ID: c.Token, Index: generated - 1, Cached: s.cached, Logprob: c.Logprob, Top: c.Top,
		Stopped: slices.Contains(s.gen.StopTokens, c.Token),
	}
	s.addScores(&t)
	if s.gen.Sampling.Logprobs {
		s.scores.keep(score{c.Logprob, c.Top})
	}
	switch {
	case t.Stopped:
		t.Finish = api.FinishStop
	case generated == s.gen.MaxTokens:
		t.Finish = api.FinishLength
	}
	l.outbox.add(s.gen.Detok, t)
	if t.Finish != api.FinishNone {
		l.ended(s, t.Finish, nil)
	}
	return t.Finish
}

// outbox gathers tokens by detokenizer, so that each gets one message a step.
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

// flush sends the gathered tokens.
func (o *outbox) flush(c *Config) {
	for i, b := range o.batch {
		c.sendTokens(o.to[i], b)
	}
	clear(o.batch)
	o.to, o.batch = o.to[:0], o.batch[:0]
}

// sendTokens sends tokens to a detokenizer. Those for another process are counted there.
func (c *Config) sendTokens(to *actor.PID, m *msg.Tokens) {
	if to.Address == c.Node {
		c.Detok.Enqueued()
	}
	c.Root.Send(to, m)
}
