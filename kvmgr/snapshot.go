package kvmgr

import (
	"cmp"
	"fmt"
	"slices"
)

// Stats counts slabs.
type Stats struct {
	Slabs     int `json:"slabs"`     // in the pool
	Committed int `json:"committed"` // of them, with memory
	Used      int `json:"used"`      // leased to at least one region
	Shared    int `json:"shared"`    // leased to more than one
	Cached    int `json:"cached"`    // kept for their tokens alone, and given back on demand
	Promised  int `json:"promised"`  // promised, not leased yet
	Needed    int `json:"needed"`    // not promised, and needed if all sequences run to their declared ends
	// Free is what can be promised, once it is committed: neither used nor promised, nor due to a sequence that has shared slabs to give
	// back.
	Free    int `json:"free"`
	Regions int `json:"regions"`
	Denied  int `json:"denied"`  // regions whose last growth was denied
	Slots   int `json:"slots"`   // of the tier
	Spilled int `json:"spilled"` // of them, those that sequences have
}

// Usage is the share of the pool, 0 to 1, that is used or promised.
func (s Stats) Usage() float64 { return float64(s.Used+s.Promised) / float64(s.Slabs) }

// Stats returns the pool's numbers.
func (m *Manager) Stats() Stats {
	denied := 0
	for _, r := range m.regions {
		if r.denied {
			denied++
		}
	}
	return Stats{
		Slabs:     len(m.refs),
		Committed: m.committed(),
		Used:      m.committed() - m.free.count - m.idle(),
		Shared:    m.shared,
		Cached:    m.idle(),
		Promised:  m.promised,
		Needed:    m.needed,
		Free:      m.available() + m.uncommitted.count,
		Regions:   len(m.regions),
		Denied:    denied,
		Slots:     m.tier.slots,
		Spilled:   m.tier.slots - m.tier.unused.count,
	}
}

// Range is Slabs slabs from First on.
type Range struct {
	First int32 `json:"first"`
	Slabs int   `json:"slabs"`
}

// Region is a sequence's part of the pool.
type Region struct {
	Seq            Seq     `json:"sequence,string"` // more digits than a number has in JavaScript
	DeclaredTokens int     `json:"declared_tokens"` // of each beam, if there are any
	ReservedTokens int     `json:"reserved_tokens"` // of these, promised
	Beams          int     `json:"beams,omitempty"`
	DeclaredSlabs  int     `json:"declared_slabs"` // the most at once until then
	ReservedSlabs  int     `json:"reserved_slabs"`
	LeasedSlabs    int     `json:"leased_slabs"`
	ReleasedSlabs  int     `json:"released_slabs,omitempty"` // of windowed groups, outside its window
	SharedSlabs    int     `json:"shared_slabs"`             // that at least one other region holds too
	SpilledSlabs   int     `json:"spilled_slabs"`            // slots of the tier
	Slabs          []Range `json:"slabs,omitempty"`          // leased, by position; adjacent ids joined
	Denied         bool    `json:"denied"`                   // its last growth was: it pauses at the end of what it has
}

// Regions returns a copy of all regions, by sequence. A sequence in the tier has one without slabs.
func (m *Manager) Regions() []Region {
	out := m.Summaries()
	for i := range out {
		if r := m.regions[out[i].Seq]; r != nil {
			out[i].Slabs = ranges(r)
		}
	}
	return out
}

// Summaries returns all regions, by sequence, without Slabs.
func (m *Manager) Summaries() []Region {
	out := make([]Region, 0, len(m.regions))
	for seq, r := range m.regions {
		v := Region{
			Seq: seq, DeclaredTokens: r.end, DeclaredSlabs: r.full, ReservedTokens: r.tokens, ReservedSlabs: r.quota,
			LeasedSlabs: r.held(), ReleasedSlabs: m.groups.Windowed * r.gone(), SpilledSlabs: m.tier.of(seq), Denied: r.denied,
		}
		if r.prompt > 0 {
			v.Beams = r.beams
		}
		for _, id := range r.own() {
			if m.refs[id] > 1 {
				v.SharedSlabs++
			}
		}
		out = append(out, v)
	}
	for seq, s := range m.tier.away {
		if m.regions[seq] == nil {
			out = append(out, Region{Seq: seq, DeclaredTokens: s.end, SpilledSlabs: len(s.slots)})
		}
	}
	slices.SortFunc(out, func(a, b Region) int { return cmp.Compare(a.Seq, b.Seq) })
	return out
}

// ranges joins adjacent ids of a region's slabs.
func ranges(r *region) (out []Range) {
	for _, id := range r.own() {
		if n := len(out); n > 0 && out[n-1].First+int32(out[n-1].Slabs) == id {
			out[n-1].Slabs++
		} else {
			out = append(out, Range{First: id, Slabs: 1})
		}
	}
	return out
}

