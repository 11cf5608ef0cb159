package kvmgr

import "github.com/millrace/millrace/kvmgr/chain"

// Observer receives what slabs hold, each time before anybody can write to a slab. A report of a slab holds until the next one
// of the slab: the contents of a slab that is given back stay.
type Observer interface {
	// Void says that the contents of slabs end: they have a new holder.
	Void(slabs []int32)
	// Leased says that void slabs are a sequence's, from its slab first on, and written as it is computed.
	Leased(seq Seq, first int, slabs []int32)
	// Stored says that a slab is written to its end, and which prefix ends there.
	Stored(slab int32, prefix chain.Hash)
}

// Observe makes an observer receive reports from here on; nil: none does. It is called before the first reservation, and when the memory
// has lost its contents.
func (m *Manager) Observe(o Observer) {
	m.observer, m.tree.observer = o, o
}

// void reports slabs that were taken from the free ones.
func (m *Manager) void(slabs []int32) {
	if m.observer != nil {
		m.observer.Void(slabs)
	}
}

// leased reports slabs that a sequence is to compute, those from its slab first on.
func (m *Manager) leased(seq Seq, first int, slabs []int32) {
	if m.observer != nil && len(slabs) > 0 {
		m.observer.Leased(seq, first, slabs)
	}
}
