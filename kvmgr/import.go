package kvmgr

// Find returns the slabs with the longest computed prefix of a prompt, and the number of its tokens. The slabs keep their
// tokens until the next call that leases.
func (m *Manager) Find(p Prompt) (slabs []int32, tokens int) {
	found := m.tree.match(p.Space, p.Tokens)
	for _, n := range found.path {
		slabs = append(slabs, n.slab)
	}
	tokens = len(slabs) * m.slabTokens
	if n := found.next; n != nil && !n.held { // else its sequence may be writing its later tokens
		slabs, tokens = append(slabs, n.slab), tokens+found.partial
	}
	return slabs, tokens
}

// Waits says whether ReservePrompt returns ErrComputing for a prompt at present.
func (m *Manager) Waits(p Prompt) bool {
	last := len(p.Tokens) - 1
	found := m.tree.match(p.Space, p.Tokens[:last])
	return m.pays(&found, last-len(found.path)*m.slabTokens)
}

// Import reserves slabs for a sequence that comes from elsewhere, as ReservePrompt does, and leases those for all tokens of its
// prompt but the last. It returns them and the number of leading ones that are computed here. Others wait for the tokens as if seq computed them: Commit says which
// are there, and Release ends the import. Errors: those of ReservePrompt.
func (m *Manager) Import(seq Seq, l Length, p Prompt) (slabs []int32, computed int, err error) {
	hit, err := m.ReservePrompt(seq, l, p)
	if err != nil {
		return nil, 0, err
	}
	if _, err := m.Lease(seq, len(p.Tokens)-1); err != nil {
		return nil, 0, err
	}
	computed = hit.Tokens / m.slabTokens // nobody copies the slab where the texts part
	if hit.Tokens == len(p.Tokens)-1 {
		return nil, len(m.Slabs(seq)), nil
	}
	return m.Slabs(seq), computed, nil
}

// Has says whether a sequence has slabs, a promise, or slots of the tier.
func (m *Manager) Has(seq Seq) bool { return m.regions[seq] != nil || m.tier.away[seq] != nil }
