package kvmgr

import (
	"slices"

	"github.com/millrace/millrace/kvmgr/chain"
)

// Change is a slab that entered or left the prefix tree of the first group of layers. Slabs that are not full do not count. With a window a
// slab counts as long as the tree knows its tokens: what follows them may be there.
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
	t := &m.trees[0]
	t.changes = changes{wanted: true}
	var walk func(n *node)
	walk = func(n *node) {
		for _, c := range n.children {
			c.hash = c.chained()
			if c.known && len(c.tokens) == t.slabTokens {
				t.changes.list = append(t.changes.list, Change{c.hash, true})
			}
			walk(c)
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
	t := &m.trees[0]
	list := t.changes.list
	t.changes.list = nil
	return slices.Clip(list)
}

// hashes says whether anybody wants to know of prefixes.
func (t *tree) hashes() bool { return t.changes.wanted || t.cold.wanted || t.observer != nil }

// chained is the hash of the tokens up to a node's end.
func (n *node) chained() chain.Hash { return n.parent.hash.Next(n.tokens) }

// stored notes a node that got its slab, or whose tokens a sequence computed without that slab. The parent's hash is there.
func (t *tree) stored(n *node) {
	first := !n.known
	n.known = true
	if !t.hashes() || len(n.tokens) < t.slabTokens {
		return
	}
	n.hash = n.chained()
	if t.changes.wanted && first {
		t.changes.list = append(t.changes.list, Change{n.hash, true})
	}
	if t.observer != nil && n.slab >= 0 {
		t.observer.Stored(n.slab, n.hash)
	}
}

// removed notes a node that is no longer known.
func (t *tree) removed(n *node) {
	if t.changes.wanted && len(n.tokens) == t.slabTokens {
		t.changes.list = append(t.changes.list, Change{Hash: n.hash})
	}
}
