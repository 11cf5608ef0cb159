package kvmgr

// A pool may have fewer committed slabs, which have memory, than it has slabs. Only committed ones are promised, so whatever is promised
// is there. A call that is denied notes how many more it lacks. Their owner commits them and calls Grown, and gets those back that
// no sequence needs with Shrink.

// committed is the number of slabs with memory.
func (m *Manager) committed() int { return len(m.refs) - m.uncommitted.count }

// lack notes that a call was denied which some more committed slabs would have granted.
func (m *Manager) lack(slabs int) { m.lacking = max(m.lacking, min(slabs, m.uncommitted.count)) }

// lackSafety notes that a call was denied whose result would not be safe.
func (m *Manager) lackSafety() {
	if m.uncommitted.count > 0 {
		m.lack(-m.tightest())
	}
}

// Lacking returns how many more committed slabs the calls needed that were denied since the last Lacking; 0 where slabs that others return
// are waited for.
func (m *Manager) Lacking() int {
	n := min(m.lacking, m.uncommitted.count)
	m.lacking = 0
	return n
}

// Uncommitted returns the lowest slabs without memory, n of them or all.
func (m *Manager) Uncommitted(n int) (list []Range) {
	for id := m.uncommitted.next(0); id >= 0 && n > 0; {
		run := m.uncommitted.run(id, n)
		list = append(list, Range{First: int32(id), Slabs: run})
		n -= run
		id = m.uncommitted.next(id + run)
	}
	return list
}

// Grown says that slabs have memory now, which Uncommitted returned.
func (m *Manager) Grown(list []Range) {
	for _, r := range list {
		m.taken = m.uncommitted.remove(m.taken[:0], int(r.First), r.Slabs)
		for _, id := range m.taken {
			m.free.put(int(id))
		}
	}
}

// Shrink makes up to n slabs uncommitted and returns them: free ones, and those that the prefix trees alone keep, the least worth first.
// What is left is enough for all promises and declared ends.
func (m *Manager) Shrink(n int) (list []Range) {
	n = min(n, m.spare())
	m.taken = m.taken[:0]
	for range n {
		m.room(1)
		id := m.free.last()
		m.taken = m.free.remove(m.taken, id, 1)
		m.uncommitted.put(id)
		if k := len(list); k > 0 && int(list[k-1].First) == id+1 {
			list[k-1].First, list[k-1].Slabs = int32(id), list[k-1].Slabs+1
		} else {
			list = append(list, Range{First: int32(id), Slabs: 1})
		}
	}
	m.void(m.taken)
	return list
}

// spare is the number of committed slabs that no sequence needs until its declared end.
func (m *Manager) spare() int {
	if m.tier.slots == 0 {
		return max(0, m.tightest())
	}
	if len(m.tier.away) > 0 {
		return 0
	}
	return max(0, min(m.tightest(), m.committed()-m.longest()))
}

// longest is the number of slabs of the region that has the most at its declared end: with a tier, each may be alone in the pool.
func (m *Manager) longest() (slabs int) {
	for _, r := range m.regions {
		slabs = max(slabs, r.full+r.doubles())
	}
	return slabs
}

// tightest is how many slabs are left in the safe order where the fewest are; below zero, how many are lacking. See safe.
func (m *Manager) tightest() int {
	least := m.available()
	if m.needed == 0 {
		return least
	}
	order := m.byNeed()
	slabs := least
	for _, r := range order {
		least = min(least, slabs-r.need())
		slabs += m.returns(r)
	}
	for _, r := range order {
		m.undo(r)
	}
	clear(order)
	return least
}
