package measure

import (
	"fmt"
	"slices"
	"time"

	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/compute/device"
	"github.com/millrace/millrace/compute/sample"
	"github.com/millrace/millrace/kvmgr"
)

// Beams is what a beam search costs beside greedy decoding of one sequence.
// Their steps alternate, after the same prompt, so that both meet the same
// machine; each includes the choice of its tokens. Times are medians over steps.
type Beams struct {
	Beams      int     `json:"beams"`
	Prompt     int     `json:"prompt"`
	Gen        int     `json:"gen"`
	GreedyTPOT float64 `json:"greedy_tpot_seconds"`
	BeamTPOT   float64 `json:"beam_tpot_seconds"`
	Ratio      float64 `json:"ratio"`          // median over pairs of steps
	Choosing   float64 `json:"choose_seconds"` // of BeamTPOT, the search itself
	// KV cache at the end, in bytes: as allocated, and as equation (2) of the
	// paper has it, with the prompt copied for each beam.
	SegmentBytes  uint64 `json:"kv_segment_bytes"`
	StandardBytes uint64 `json:"kv_standard_bytes"`
}

// RunBeams measures repeat beam searches.
func RunBeams(m *compute.Model, beams, prompt, gen, repeat int) (Beams, error) {
	segments := kvmgr.Segments{Prompt: prompt, Response: gen, Beams: beams}
	need := kvmgr.SegmentSlabs(segments, device.SlabTokens)
	pool := device.Slabs(prompt+gen) + beams*device.Slabs(gen)
	if pool > m.Slabs() || prompt+gen > m.Program.MaxPositions {
		return Beams{}, fmt.Errorf("measure: %w: %d beams of %d tokens after %d need %d KV slabs of %d and a context of %d tokens, the model's is %d",
			device.ErrNoMemory, beams, gen, prompt, pool, m.Slabs(), prompt+gen, m.Program.MaxPositions)
	}
	var greedy, beam, choose []time.Duration
	var ratio []float64
	for range max(repeat, 1) {
		b := &beamRun{m: m, prompt: prompt}
		err := b.run(segments)
		b.close()
		if err != nil {
			return Beams{}, err
		}
		greedy, beam, choose = append(greedy, b.greedy...), append(beam, b.beam...), append(choose, b.choose...)
		for i := range b.beam {
			ratio = append(ratio, b.beam[i].Seconds()/b.greedy[i].Seconds())
		}
	}
	slices.Sort(ratio)
	slab := m.Engine().Info().SlabBytes
	return Beams{
		Beams: beams, Prompt: prompt, Gen: gen,
		GreedyTPOT: median(greedy).Seconds(), BeamTPOT: median(beam).Seconds(), Ratio: ratio[len(ratio)/2],
		Choosing:      median(choose).Seconds(),
		SegmentBytes:  uint64(need) * slab,
		StandardBytes: kvmgr.StandardBytes(segments, 1, slab/device.SlabTokens),
	}, nil
}

// beamRun is one prompt, followed by a greedy sequence and a beam search. Both share the
// prompt's region: the greedy sequence continues in it, each beam has a region of its own.
type beamRun struct {
	m         *compute.Model
	prompt    int
	region    compute.Region
	responses []compute.Region

	greedy, beam, choose []time.Duration // per step
}

func (b *beamRun) run(s kvmgr.Segments) (err error) {
	next := 0
	open := func(tokens int) (*device.Region, error) {
		first := next
		next += device.Slabs(tokens)
		return b.m.Engine().NewRegionAt(first, tokens)
	}
	region, err := open(s.Prompt + s.Response)
	if err != nil {
		return err
	}
	b.region = region
	for range s.Beams {
		r, err := open(s.Response)
		if err != nil {
			return err
		}
		b.responses = append(b.responses, r)
	}
	if err := prefillOne(b.m, b.region, 0, s.Prompt-1); err != nil {
		return err
	}
	logits, err := b.m.Run([]compute.Rows{{Region: b.region, Tokens: randomTokens(b.m, 1), Position: s.Prompt - 1, Output: true}})
	if err != nil {
		return err
	}
	search, err := sample.NewBeam(sample.BeamParams{Width: s.Beams, LengthPenalty: 1}, b.m.Vocab(), s.Response+2, nil)
	if err != nil {
		return err
	}
	if err := search.Advance(logits.Row); err != nil {
		return err
	}
	return b.decode(search, s)
}

func (b *beamRun) decode(search *sample.Beam, s kvmgr.Segments) error {
	sampler, scratch := sample.New(sample.Params{}, b.m.Vocab(), nil), &sample.Scratch{}
	token := randomTokens(b.m, 1)
	for i := range s.Response {
		begin := time.Now()
		logits, err := b.m.Run([]compute.Rows{{Region: b.region, Tokens: token, Position: s.Prompt + i, Output: true}})
		if err != nil {
			return err
		}
		choice, err := sampler.Sample(logits.Row(0), s.Prompt+i, scratch)
		if err != nil {
			return err
		}
		token[0] = choice.Token
		b.greedy = append(b.greedy, time.Since(begin))

		begin = time.Now()
		logits, err = b.m.Run([]compute.Rows{{
			Region: b.region, Tokens: search.Tokens(), Position: s.Prompt + i, Output: true,
			Beams: &compute.Beams{Prompt: s.Prompt, Responses: b.responses, Index: search.Index()},
		}})
		if err != nil {
			return err
		}
		ran := time.Since(begin)
		if err := search.Advance(logits.Row); err != nil {
			return err
		}
		b.beam = append(b.beam, time.Since(begin))
		b.choose = append(b.choose, time.Since(begin)-ran)
	}
	return nil
}

func (b *beamRun) close() {
	if b.region != nil {
		b.region.Close()
	}
	for _, r := range b.responses {
		r.Close()
	}
}
