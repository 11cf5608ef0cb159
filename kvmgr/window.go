package kvmgr

import "fmt"

// LiveSlabs returns the most slabs that a sequence has at once, whose tokens see a window: those of its next token's window, one more, and
// those of ahead tokens from that token on.
func LiveSlabs(window, ahead, slabTokens int) int { return divideUp(window-1+ahead, slabTokens) + 2 }

// FirstKept returns the first token whose slab a sequence keeps when its next token is at a position: the first one that this token sees, less
// a slab. So the window of the last whole slab before the position is complete too, for others to continue there.
func FirstKept(position, window, slabTokens int) int { return max(0, position-(window-1)-slabTokens) }

// checkWindow returns an ErrInvalid for a window that cannot be, or for which too few slabs may live.
func (c *Config) checkWindow() error {
	if c.Window == 0 {
		return nil
	}
	if least := LiveSlabs(c.Window, c.SlabTokens, c.SlabTokens); c.Window < 2 || c.Live < least {
		return fmt.Errorf("%w: a window of %d tokens with %d slabs at once, expected at least 2, and %d", ErrInvalid, c.Window, c.Live, least)
	}
	return nil
}

// slides says whether a region gives slabs back to have others: it has more of them than may live at once.
func (m *Manager) slides(r *region) bool {
	return m.tree.window > 0 && r.prompt == 0 && m.slabsOf(r, r.end)-r.first > m.live
}

// most is the number of slabs that a region has at once at most, while it has some tokens.
func (m *Manager) most(r *region, tokens int) int {
	n := m.slabsOf(r, tokens) - r.first
	if r.slides {
		n = min(n, m.live)
	}
	return n
}

// firstKept is the first slab that a sequence of some computed tokens needs.
func (m *Manager) firstKept(tokens int) int {
	if m.tree.window == 0 {
		return 0
	}
	return FirstKept(tokens, m.tree.window, m.slabTokens) / m.slabTokens
}

// Trim says that no step reads a sequence's first tokens any more. The sequence gives back the slabs that have no others: they stay in the prefix
// tree, or are free. What they leave is for its next tokens, and for others where the sequence needs less until its declared end.
// Without a window, and with beams, Trim does nothing. Error: ErrUnknownSequence.
func (m *Manager) Trim(seq Seq, tokens int) error {
	r, ok := m.regions[seq]
	if !ok {
		return fmt.Errorf("%w: trim of %d", ErrUnknownSequence, seq)
	}
	to := min(tokens/m.slabTokens, len(r.slabs))
	if m.tree.window == 0 || r.prompt > 0 || to <= r.first {
		return nil
	}
	if to > r.inTree {
		m.cutTail(r)
	}
	m.count(r, -1)
	for ; r.first < to; r.first++ {
		m.unref(r, r.slabs[r.first])
	}
	r.full, r.quota = m.most(r, r.end), m.most(r, r.tokens)
	m.count(r, 1)
	return nil
}

// Limit returns the tokens up to which a sequence may lease slabs at present: those that it is promised, or fewer before Trim; 0 without the
// sequence.
func (m *Manager) Limit(seq Seq) int {
	r := m.regions[seq]
	switch {
	case r == nil:
		return 0
	case r.slides:
		return min(r.tokens, (r.first+r.quota)*m.slabTokens)
	}
	return r.tokens
}

// Live returns the slabs that a sequence has, and the place of the first one: those before it were given back, or never needed. The slice is the
// caller's to read for ever.
func (m *Manager) Live(seq Seq) (first int, slabs []int32) {
	r := m.regions[seq]
	if r == nil {
		return 0, nil
	}
	return r.first, r.slabs[r.first:len(r.slabs):len(r.slabs)]
}
