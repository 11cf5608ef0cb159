package measure

import (
	"fmt"
	"slices"

	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/compute/device"
)

// sequences are equal requests in the KV cache: a prompt, followed by one response, or by one for
// each beam.
type sequences struct {
	model            *compute.Model
	prompt, response int // tokens
	shared           int // tokens whose slabs are those of the first request; 0 with beams
	next             int // physical slab
	requests         []request
}

type request struct {
	region *device.Region   // of the prompt; without beams of the response too
	first  int              // physical slab of it
	beams  []compute.Region // of the responses; nil: no beams
}

func newSequences(m *compute.Model, batch, beams, prompt, response, shared int) (*sequences, error) {
	need := batch*regionSlabs(m, prompt+response) - (batch-1)*device.Slabs(shared)
	if beams > 1 {
		need = batch * (device.Slabs(prompt) + beams*device.Slabs(response))
	}
	if need > m.Slabs() || prompt+response > m.Program.MaxPositions {
		return nil,
			fmt.Errorf("measure: %w: %d requests of %d beams, %d + %d tokens need %d KV slabs of %d and a context of %d tokens, the model's is %d",
				device.ErrNoMemory, batch, beams, prompt, response, need, m.Slabs(), prompt+response, m.Program.MaxPositions)
	}
	s := &sequences{model: m, prompt: prompt, response: response, shared: shared}
	for range batch {
		if err := s.add(beams); err != nil {
			s.close()
			return nil, err
		}
	}
	return s, nil
}

func (s *sequences) add(beams int) (err error) {
	s.requests = append(s.requests, request{first: s.next})
	r := &s.requests[len(s.requests)-1]
	if beams == 1 {
		r.region, err = s.open(s.prompt + s.response)
		return err
	}
	if r.region, err = s.open(s.prompt); err != nil {
		return err
	}
	for range beams {
		response, err := s.open(s.response)
		if err != nil {
			return err
		}
		r.beams = append(r.beams, response)
	}
	return nil
}

// open maps the shared slabs, after the first request, and the next ones to a region.
func (s *sequences) open(tokens int) (*device.Region, error) {
	shared := 0
	if s.next > 0 {
		shared = device.Slabs(s.shared)
	}
	slabs := make([]int32, regionSlabs(s.model, tokens))
	for i := range slabs {
		slabs[i] = int32(s.next + i - shared)
		if i < shared {
			slabs[i] = int32(i)
		}
	}
	s.next += len(slabs) - shared
	r, err := s.model.Engine().NewRegion(tokens)
	if err != nil {
		return nil, err
	}
	if err := r.Append(slabs); err != nil {
		r.Close()
		return nil, err
	}
	return r, nil
}

// regionSlabs is the number of slabs of a region for some tokens, those of a state counted.
func regionSlabs(m *compute.Model, tokens int) int { return m.KV().Head() + device.Slabs(tokens) }

// fill prefills the first prompt and copies it to the others.
func (s *sequences) fill() error {
	if err := prefillOne(s.model, s.requests[0].region, 0, s.prompt); err != nil {
		return err
	}
	for _, r := range s.requests[1:] {
		for i := range regionSlabs(s.model, s.prompt) {
			if err := s.model.Engine().CopySlab(int32(i), int32(r.first+i), device.SlabTokens); err != nil {
				return err
			}
		}
	}
	return nil
}

// texts are the whole prompts of the requests [begin, end).
func (s *sequences) texts(begin, end int) []compute.Rows {
	rows := make([]compute.Rows, 0, end-begin)
	for _, r := range s.requests[begin:end] {
		rows = append(rows, compute.Rows{Region: r.region, Tokens: randomTokens(s.model, s.prompt), Output: true})
	}
	return rows
}

// decode is the last token of each response. Each beam's past is its own.
func (s *sequences) decode() []compute.Rows {
	rows := make([]compute.Rows, len(s.requests))
	for i, r := range s.requests {
		rows[i] = compute.Rows{
			Region: r.region, Tokens: randomTokens(s.model, max(len(r.beams), 1)),
			Position: s.prompt + s.response - 1, Output: true,
		}
		if r.beams == nil {
			continue
		}
		beams := &compute.Beams{Prompt: s.prompt, Responses: r.beams}
		for b := range r.beams {
			beams.Index = append(beams.Index, slices.Repeat([]int32{int32(b)}, s.response-1))
		}
		rows[i].Beams = beams
	}
	return rows
}

func (s *sequences) close() {
	for _, r := range s.requests {
		if r.region != nil {
			r.region.Close()
		}
		for _, b := range r.beams {
			b.Close()
		}
	}
}
