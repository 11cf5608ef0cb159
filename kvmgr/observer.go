package kvmgr

import (
	"fmt"

	"github.com/millrace/millrace/kvmgr/chain"
)

// Observer receives what slabs hold, each time before anybody can write to a slab. A report of a slab holds until the next one
// of the slab: the contents of a slab that is given back stay.
type Observer interface {
	// Void says that the contents of slabs end: they have a new holder.
	Void(slabs []int32)
	// Leased says that void slabs are a sequence's, from place first on, and written as it is computed. The places are those of a list of
	// slabs, see Groups. -1 is no slab.
	Leased(seq Seq, first int, slabs []int32)
	// Stored says that a slab is written to its end, and which prefix ends there, in the GroupSpace of the slab's group.
	Stored(slab int32, prefix chain.Hash)
}

// Observe makes an observer receive reports from here on; nil: none does. It is called before the first reservation, and when the memory
// has lost its contents.
func (m *Manager) Observe(o Observer) {
	m.observer = o
	for i := range m.trees {
		m.trees[i].observer = o
	}
}

// void reports slabs that were taken from the free ones.
func (m *Manager) void(slabs []int32) {
	if m.observer != nil {
		m.observer.Void(slabs)
	}
}

// GroupSpace is the space of a group of layers, for hashes of prefixes: slabs of the same tokens in two groups have different contents.
func GroupSpace(space string, group int) string {
	if group == 0 {
		return space
	}
	return fmt.Sprintf("%s\x00group %d", space, group)
}

// leased reports slabs that a sequence is to compute, those from place first on.
func (m *Manager) leased(seq Seq, first int, slabs []int32) {
	if m.observer != nil && len(slabs) > 0 {
		m.observer.Leased(seq, first, slabs)
	}
}
