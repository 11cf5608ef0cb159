package worker

import (
	"github.com/millrace/millrace/actors/msg"
	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/compute/sample"
	"github.com/millrace/millrace/compute/sched"
)

// beams are a sequence's beam search and the response segments of its KV cache.
type beams struct {
	search *sample.Beam
	rows   compute.Beams // of the next step
	slabs  int           // positions that are mapped, prompt and responses together
}

func newBeams(g *msg.Generate, vocab int) (*beams, error) {
	search, err := sample.NewBeam(*g.Beams, vocab, g.MaxTokens, g.StopTokens)
	if err != nil {
		return nil, api.InvalidParam(err)
	}
	return &beams{search: search, rows: compute.Beams{Prompt: len(g.Prompt)}}, nil
}

// open reserves addresses for the response of each beam.
func (b *beams) open(r compute.Runner, tokens int) error {
	for range b.search.Width() {
		region, err := r.NewRegion(tokens)
		if err != nil {
			return err
		}
		b.rows.Responses = append(b.rows.Responses, region)
	}
	return nil
}

func (b *beams) close() {
	for _, r := range b.rows.Responses {
		r.Close()
	}
	b.rows.Responses = nil
}

// mapSlabs maps leased slabs in the order of kvmgr.Segments: those of the prompt,
// then those of one position for each beam in turn. A position has a slab of each group of layers.
func (b *beams) mapSlabs(prompt compute.Region, slabs []int32, groups, slabTokens int) error {
	shared := (b.rows.Prompt + slabTokens - 1) / slabTokens
	for ; len(slabs) > 0; slabs = slabs[groups:] {
		region := prompt
		if own := b.slabs - shared; own >= 0 {
			region = b.rows.Responses[own%len(b.rows.Responses)]
		}
		if err := region.Append(slabs[:groups]); err != nil {
			return err
		}
		b.slabs++
	}
	return nil
}

// backed returns the tokens of each beam that the slabs of some positions hold, in the order of mapSlabs.
func (b *beams) backed(slabs, slabTokens int) int {
	shared := (b.rows.Prompt + slabTokens - 1) / slabTokens
	if slabs <= shared {
		return min(slabs*slabTokens, b.rows.Prompt)
	}
	return b.rows.Prompt + (slabs-shared)/len(b.rows.Responses)*slabTokens
}

// next are the rows of the next step, one for each beam.
func (b *beams) next(prompt compute.Region, position int) compute.Rows {
	b.rows.Index = b.search.Index()
	return compute.Rows{Region: prompt, Tokens: b.search.Tokens(), Position: position, Output: true, Beams: &b.rows}
}

// acceptBeams continues with the next step or, when the search is over, sends
// the answers: the text of a beam search comes at its end.
func (l *loop) acceptBeams(o *output) {
	s := o.seq
	l.generated.Add(uint64(s.gen.Beams.Width))
	if !s.beams.search.Done() {
		l.events = append(l.events, sched.Sampled(o.id))
		return
	}
	for i, h := range s.beams.search.Results(len(s.gen.Choices)) {
		for n, id := range h.Tokens {
			t := msg.Token{Seq: s.gen.Choices[i], ID: id, Index: n, Cached: s.cached}
			if n == len(h.Tokens)-1 {
				t.Finish, t.Stopped = api.FinishLength, h.Ended
				if h.Ended {
					t.Finish = api.FinishStop
				}
			}
			l.outbox.add(s.gen.Detok, t)
		}
	}
	l.ended(s, api.FinishStop, nil)
	l.events = append(l.events, sched.Finished(o.id, sched.ReasonStop))
}
