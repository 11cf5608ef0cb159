package kvmgr

import (
	"errors"
	"fmt"
	"iter"
	"slices"
)

// tier is the slots outside the pool, and the sequences that have some.
type tier struct {
	slots     int
	unused    freeSet
	away      map[Seq]*spilled
	returning int // slots of sequences that are being restored
}

// spilled is a sequence in the tier, on its way there, or on its way back: in the pool it has a region of its own then.
type spilled struct {
	slots     []int32 // of the head, and then by position, those of the slabs from first on
	first     int     // as of region
	tokens    int     // in them
	end       int     // as of region
	cached    bool    // as of region
	space     string  // as of region
	complete  bool    // all slabs are in the slots
	returning bool
}

func newTier(slots int) tier {
	return tier{slots: slots, unused: newFreeSet(slots), away: make(map[Seq]*spilled)}
}

// of returns the number of slots of a sequence.
func (t *tier) of(seq Seq) int {
	if s := t.away[seq]; s != nil {
		return len(s.slots)
	}
	return 0
}

// free gives back the slots of a sequence, if it has some.
func (t *tier) free(seq Seq) {
	s := t.away[seq]
	if s == nil {
		return
	}
	for _, slot := range s.slots {
		t.unused.put(int(slot))
	}
	if s.returning {
		t.returning -= len(s.slots)
	}
	delete(t.away, seq)
}

// Move is a copy between a slab of the pool and a slot of the tier.
type Move struct{ Slab, Slot int32 }

// Spill gives slots of the tier to the slabs of a sequence's first tokens, and returns the copies to make. The sequence is paused
// from here on, and keeps its slabs until Spilled. Others may hold some of them: these are copied too, so a
// sequence in the tier needs nothing of the pool. Errors: ErrNoSlabs (the tier has no room, or needs it for the others;
// nothing changes then), ErrUnknownSequence, ErrInvalid (it has beams or slots, or has not leased the tokens).
func (m *Manager) Spill(seq Seq, tokens int) ([]Move, error) {
	r := m.regions[seq]
	if r == nil {
		return nil, fmt.Errorf("%w: spill of %d", ErrUnknownSequence, seq)
	}
	if r.prompt > 0 || m.tier.away[seq] != nil || tokens < 1 || m.slabsOf(r, tokens) > r.positions() {
		return nil, fmt.Errorf("%w: spill of %d tokens of sequence %d, which leased slabs for %d", ErrInvalid, tokens, seq,
			r.positions()*m.slabTokens)
	}
	first := max(r.first, m.firstKept(tokens))
	n := len(r.head) + m.groups.Slabs(m.slabsFor(tokens), first)
	if n > m.tier.unused.count {
		return nil, fmt.Errorf("%w: spill of %d slabs, the tier has %d", ErrNoSlabs, n, m.tier.unused.count)
	}
	s := &spilled{slots: m.tier.unused.take(nil, n, -1), first: first, tokens: tokens, end: r.end, cached: r.cached, space: r.space}
	m.tier.away[seq] = s
	before := *r
	m.declare(r, r.positions()*m.slabTokens, r.positions()*m.slabTokens)
	if !m.safe() {
		m.declare(r, before.end, before.tokens)
		m.tier.free(seq)
		return nil, fmt.Errorf("%w: the tier keeps its room for others", ErrNoSlabs)
	}
	r.denied = false
	m.settle(r)
	moves := make([]Move, 0, n)
	for i, id := range m.spilledSlabs(r, s) {
		moves = append(moves, Move{id, s.slots[i]})
	}
	return moves, nil
}

// declare changes the length of a region.
func (m *Manager) declare(r *region, end, tokens int) {
	m.count(r, -1)
	r.end, r.tokens = end, tokens
	r.full, r.quota = m.most(r, end), m.most(r, tokens)
	m.count(r, 1)
}

// Spilled says that the copies of Spill are complete. The sequence's slabs are given back. Error: ErrUnknownSequence.
func (m *Manager) Spilled(seq Seq) error {
	r := m.regions[seq]
	if s := m.tier.away[seq]; r == nil || s == nil || s.returning {
		return fmt.Errorf("%w: sequence %d is spilled", ErrUnknownSequence, seq)
	}
	m.tier.away[seq].complete = true
	m.drop(r)
	return nil
}

