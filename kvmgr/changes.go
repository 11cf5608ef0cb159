package kvmgr

import (
	"slices"

	"github.com/millrace/millrace/kvmgr/chain"
)

// Change is a slab that entered or left the prefix tree. Slabs that are not full do not count.
type Change struct {
	Hash   chain.Hash // of the tokens up to the slab's end
	Stored bool       // false: removed
}

// changes lists what happened to a tree, if somebody wants to know.
type changes struct {
	wanted bool
	list   []Change
}

// Record begins the list of changes, with all slabs of the tree.
func (m *Manager) Record() {
	t := &m.tree
	t.changes = changes{wanted: true}
	var walk func(n *node)
	walk = func(n *node) {
		for _, c := range n.children {
			if c.slab >= 0 {
				t.stored(c)
				walk(c)
			}
		}
	}
	for space, n := range t.spaces {
		n.hash = chain.Root(space)
		walk(n)
	}
}

// Changes returns the changes since the last call, in their order; none before Record. A slab enters after the slab that it
// follows.
func (m *Manager) Changes() []Change {
	list := m.tree.changes.list
	m.tree.changes.list = nil
	return slices.Clip(list)
}

// hashes says whether anybody wants to know of prefixes.
func (t *tree) hashes() bool { return t.changes.wanted || t.cold.wanted || t.observer != nil }

// stored notes a node that got its slab. The parent's hash is there: it got its slab before.
func (t *tree) stored(n *node) {
	if !t.hashes() || len(n.tokens) < t.slabTokens {
		return
	}
	n.hash = n.parent.hash.Next(n.tokens)
	if t.changes.wanted {
		t.changes.list = append(t.changes.list, Change{n.hash, true})
	}
	if t.observer != nil {
		t.observer.Stored(n.slab, n.hash)
	}
}

// removed notes a node that lost its slab.
func (t *tree) removed(n *node) {
	if t.changes.wanted && len(n.tokens) == t.slabTokens {
		t.changes.list = append(t.changes.list, Change{Hash: n.hash})
	}
}
