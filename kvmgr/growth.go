package kvmgr

import (
	"cmp"
	"fmt"
	"slices"
)

// Length is how many tokens a sequence may have.
type Length struct {
	End     int // at its declared end: prompt and longest answer
	Promise int // of them, those whose slabs are promised from the start; 1 to End. Grow promises more
}

// Declared is the Length that promises all tokens.
func Declared(end int) Length { return Length{End: end, Promise: end} }

// Grow promises slabs for the sequence's first tokens tokens; nothing changes if they are promised already. It is
// denied where the pool would be unsafe: see safe. A sequence whose growth is denied keeps all that it has, and may
// grow when others have released their slabs. Errors: ErrNoSlabs (a *ShortageError), ErrUnknownSequence,
// ErrBeyondReservation (beyond the declared end).
func (m *Manager) Grow(seq Seq, tokens int) error {
	r, ok := m.regions[seq]
	if !ok {
		return fmt.Errorf("%w: growth of %d", ErrUnknownSequence, seq)
	}
	if tokens > r.end {
		return fmt.Errorf("%w: sequence %d, growth to %d tokens, declared %d", ErrBeyondReservation, seq, tokens, r.end)
	}
	if tokens <= r.tokens {
		return nil
	}
	before := r.tokens
	m.promise(r, tokens)
	if r.denied = !m.safe(); r.denied {
		m.lackSafety()
		m.promise(r, before)
		return &ShortageError{Err: ErrNoSlabs, Need: r.need(), Free: m.available(), Pool: len(m.refs)}
	}
	return nil
}

// promise sets the tokens whose slabs are promised to a region.
func (m *Manager) promise(r *region, tokens int) {
	m.count(r, -1)
	r.tokens, r.quota = tokens, m.most(r, tokens)
	m.count(r, 1)
}

// need is how many slabs are not promised to a region that it needs at its declared end.
func (r *region) need() int { return r.full - r.quota }

// safe says whether all regions can reach their declared ends, one after the other in some order: each with the slabs
// and mappings that are available, and those that the ones before it returned (Dijkstra's banker). A slab that several
// regions hold returns with the last of them.
//
// The one that needs the least goes first. A region that ends returns at least what it took, so no other order does
// better, and the first one may always grow: whatever is promised, one sequence at least runs to its end, and then the next.
//
// Those that cannot end in this way may all stay if the tier has room for all of them but the largest one. That one has the pool
// for itself then, and the others follow it one by one: each fits the pool alone.
func (m *Manager) safe() bool {
	if m.needed == 0 && m.available() >= 0 {
		return m.mappable(m.mapped) || len(m.regions) == 1
	}
	if m.available() < 0 || !m.mappable(m.mapped) && len(m.regions) > 1 {
		return false
	}
	m.byNeed()
	most := m.order[len(m.order)-1].need()
	slabs, mapped, ended, ok := m.available(), m.mapped, 0, true
	for ok && ended < len(m.order) && (slabs < most || !m.mappable(mapped+most)) {
		r := m.order[ended]
		if ok = slabs >= r.need() && m.mappable(mapped+r.need()); ok {
			slabs, mapped = slabs+m.returns(r), mapped-r.quota
			ended++
		}
	}
	ok = ok || m.spillable(m.order[ended:])
	for _, r := range m.order[:ended] {
		m.undo(r)
	}
	clear(m.order)
	return ok
}

// byNeed sets and returns order: the regions, those that need the least first.
func (m *Manager) byNeed() []*region {
	m.order = m.order[:0]
	for _, r := range m.regions {
		m.order = append(m.order, r)
	}
	slices.SortFunc(m.order, func(a, b *region) int { return cmp.Compare(a.need(), b.need()) })
	return m.order
}

// mappable says whether the regions may have that many mappings together.
func (m *Manager) mappable(mapped int) bool { return m.mappings == 0 || mapped <= m.mappings }

// returns is how many slabs a region makes available at its end, after the ones before it. undo takes the region's end back.
func (m *Manager) returns(r *region) (slabs int) {
	if r.slides && r.groups.Full == 0 {
		return r.quota
	}
	for group, id := range r.holds() {
		if r.slidesIn(group) {
			slabs++
		} else if m.fixed[id]--; m.fixed[id] == 0 {
			slabs++
		}
	}
	return slabs + r.unleased()
}

func (m *Manager) undo(r *region) {
	if r.slides && r.groups.Full == 0 {
		return
	}
	for group, id := range r.holds() {
		if !r.slidesIn(group) {
			m.fixed[id]++
		}
	}
}
