package kvmgr

import "iter"

// Counts counts the groups of layers of a Spec. A sequence keeps the slabs of full groups to its end, and gives those of windowed groups
// back: see Trim. Lists of slabs are by position, with one of each group for a position, the full groups first. The zero value is one
// group.
type Counts struct {
	Full     int `json:"full,omitempty"`
	Windowed int `json:"windowed,omitempty"`
}

// Count is the number of groups.
func (c Counts) Count() int { return max(c.Full+c.Windowed, 1) }

// Slabs is the number of slabs of some positions, of which windowed groups have those from first on.
func (c Counts) Slabs(positions, first int) int {
	return c.Full*positions + c.Windowed*max(positions-first, 0)
}

// from is the first position at which a region has a slab of a group.
func (r *region) from(group int) int {
	if group < r.groups.Full {
		return 0
	}
	return r.first
}

// positions is the number of positions with leased slabs.
func (r *region) positions() int { return len(r.slabs) / r.groups.Count() }

// at is the slab of a group at a position.
func (r *region) at(position, group int) int32 { return r.slabs[position*r.groups.Count()+group] }

// own are the slabs that were leased to a region, or shared with it, and that it has not given back.
func (r *region) own() iter.Seq2[int, int32] {
	return func(yield func(group int, id int32) bool) {
		for _, id := range r.head {
			if !yield(0, id) {
				return
			}
		}
		for i, id := range r.slabs {
			group, position := i%r.groups.Count(), i/r.groups.Count()
			if (position >= r.from(group) || position < r.sinks) && !yield(group, id) {
				return
			}
		}
	}
}

// found is the part of a prompt that all groups have.
type found struct {
	groups  []match   // by group
	whole   int       // positions
	partial int       // tokens of the next one
	first   int       // windowed groups are not seen before it
	pending *node     // as of match, in the first group
	soon    int       // likewise
	state   *snapshot // after these tokens; nil: sequences have no states, or no tokens were found
}

// match finds the tokens that a prompt begins with. Each group may have other slabs of them, so what one finds bounds the others, until all
// agree. Slabs of which only the first tokens fit are found if they are wanted. A beam search sees all tokens in each group. slabs: nobody
// begins there, so where there are states whole slabs count, whatever is kept after them.
func (m *Manager) match(space string, tokens []int32, slabs, beams bool, want func(*node) bool) (f found) {
	f.groups = make([]match, len(m.trees))
	if w, ok := m.spec.last().(Window); ok && w.Sinks > 0 { // so a region that begins has one run of slabs, from its first one on
		tokens = tokens[:min(len(tokens), w.Tokens-1)]
	}
	limit := len(tokens)
	for g := 0; g < len(m.trees); g++ {
		t := &m.trees[g]
		n := t.matches(space, tokens[:limit], slabs, beams, want)
		if g == 0 && limit == len(tokens) && n.pending != nil {
			f.pending, f.soon = n.pending, len(n.path)*t.slabTokens+n.soon
		}
		f.groups[g] = n
		if got := len(n.path)*t.slabTokens + n.partial; got < limit {
			if limit = got; g > 0 {
				g = -1
			}
		}
	}
	f.whole, f.partial = limit/m.slabTokens, limit%m.slabTokens
	f.soon -= f.whole * m.slabTokens
	last := &f.groups[len(f.groups)-1]
	f.first, f.state = last.first, last.state
	return f
}