// Restore reserves slabs for a sequence in the tier, as Reserve does, leases those for the tokens that are there, and returns the
// copies to make. The sequence keeps its slots until Restored. Errors: those of Reserve, ErrUnknownSequence.
func (m *Manager) Restore(seq Seq, l Length) ([]Move, error) {
	s := m.tier.away[seq]
	if s == nil {
		return nil, fmt.Errorf("%w: restore of %d", ErrUnknownSequence, seq)
	}
	if m.regions[seq] != nil {
		return nil, fmt.Errorf("%w: %d", ErrSequenceExists, seq)
	}
	if l.Promise < s.tokens || l.Promise > l.End {
		return nil, fmt.Errorf("%w: restore %d tokens of %d, expected at least %d and at most all", ErrInvalid, l.Promise, l.End, s.tokens)
	}
	s.returning = true
	m.tier.returning += len(s.slots)
	r := &region{seq: seq, end: l.End, tokens: l.Promise, beams: 1, first: s.first, cached: s.cached, space: s.space}
	if err := m.add(r, &found{}); err != nil {
		s.returning = false
		m.tier.returning -= len(s.slots)
		return nil, err
	}
	moves := make([]Move, 0, len(s.slots))
	for _, slab := range m.extend(r, m.slabsFor(s.tokens)) {
		if slab >= 0 {
			moves = append(moves, Move{slab, s.slots[len(moves)]})
		}
	}
	return moves, nil
}

// Restored says that the copies of Restore are complete, and returns the tokens that the sequence's slabs have. Its slots are given
// back. Error: ErrUnknownSequence.
func (m *Manager) Restored(seq Seq) (tokens int, err error) {
	s := m.tier.away[seq]
	if s == nil || !s.returning {
		return 0, fmt.Errorf("%w: sequence %d is restored", ErrUnknownSequence, seq)
	}
	m.leased(seq, 0, m.Slabs(seq))
	m.tier.free(seq)
	return s.tokens, nil
}

// spillable says whether the tier has room for all but the largest one of some regions. Each of them is counted with all that is
// promised to it, and the slots of those that are being restored return.
func (m *Manager) spillable(regions []*region) bool {
	if m.tier.slots == 0 {
		return false
	}
	sum, largest := 0, 0
	for _, r := range regions {
		if r.prompt > 0 {
			return false
		}
		if r.full+r.doubles() > m.committed() { // it would not fit alone
			return false
		}
		sum, largest = sum+r.quota, max(largest, r.quota)
	}
	return sum-largest <= m.tier.unused.count+m.tier.returning
}

// Away returns where the tokens of a spilled sequence are, and their number: slots of the tier, or slabs of the pool while the copies of
// Spill are not complete. They are by place, as in Find. An empty list: it is not spilled.
func (m *Manager) Away(seq Seq) (places []int32, tokens int, slots bool) {
	s := m.tier.away[seq]
	if s == nil {
		return nil, 0, false
	}
	from := s.slots
	if !s.complete {
		from = m.spilledSlabs(m.regions[seq], s)
	}
	places = slices.Repeat([]int32{-1}, m.slabsFor(s.tokens)*m.groups.Count())
	next := len(from) - m.groups.Slabs(m.slabsFor(s.tokens), s.first)
	head := from[:next]
	for place := range m.spilledPlaces(s) {
		places[place] = from[next]
		next++
	}
	if m.states != nil {
		places = slices.Concat(head, places)
	}
	return places, s.tokens, s.complete
}

// spilledSlabs returns the slabs of a region with the tokens of a sequence that is spilled, in the order of its slots.
func (m *Manager) spilledSlabs(r *region, s *spilled) []int32 {
	list := slices.Clone(r.head)
	for place := range m.spilledPlaces(s) {
		list = append(list, r.slabs[place])
	}
	return list
}

// spilledPlaces yields the places of tokens that have slots, in their order.
func (m *Manager) spilledPlaces(s *spilled) iter.Seq[int] {
	return func(yield func(place int) bool) {
		groups := m.groups.Count()
		for place := range m.slabsFor(s.tokens) * groups {
			if (place%groups < m.groups.Full || place/groups >= s.first) && !yield(place) {
				return
			}
		}
	}
}

// alone says whether a region fits into the pool without others, at its declared end.
func (m *Manager) alone(r *region) bool { return r.full+r.doubles() <= len(m.refs) }

// check recounts the tier.
func (t *tier) check() error {
	used, returning := make([]bool, t.slots), 0
	for seq, s := range t.away {
		for _, slot := range s.slots {
			if used[slot] || t.unused.has(int(slot)) {
				return fmt.Errorf("kvmgr: check: slot %d of sequence %d is free, or another sequence has it", slot, seq)
			}
			used[slot] = true
		}
		if s.returning {
			returning += len(s.slots)
		}
	}
	unused := 0
	for slot := range t.slots {
		if t.unused.has(slot) {
			unused++
		} else if !used[slot] {
			return fmt.Errorf("kvmgr: check: nobody has slot %d, and it is not free", slot)
		}
	}
	if unused != t.unused.count || returning != t.returning {
		return errors.New("kvmgr: check: the counts of the tier are wrong")
	}
	return nil
}
