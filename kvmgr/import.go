package kvmgr

// Find returns the slabs with the longest computed prefix of a prompt, and the number of its tokens. Slabs that are not there, as those
// before a window need not be, are -1. The slabs keep their tokens until the next call that leases.
func (m *Manager) Find(p Prompt) (slabs []int32, tokens int) {
	f := m.match(p.Space, p.Tokens, false, quiet)
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
	f := m.match(p.Space, p.Tokens[:last], false, hasSlab)
	return m.pays(&f, last-f.whole*m.slabTokens)
}

// Import reserves slabs for a sequence that comes from elsewhere, as ReservePrompt does, and leases those for all tokens of its
// prompt but the last, in windowed groups for those of their last window. It returns the slabs by position, -1 where none is needed, and
// the number of leading ones that are computed here, or are not needed. Others wait for the tokens as if seq computed them: Commit says
// which are there, and Release ends the import. Errors: those of ReservePrompt.
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
	if hit.Tokens == len(p.Tokens)-1 {
		return nil, len(m.Slabs(seq)), nil
	}
	computed = hit.Tokens / m.slabTokens // nobody copies the slab where the texts part
	if m.groups.Full == 0 {
		computed = max(computed, first)
	}
	return m.Slabs(seq), computed * m.groups.Count(), nil
}

// Copied says whether an Import of a prompt of some tokens needs the slab at a place of its list, if it is not computed here.
func (m *Manager) Copied(tokens, place int) bool {
	n := m.groups.Count()
	return place%n < m.groups.Full || place/n >= m.firstKept(tokens-1)
}

// Has says whether a sequence has slabs, a promise, or slots of the tier.
func (m *Manager) Has(seq Seq) bool { return m.regions[seq] != nil || m.tier.away[seq] != nil }
