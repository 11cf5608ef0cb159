package kvmgr

import "slices"

// Find returns the slabs with the longest computed prefix of a prompt, and the number of its tokens. Slabs that are not there, as those
// before a window need not be, are -1. Where there are states, those of the state after the prefix come first. With state it is the longest
// prefix after which the tree has one; else they are -1, and all slabs of tokens count. The slabs keep their tokens until the next call
// that leases.
func (m *Manager) Find(p Prompt, state bool) (slabs []int32, tokens int) {
	return m.look(p, state, quiet)
}

// FindOf is Find for a sequence that has ended and was not released yet: the slab that its tokens do not fill is found too.
func (m *Manager) FindOf(seq Seq, p Prompt, state bool) (slabs []int32, tokens int) {
	r := m.regions[seq]
	return m.look(p, state, func(n *node) bool { return quiet(n) || r != nil && hasSlab(n) && r.paths[n.group].tail == n })
}

func (m *Manager) look(p Prompt, state bool, want func(*node) bool) (slabs []int32, tokens int) {
	f := m.match(p.Space, p.Tokens, !state, false, want)
	if f.state != nil {
		slabs = slices.Clone(f.state.slabs)
	} else if m.states != nil {
		slabs = slices.Repeat([]int32{-1}, m.head)
	}
	for i := range f.whole {
		for _, g := range f.groups {
			slabs = append(slabs, g.path[i].slab)
		}
	}
	for _, g := range f.groups {
		if f.partial > 0 {
			slabs = append(slabs, g.next.slab)
		}
	}
	return slabs, f.whole*m.slabTokens + f.partial
}

// Waits says whether ReservePrompt returns ErrComputing for a prompt at present.
func (m *Manager) Waits(p Prompt) bool {
	last := len(p.Tokens) - 1
	f := m.match(p.Space, p.Tokens[:last], true, false, hasSlab)
	return m.pays(&f, last-f.whole*m.slabTokens)
}

// Import reserves slabs for a sequence that comes from elsewhere, as ReservePrompt does, and leases those for all tokens of its
// prompt but the last, in windowed groups for those of their last window. It returns the slabs by place, -1 where none is needed, and
// the number of leading places that need none; no slabs if all is here. Where there are states the places of a state come first. With state
// it is needed, and Retire says that it is there; else the slabs of tokens are, whether or not a state is kept after them. Others wait for
// the tokens as if seq computed them: Commit says which are there, and Release ends the import. Errors: those of ReservePrompt.
func (m *Manager) Import(seq Seq, l Length, p Prompt, state bool) (slabs []int32, computed int, err error) {
	if err := m.checkPrompt(seq, l, p); err != nil {
		return nil, 0, err
	}
	last := len(p.Tokens) - 1
	first := m.firstKept(last)
	r := &region{seq: seq, end: l.End, tokens: l.Promise, beams: 1, imported: true}
	hit, err := m.begin(r, p, first)
	if err != nil {
		return nil, 0, err
	}
	if state && last > 0 { // also if all tokens are here
		m.leaseHead(r)
	}
	if _, err := m.Lease(seq, last); err != nil {
		return nil, 0, err
	}
	if hit.Tokens == last && (!state || last == 0) {
		return nil, len(m.Slabs(seq)), nil
	}
	whole := hit.Tokens / m.slabTokens // nobody copies the slab where the texts part
	if m.groups.Full == 0 {
		whole = max(whole, first)
	}
	slabs, computed = m.Slabs(seq), whole*m.groups.Count()
	if m.states == nil {
		return slabs, computed, nil
	}
	computed += m.head
	slabs = slices.Concat(slices.Repeat([]int32{-1}, computed), slabs[computed:])
	if state {
		copy(slabs, r.head)
		computed = 0
	}
	return slabs, computed, nil
}

// Copied says whether an Import of a prompt of some tokens, with a state or without, needs the slab at a place of its list, if it is not
// here.
func (m *Manager) Copied(tokens, place int, state bool) bool {
	if place -= m.head; place < 0 {
		return state
	}
	n := m.groups.Count()
	return place%n < m.groups.Full || place/n >= m.firstKept(tokens-1)
}

// Has says whether a sequence has slabs, a promise, or slots of the tier.
func (m *Manager) Has(seq Seq) bool { return m.regions[seq] != nil || m.tier.away[seq] != nil }
