package kvmgr

import "fmt"

// Copy is a slab to copy in part: the first Tokens tokens of slab From to slab
// To. There is nothing to copy when Tokens is 0.
type Copy struct {
	From, To int32
	Tokens   int
}

// Forked is what backs a child at first: the slabs to map from position 0 on,
// and after them, if Copy.Tokens > 0, the slab Copy.To.
type Forked struct {
	Shared []int32
	Copy   Copy
}

// Fork reserves maxTokens for child, which continues after token number tokens
// of parent. Whole slabs are shared, the last partial one is copied
// (the caller copies it, before the child runs and before either releases).
// Errors: ErrUnknownSequence, ErrSequenceExists, ErrBeyondReservation (tokens
// that the parent has not leased), ErrInvalid, and those of Reserve about
// room; nothing changes then.
func (m *Manager) Fork(parent, child Seq, tokens, maxTokens int) (Forked, error) {
	p, ok := m.regions[parent]
	if !ok {
		return Forked{}, fmt.Errorf("%w: fork of %d", ErrUnknownSequence, parent)
	}
	if _, ok := m.regions[child]; ok {
		return Forked{}, fmt.Errorf("%w: fork into %d", ErrSequenceExists, child)
	}
	if p.beams != 1 || p.prompt != 0 {
		return Forked{}, fmt.Errorf("%w: fork of %d, which has beams", ErrInvalid, parent)
	}
	if tokens < 1 || maxTokens < tokens {
		return Forked{}, fmt.Errorf("%w: fork at token %d of at most %d", ErrInvalid, tokens, maxTokens)
	}
	if m.slabsFor(tokens) > len(p.slabs) {
		return Forked{}, fmt.Errorf("%w: fork at token %d, parent %d leased %d slabs of %d tokens",
			ErrBeyondReservation, tokens, parent, len(p.slabs), m.slabTokens)
	}
	// A child is always promised its whole length: it starts in the middle of
	// an answer, where a policy's prediction from the start no longer holds.
	quota, shared := m.slabsFor(maxTokens), tokens/m.slabTokens
	if err := m.admit(quota, shared); err != nil {
		return Forked{}, err
	}
	c := &region{tokens: maxTokens, beams: 1, quota: quota, shared: shared, slabs: make([]int32, 0, quota)}
	c.slabs = append(c.slabs, p.slabs[:shared]...)
	for _, id := range c.slabs {
		m.refs[id]++
		if m.refs[id] == 2 {
			m.shared++
		}
	}
	m.promised += quota - shared
	m.regions[child] = c

	f := Forked{Shared: c.slabs[:shared:shared]}
	if partial := tokens % m.slabTokens; partial != 0 {
		to := m.extend(c, shared+1)
		f.Copy = Copy{From: p.slabs[shared], To: to[0], Tokens: partial}
	}
	return f, nil
}