// Check recounts everything and reports the first contradiction: a slab is
// free, or held by exactly as many regions as its count says; what is promised
// is free, and every sequence can reach its declared end. It costs O(slabs + leases).
func (m *Manager) Check() error {
	held, fixed := make([]int32, len(m.refs)), make([]int32, len(m.refs))
	promised, mapped, needed, slid := 0, 0, 0, 0
	for seq, r := range m.regions {
		if err := m.checkRegion(seq, r, held, fixed); err != nil {
			return err
		}
		promised += r.unleased()
		mapped += r.quota
		needed += r.need()
		for group := range r.own() {
			if r.slidesIn(group) {
				slid++
			}
		}
	}
	states := make([]bool, len(m.refs))
	if m.states != nil {
		if err := m.states.check(m.refs, states); err != nil {
			return err
		}
	}
	free, unheld, shared, kept, uncommitted := 0, 0, 0, 0, 0
	for id, n := range m.refs {
		if n != held[id] || m.fixed[id] != fixed[id] {
			return fmt.Errorf("kvmgr: check: slab %d counts %d references, %d to their ends; %d regions hold it, %d to their ends", id, n,
				m.fixed[id], held[id], fixed[id])
		}
		kept += int(min(fixed[id], 1))
		cached := m.bySlab[id] != nil || states[id]
		absent := m.uncommitted.has(id)
		if m.free.has(id) != (n == 0 && !cached && !absent) || absent && (n > 0 || cached) {
			return fmt.Errorf("kvmgr: check: slab %d counts %d references, in the tree: %t, in the free set: %t, without memory: %t", id, n,
				cached,
				m.free.has(id), absent)
		}
		if absent {
			uncommitted++
			continue
		}
		if n == 0 {
			unheld++
		}
		if n == 0 && !cached {
			free++
		}
		if n > 1 {
			shared++
		}
	}
	switch {
	case free != m.free.count:
		return fmt.Errorf("kvmgr: check: %d slabs are free, the count says %d", free, m.free.count)
	case uncommitted != m.uncommitted.count:
		return fmt.Errorf("kvmgr: check: %d slabs have no memory, the count says %d", uncommitted, m.uncommitted.count)
	case shared != m.shared:
		return fmt.Errorf("kvmgr: check: %d slabs are shared, the count says %d", shared, m.shared)
	case promised != m.promised:
		return fmt.Errorf("kvmgr: check: %d slabs are promised, the count says %d", promised, m.promised)
	case mapped != m.mapped:
		return fmt.Errorf("kvmgr: check: %d slabs are reserved, the count says %d", mapped, m.mapped)
	case kept != m.kept || slid != m.slid:
		return fmt.Errorf("kvmgr: check: %d slabs are kept to the end and %d are not, the counts say %d and %d", kept, slid, m.kept, m.slid)
	case needed != m.needed:
		return fmt.Errorf("kvmgr: check: %d slabs are needed at the declared ends, the count says %d", needed, m.needed)
	case promised > unheld:
		return fmt.Errorf("kvmgr: check: %d slabs are promised, nobody holds %d", promised, unheld)
	}
	if !m.safe() {
		return fmt.Errorf("kvmgr: check: the sequences cannot reach their declared ends: %d slabs are available", m.available())
	}
	if err := m.tier.check(); err != nil {
		return err
	}
	return m.checkTrees()
}

// checkRegion checks one region and counts its slabs in held, and in fixed unless it slides.
func (m *Manager) checkRegion(seq Seq, r *region, held, fixed []int32) error {
	if r.quota != m.most(r, r.tokens) || r.full != m.most(r, r.end) || r.held() < 0 || r.held() > r.quota || r.quota > r.full {
		return fmt.Errorf("kvmgr: check: sequence %d reserved %d tokens, %d slabs; leased %d", seq, r.tokens, r.quota, r.held())
	}
	if v := r.lent; v != nil && (v.region != r || v.node != nil) || len(r.head) != 0 && len(r.head) != m.head {
		return fmt.Errorf("kvmgr: check: sequence %d has %d slabs before those of its tokens, or slabs that were lent to another one", seq,
			len(r.head))
	}
	for _, p := range r.paths {
		if p.last != nil && (p.last.pins < 1 || p.last.parent == nil) {
			return fmt.Errorf("kvmgr: check: sequence %d follows a slab that the tree has not", seq)
		}
	}
	hold := func(group int, id int32) {
		held[id]++
		if !r.slidesIn(group) {
			fixed[id]++
		}
	}
	own, twins := make(map[int32]bool, len(r.slabs)), 0
	for group, id := range r.twins() {
		hold(group, id)
		twins++
	}
	if twins != r.doubles() || !m.alone(r) {
		return fmt.Errorf("kvmgr: check: sequence %d of %d slabs holds %d twins, the count says %d", seq, r.full, twins, r.doubles())
	}
	for group, id := range r.own() {
		if id < 0 || int(id) >= len(held) {
			return fmt.Errorf("kvmgr: check: sequence %d holds slab %d of %d", seq, id, len(held))
		}
		if own[id] {
			return fmt.Errorf("kvmgr: check: sequence %d holds slab %d twice", seq, id)
		}
		own[id] = true
		hold(group, id)
	}
	return nil
}
