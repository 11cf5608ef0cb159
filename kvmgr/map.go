package kvmgr

// Map counts the slabs of a pool by state, in cells of adjacent ids. The slabs of a cell that no count has are free.
type Map struct {
	CellSlabs int   `json:"cell_slabs"` // slabs of a cell; the last cell may have fewer
	Held      []int `json:"held"`       // leased to one region, by cell
	Shared    []int `json:"shared"`     // leased to more than one, by cell
	Cached    []int `json:"cached"`     // kept for their tokens alone, by cell
	Absent    []int `json:"absent"`     // without memory, by cell
}

// Map returns the pool as at most the given number of cells. It costs O(slabs).
func (m *Manager) Map(cells int) Map {
	size := divideUp(len(m.refs), max(cells, 1))
	n := divideUp(len(m.refs), size)
	v := Map{CellSlabs: size, Held: make([]int, n), Shared: make([]int, n), Cached: make([]int, n), Absent: make([]int, n)}
	if m.states != nil {
		for _, s := range m.states.heap {
			for _, id := range s.slabs {
				v.Cached[int(id)/size]++
			}
		}
	}
	for id, refs := range m.refs {
		switch {
		case refs > 1:
			v.Shared[id/size]++
		case refs == 1:
			v.Held[id/size]++
		case m.bySlab[id] != nil:
			v.Cached[id/size]++
		case m.uncommitted.has(id):
			v.Absent[id/size]++
		}
	}
	return v
}
