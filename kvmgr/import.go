package kvmgr

// Find returns the slabs with the longest computed prefix of a prompt, and the number of its tokens. Slabs that are not there, as those
// before a window need not be, are -1. The slabs keep their tokens until the next call that leases.
func (m *Manager) Find(p Prompt) (slabs []int32, tokens int) {
	found := m.tree.match(p.Space, p.Tokens, m.tree.window)
	n := found.next
	if n != nil && n.held { // its sequence may be writing its later tokens
		n, found.path, found.partial = nil, found.path[:found.whole], 0
	}
	for _, n := range found.path {
		slabs = append(slabs, n.slab)
	}
	tokens = len(slabs)*m.slabTokens + found.partial
	if n != nil {
		slabs = append(slabs, n.slab)
	}
	return slabs, tokens
}

// Waits says whether ReservePrompt returns ErrComputing for a prompt at present.
func (m *Manager) Waits(p Prompt) bool {
	last := len(p.Tokens) - 1
	found := m.tree.match(p.Space, p.Tokens[:last], m.tree.window)
	return m.pays(&found, last-len(found.path)*m.slabTokens)
}

// Import reserves slabs for a sequence that comes from elsewhere, as ReservePrompt does, and leases those for all tokens of its
// prompt but the last, or for those of their last window. It returns the slabs by position, and the number of leading ones that are computed
// here, or are not needed. Others wait for the tokens as if seq computed them: Commit says which
// are there, and Release ends the import. Errors: those of ReservePrompt.
func (m *Manager) Import(seq Seq, l Length, p Prompt) (slabs []int32, computed int, err error) {
	if err := m.checkPrompt(seq, l, p); err != nil {
		return nil, 0, err
	}
	first := m.firstKept(len(p.Tokens) - 1)
	hit, err := m.begin(&region{seq: seq, end: l.End, tokens: l.Promise, beams: 1}, p, first)
	if err != nil {
		return nil, 0, err
	}
	if _, err := m.Lease(seq, len(p.Tokens)-1); err != nil {
		return nil, 0, err
	}
	computed = max(hit.Tokens/m.slabTokens, first) // nobody copies the slab where the texts part
	if hit.Tokens == len(p.Tokens)-1 {
		return nil, len(m.Slabs(seq)), nil
	}
	return m.Slabs(seq), computed, nil
}

// Has says whether a sequence has slabs, a promise, or slots of the tier.
func (m *Manager) Has(seq Seq) bool { return m.regions[seq] != nil || m.tier.away[seq] != nil }
