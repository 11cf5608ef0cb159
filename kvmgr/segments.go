package kvmgr

import "fmt"

// Segments is the KV cache of a beam search (arXiv:2401.05391, section 3.2): the
// prompt's tokens once, and the response's for each beam, grown slab by slab.
//
// Its leases come in this order: the slabs of the prompt, then for each 16
// tokens of the response one slab for each beam.
type Segments struct {
	Prompt, Response int // tokens
	Beams            int
}

// ReserveSegments promises the slabs for a beam search, and leases those of the longest prefix of its prompt p that is computed.
// Without tokens it shares nothing, as after Reserve. Lease, Commit and Release take it as any other sequence; Lease counts the
// tokens of one beam, prompt included. Errors: as of ReservePrompt.
func (m *Manager) ReserveSegments(seq Seq, s Segments, p Prompt) (Hit, error) {
	if m.Has(seq) {
		return Hit{}, fmt.Errorf("%w: %d", ErrSequenceExists, seq)
	}
	if s.Prompt < 1 || s.Response < 1 || s.Beams < 1 {
		return Hit{}, fmt.Errorf("%w: reserve %+v, expected at least 1 of each", ErrInvalid, s)
	}
	if m.states != nil {
		return Hit{}, fmt.Errorf("%w: %d beams of a sequence that keeps %v, expected none", ErrInvalid, s.Beams, m.spec.last())
	}
	if n := len(p.Tokens); n != 0 && n != s.Prompt {
		return Hit{}, fmt.Errorf("%w: %d tokens of a prompt of %d", ErrInvalid, n, s.Prompt)
	}
	// Always the whole length: all beams of a search need a slab at the same step.
	end := s.Prompt + s.Response
	r := &region{seq: seq, end: end, tokens: end, prompt: s.Prompt, beams: s.Beams}
	if len(p.Tokens) == 0 {
		return Hit{}, m.add(r, &found{})
	}
	return m.begin(r, p, 0)
}

// slabsOf is the number of positions that hold a region's first tokens, those of each beam counted, and without the head.
func (m *Manager) slabsOf(r *region, tokens int) int {
	if r.prompt == 0 {
		return m.spec.places(tokens)
	}
	shared := min(tokens, r.prompt)
	return m.slabsFor(shared) + r.beams*m.slabsFor(tokens-shared)
}

// SegmentSlabs is equation (3) of the paper in slabs of one group of layers, for one request: a slab is
// its step of 16 tokens.
func SegmentSlabs(s Segments, slabTokens int) int {
	return divideUp(s.Prompt, slabTokens) + s.Beams*divideUp(s.Response, slabTokens)
}

// SegmentBytes is equation (3): the KV cache of batch beam searches at their last
// step, tokenBytes (equation 1) for each token, the response in steps of step.
func SegmentBytes(s Segments, batch, step int, tokenBytes uint64) uint64 {
	return uint64(batch) * uint64(s.Prompt+s.Beams*divideUp(s.Response, step)*step) * tokenBytes
}

// StandardBytes is equation (2): the same with the prompt copied for each beam.
func StandardBytes(s Segments, batch int, tokenBytes uint64) uint64 {
	return uint64(batch) * uint64(s.Beams) * uint64(s.Prompt+s.Response) * tokenBytes
}
