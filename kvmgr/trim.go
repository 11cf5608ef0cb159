package kvmgr

import (
	"fmt"
	"slices"
)

// gone is the number of leading positions whose slabs of windowed groups a region gave back, or never had.
func (r *region) gone() int { return max(0, r.first-r.sinks) }

// slides says whether a region gives slabs back to have others: it has more of them than may live at once.
func (m *Manager) slides(r *region) bool {
	return m.spec.Trims() && r.prompt == 0 && m.slabsOf(r, r.end)-r.gone() > m.live
}

// most is the number of slabs that a region has at once at most, while it has some tokens.
func (m *Manager) most(r *region, tokens int) int {
	n := m.slabsOf(r, tokens)
	return m.head + m.groups.Full*n + m.groups.Windowed*m.liveOf(r, n)
}

// liveOf is the number of slabs of a windowed group that a region has at once at most, while it has some positions.
func (m *Manager) liveOf(r *region, positions int) int {
	n := max(positions-r.gone(), 0)
	if r.slides {
		n = min(n, m.live)
	}
	return n
}

// firstKept is the first position whose slabs of windowed groups a sequence of some computed tokens needs.
func (m *Manager) firstKept(tokens int) int { return m.spec.FirstKept(tokens) / m.slabTokens }

// Trim says that no step reads a sequence's first tokens any more in windowed groups. The sequence gives back their slabs of these groups
// that have no others, but for those of its sinks: they stay in the prefix trees, or are free. What they leave is for its next tokens, and
// for others where the sequence needs less until its declared end. Without a window, and with beams, Trim does nothing. Error:
// ErrUnknownSequence.
func (m *Manager) Trim(seq Seq, tokens int) error {
	r, ok := m.regions[seq]
	if !ok {
		return fmt.Errorf("%w: trim of %d", ErrUnknownSequence, seq)
	}
	to := min(tokens/m.slabTokens, r.positions())
	if !m.spec.Trims() || r.prompt > 0 || to <= r.first {
		return nil
	}
	m.count(r, -1)
	for group := m.groups.Full; group < len(m.trees); group++ {
		if to > r.paths[group].inTree {
			m.cutTail(r, group)
		}
		for i := max(r.first, r.sinks); i < to; i++ {
			m.unref(r, group, r.at(i, group))
		}
	}
	r.first = to
	r.full, r.quota = m.most(r, r.end), m.most(r, r.tokens)
	m.count(r, 1)
	return nil
}

// Limit returns the tokens up to which a sequence may lease slabs at present: those that it is promised, or fewer before Trim; 0 without
// the sequence.
func (m *Manager) Limit(seq Seq) int {
	r := m.regions[seq]
	switch {
	case r == nil:
		return 0
	case r.slides:
		return min(r.tokens, (r.gone()+m.liveOf(r, m.slabsOf(r, r.tokens)))*m.slabTokens)
	}
	return r.tokens
}

// Released returns the number of leading positions whose slabs of windowed groups a sequence gave back, or never needed, those of its sinks
// counted.
func (m *Manager) Released(seq Seq) int {
	if r := m.regions[seq]; r != nil {
		return r.first
	}
	return 0
}

// Live returns the slabs that a sequence has beside those of its sinks, first those of its head, and the position of the first ones: those
// before it were given back, or never needed. In windowed groups beside full ones these are -1. The slice is the caller's to read for ever.
func (m *Manager) Live(seq Seq) (first int, slabs []int32) {
	r := m.regions[seq]
	switch {
	case r == nil:
		return 0, nil
	case m.head > 0:
		return 0, slices.Concat(r.head, r.slabs)
	case m.groups.Full == 0:
		begin := min(r.first*m.groups.Count(), len(r.slabs))
		return r.first, r.slabs[begin:len(r.slabs):len(r.slabs)]
	case r.first == 0:
		return 0, slices.Clip(r.slabs)
	}
	slabs = slices.Clone(r.slabs)
	for i := range min(r.first, r.positions()) {
		for group := m.groups.Full; group < m.groups.Count(); group++ {
			slabs[i*m.groups.Count()+group] = -1
		}
	}
	return 0, slabs
}
