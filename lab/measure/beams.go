package measure

import (
	"fmt"
	"time"

	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/compute/device"
	"github.com/millrace/millrace/compute/sample"
	"github.com/millrace/millrace/kvmgr"
)

// Beams is what Batch beam searches cost beside greedy decoding of one sequence for
// each. Their steps alternate, after the same prompts, so that both meet the same
// machine; each includes the choice of its tokens. Times are medians over steps.
type Beams struct {
	Beams      int     `json:"beams"`
	Batch      int     `json:"batch"`
	Prompt     int     `json:"prompt"`
	Gen        int     `json:"gen"`
	First      float64 `json:"first_token_seconds"` // of all searches: the prompts, and the first choice of each
	GreedyTPOT float64 `json:"greedy_tpot_seconds"`
	BeamTPOT   float64 `json:"beam_tpot_seconds"`
	Ratio      float64 `json:"ratio"`          // median over pairs of steps
	Choosing   float64 `json:"choose_seconds"` // of BeamTPOT, the searches themselves
	// KV cache at the end, in bytes: as allocated, and as equation (2) of the
	// paper has it, with the prompt copied for each beam.
	SegmentBytes  uint64 `json:"kv_segment_bytes"`
	StandardBytes uint64 `json:"kv_standard_bytes"`
}

// RunBeams measures repeat runs of batch beam searches, each with a prompt of its own.
func RunBeams(m *compute.Model, beams, batch, prompt, gen, repeat int) (Beams, error) {
	segments := kvmgr.Segments{Prompt: prompt, Response: gen, Beams: beams}
	need := kvmgr.SegmentSlabs(segments, device.SlabTokens)
	pool := BeamSlabs(segments, batch)
	if pool > m.Slabs() || prompt+gen > m.Program.MaxPositions {
		return Beams{},
			fmt.Errorf("measure: %w: %d searches of %d beams of %d tokens after %d need %d KV slabs of %d and a context of %d tokens, the model's is %d",
				device.ErrNoMemory, batch, beams, gen, prompt, pool, m.Slabs(), prompt+gen, m.Program.MaxPositions)
	}
	var first, greedy, beam, choose []time.Duration
	var ratio []float64
	for range max(repeat, 1) {
		b := &beamRun{m: m}
		err := b.run(segments, batch)
		b.close()
		if err != nil {
			return Beams{}, err
		}
		first, greedy, beam, choose = append(first, b.first), append(greedy, b.greedy...), append(beam, b.beam...),
			append(choose, b.choose...)
		for i := range b.beam {
			ratio = append(ratio, b.beam[i].Seconds()/b.greedy[i].Seconds())
		}
	}
	slab := m.Engine().Info().SlabBytes
	return Beams{
		Beams: beams, Batch: batch, Prompt: prompt, Gen: gen, First: median(first).Seconds(),
		GreedyTPOT: median(greedy).Seconds(), BeamTPOT: median(beam).Seconds(), Ratio: median(ratio),
		Choosing:      median(choose).Seconds(),
		SegmentBytes:  uint64(batch*need) * slab,
		StandardBytes: kvmgr.StandardBytes(segments, batch, slab/device.SlabTokens),
	}, nil
}

// BeamSlabs is the number of KV slabs that RunBeams needs: those of the searches, and of a greedy sequence after each prompt.
func BeamSlabs(s kvmgr.Segments, batch int) int {
	return batch * (device.Slabs(s.Prompt+s.Response) + s.Beams*device.Slabs(s.Response))
}

// beamRun is some prompts, each followed by a greedy sequence and a beam search.
type beamRun struct {
	m        *compute.Model
	searches []search
	next     int // slab

	first                time.Duration
	greedy, beam, choose []time.Duration // per step
}

// search is a beam search and a greedy sequence. Both share the prompt's region: the greedy sequence
// continues in it, each beam has a region of its own.
type search struct {
	*sample.Beam
	region    compute.Region
	responses []compute.Region
	token     []int32 // the last one of the greedy sequence
}

func (b *beamRun) run(s kvmgr.Segments, batch int) error {
	for range batch {
		if err := b.open(s); err != nil {
			return err
		}
	}
	begin := time.Now()
	for i := range b.searches {
		if err := b.prefill(&b.searches[i], s); err != nil {
			return err
		}
	}
	b.first = time.Since(begin)
	return b.decode(s)
}

// open adds a search, without keys and values.
func (b *beamRun) open(s kvmgr.Segments) error {
	b.searches = append(b.searches, search{token: randomTokens(b.m, 1)})
	to := &b.searches[len(b.searches)-1]
	region := func(tokens int) (*device.Region, error) {
		at := b.next
		b.next += device.Slabs(tokens)
		return b.m.Engine().NewRegionAt(at, tokens)
	}
	r, err := region(s.Prompt + s.Response)
	if err != nil {
		return err
	}
	to.region = r
	for range s.Beams {
		r, err := region(s.Response)
		if err != nil {
			return err
		}
		to.responses = append(to.responses, r)
	}
	to.Beam, err = sample.NewBeam(sample.BeamParams{Width: s.Beams, LengthPenalty: 1}, b.m.Vocab(), s.Response+2, nil)
	return err
}

// prefill computes the prompt of a search, and makes its first choice.
func (b *beamRun) prefill(to *search, s kvmgr.Segments) error {
	if err := prefillOne(b.m, to.region, 0, s.Prompt-1); err != nil {
		return err
	}
	logits, err := b.m.Run([]compute.Rows{{Region: to.region, Tokens: randomTokens(b.m, 1), Position: s.Prompt - 1, Output: true}})
	if err != nil {
		return err
	}
	return to.Advance(logits.Row)
}

func (b *beamRun) decode(s kvmgr.Segments) error {
	sampler, scratch := sample.New(sample.Params{}, b.m.Vocab(), nil), &sample.Scratch{}
	greedy, beams := make([]compute.Rows, len(b.searches)), make([]compute.Rows, len(b.searches))
	for i := range s.Response {
		for k := range b.searches {
			one := &b.searches[k]
			greedy[k] = compute.Rows{Region: one.region, Tokens: one.token, Position: s.Prompt + i, Output: true}
			beams[k] = compute.Rows{
				Region: one.region, Tokens: one.Tokens(), Position: s.Prompt + i, Output: true,
				Beams: &compute.Beams{Prompt: s.Prompt, Responses: one.responses, Index: one.Index()},
			}
		}
		begin := time.Now()
		logits, err := b.m.Run(greedy)
		if err != nil {
			return err
		}
		for k := range b.searches {
			choice, err := sampler.Sample(logits.Row(k), s.Prompt+i, scratch)
			if err != nil {
				return err
			}
			b.searches[k].token[0] = choice.Token
		}
		b.greedy = append(b.greedy, time.Since(begin))

		begin = time.Now()
		if logits, err = b.m.Run(beams); err != nil {
			return err
		}
		ran := time.Now()
		for k := range b.searches {
			if err := b.searches[k].Advance(func(row int) []float32 { return logits.Row(k*s.Beams + row) }); err != nil {
				return err
			}
		}
		b.beam = append(b.beam, time.Since(begin))
		b.choose = append(b.choose, time.Since(ran))
	}
	return nil
}

func (b *beamRun) close() {
	for i := range b.searches {
		if r := b.searches[i].region; r != nil {
			r.Close()
		}
		for _, r := range b.searches[i].responses {
			r.Close()
		}
	}
}
