package kvmgr

import (
	"cmp"
	"container/heap"
	"fmt"
	"slices"

	"github.com/millrace/millrace/kvmgr/chain"
)

// tree is the prefix tree: the slabs whose tokens are computed, by the tokens before and in them.
//
// A node is a slab. Its path from the root is the tokens that its keys and values depend on, so that
// two sequences with the same tokens up to the end of a slab can share it. Each root is a space:
// what else keys and values depend on, and who may share them.
//
// A node without a slab is pending: a sequence is computing its tokens, and others may wait for it. A node may have
// fewer tokens than a slab holds, and no children then: the tokens at the end of a prompt or of a sequence.
//
// A region that holds a node holds all nodes above it. So a node that no region holds has no node
// below it that a region holds, and every such node can be evicted, leaves first.
type tree struct {
	slabTokens int
	worthOf    Worth
	spaces     map[string]*node
	bySlab     []*node // [slabs] the node of each slab, nil without
	leaves     leaves  // nodes without children that no region holds: what can be evicted now
	idle       int     // nodes that no region holds
	clock      int64   // counts matches
	stay       int64   // see Use
	changes    changes
	observer   Observer // see Manager.Observe
	cold       cold
}

// node is a slab in the tree. The root of a space has no slab.
type node struct {
	parent   *node
	space    string // of a root
	children []*node
	tokens   []int32 // up to slabTokens; the parent's come before them
	slab     int32   // -1: pending, or a root
	held     bool    // by a region
	by       Seq     // computes a pending one
	waiters  []Seq   // of a pending one
	uses     uint32
	used     int64      // clock of the last use
	worth    int64      // in leaves
	heapAt   int        // in leaves, -1 without
	hash     chain.Hash // of a root, and of a node with a full slab, where the tree hashes
	cold     bool       // listed as cold
}

func newTree(slabs, slabTokens int, worth Worth) tree {
	return tree{slabTokens: slabTokens, worthOf: worth, spaces: make(map[string]*node), bySlab: make([]*node, slabs)}
}

// find returns the place of tokens among a node's children, which are in lexical order, and whether a child has them.
func (n *node) find(tokens []int32) (at int, ok bool) {
	return slices.BinarySearchFunc(n.children, tokens, func(c *node, t []int32) int { return slices.Compare(c.tokens, t) })
}

// match is the part of a prompt that the tree has.
type match struct {
	path    []*node // of the slabs that are all of the prompt's first tokens
	next    *node   // the child of the last one whose first tokens are the prompt's next ones; nil without
	partial int     // tokens of next
	pending *node   // the last of the nodes that follow path and are pending, as are the prompt's next tokens; nil without
	soon    int     // tokens that pending and the nodes before it add to path
}

// match finds the nodes with the tokens that a prompt begins with.
func (t *tree) match(space string, tokens []int32) (m match) {
	n := t.spaces[space]
	if n == nil {
		return m
	}
	for len(tokens) >= t.slabTokens {
		at, ok := n.find(tokens[:t.slabTokens])
		if !ok || n.children[at].slab < 0 {
			break
		}
		n = n.children[at]
		m.path = append(m.path, n)
		tokens = tokens[t.slabTokens:]
	}
	m.next, m.partial = n.nearest(tokens, func(c *node) bool { return c.slab >= 0 })
	for len(tokens) > 0 {
		c, common := n.nearest(tokens, func(c *node) bool { return c.slab < 0 })
		if c == nil {
			break
		}
		m.pending, m.soon = c, m.soon+common
		if common < t.slabTokens {
			break
		}
		n, tokens = c, tokens[common:]
	}
	return m
}

// nearest returns the child among those wanted with the longest common prefix with tokens, and its length; nil when it is 0.
func (n *node) nearest(tokens []int32, want func(*node) bool) (best *node, common int) {
	at, _ := n.find(tokens)
	// In lexical order prefixes only get shorter with the distance.
	try := func(c *node) bool {
		k := commonPrefix(c.tokens, tokens)
		if want(c) && k > common {
			best, common = c, k
		}
		return k > common
	}
	for i := at; i < len(n.children) && try(n.children[i]); i++ {
	}
	for i := at - 1; i >= 0 && try(n.children[i]); i-- {
	}
	return best, common
}

func commonPrefix(a, b []int32) int {
	n := min(len(a), len(b))
	for i := range n {
		if a[i] != b[i] {
			return i
		}
	}
	return n
}

// root returns the root of a space.
func (t *tree) root(space string) *node {
	n := t.spaces[space]
	if n == nil {
		n = &node{space: space, slab: -1, heapAt: -1}
		if t.hashes() {
			n.hash = chain.Root(space)
		}
		t.spaces[space] = n
	}
	return n
}

// insert adds a pending node below parent, at the place that find returned.
func (t *tree) insert(parent *node, at int, tokens []int32) *node {
	t.unleaf(parent)
	n := &node{parent: parent, tokens: slices.Clone(tokens), slab: -1, heapAt: -1}
	parent.children = slices.Insert(parent.children, at, n)
	return n
}

// fill gives a pending node its slab, which a region holds, and returns the sequences that waited for it.
func (t *tree) fill(n *node, slab int32) (waiters []Seq) {
	n.slab, n.held, n.uses, n.used = slab, true, 1, t.clock
	t.bySlab[slab] = n
	t.stored(n)
	waiters, n.waiters = n.waiters, nil
	return waiters
}

// hold says that a region holds the node from now on.
func (t *tree) hold(n *node) {
	n.held = true
	t.idle--
	t.unleaf(n)
}

// touch notes a use of a node.
func (t *tree) touch(n *node) {
	n.used = t.clock
	if n.heapAt >= 0 {
		n.worth = t.value(n)
		heap.Fix(&t.leaves, n.heapAt)
	}
}

// drop says that no region holds the node any more. It removes the pending nodes below, so that the node can be evicted, and
// returns the sequences that waited for them: a region may have computed what another one, which does not hold the node
// yet, begins with.
func (t *tree) drop(n *node) (waiters []Seq) {
	n.held = false
	n.used = t.clock
	t.idle++
	for _, c := range slices.Clone(n.children) {
		if c.slab < 0 {
			waiters = append(waiters, t.cut(c)...)
		}
	}
	t.leaf(n)
	t.cool(n)
	return waiters
}

// cut removes a pending node and those below it, which are pending too, and returns the sequences that waited for them.
func (t *tree) cut(n *node) (waiters []Seq) {
	for _, c := range slices.Clone(n.children) {
		waiters = append(waiters, t.cut(c)...)
	}
	waiters, n.waiters = append(waiters, n.waiters...), nil
	t.remove(n)
	return waiters
}

// leaf makes a node evictable, if it has no children and no region.
func (t *tree) leaf(n *node) {
	if n.slab >= 0 && !n.held && len(n.children) == 0 && n.heapAt < 0 {
		n.worth = t.value(n)
		heap.Push(&t.leaves, n)
	}
}

func (t *tree) unleaf(n *node) {
	if n.heapAt >= 0 {
		heap.Remove(&t.leaves, n.heapAt)
	}
}

// replace gives an idle node another slab with the same contents, which a region holds, and returns its slab.
func (t *tree) replace(n *node, slab int32) (old int32) {
	t.hold(n)
	old, n.slab = n.slab, slab
	t.bySlab[old], t.bySlab[slab] = nil, n
	if t.observer != nil && len(n.tokens) == t.slabTokens {
		t.observer.Stored(slab, n.hash)
	}
	return old
}

// evict removes the leaf that is worth the least and returns its slab. There is one: idle > 0.
func (t *tree) evict() int32 {
	n := heap.Pop(&t.leaves).(*node)
	t.stay = max(t.clock-n.worth, 0)
	t.remove(n)
	t.idle--
	return n.slab
}

// remove unlinks a node without children.
func (t *tree) remove(n *node) {
	p := n.parent
	at, _ := p.find(n.tokens)
	p.children = slices.Delete(p.children, at, at+1)
	if n.slab >= 0 {
		t.bySlab[n.slab] = nil
		t.removed(n)
	}
	switch {
	case p.parent != nil:
		t.leaf(p)
	case len(p.children) == 0:
		delete(t.spaces, p.space)
	}
	n.parent = nil
}

// value is what a node is worth. The deepest node of a path is a leaf first.
func (t *tree) value(n *node) int64 {
	return t.worthOf(Use{Tokens: n.tokens, Last: n.used, Uses: n.uses, Stay: t.stay})
}

// leaves is a heap of nodes by worth.
type leaves []*node

func (h *leaves) Len() int { return len(*h) }

func (h *leaves) Less(i, j int) bool {
	a, b := (*h)[i], (*h)[j]
	if c := cmp.Compare(a.worth, b.worth); c != 0 {
		return c < 0
	}
	return a.slab < b.slab // any order that a replay repeats
}

func (h *leaves) Swap(i, j int) {
	s := *h
	s[i], s[j] = s[j], s[i]
	s[i].heapAt, s[j].heapAt = i, j
}

// Push is of heap.Interface.
func (h *leaves) Push(x any) {
	n := x.(*node)
	n.heapAt = len(*h)
	*h = append(*h, n)
}

// Pop is of heap.Interface.
func (h *leaves) Pop() any {
	old := *h
	n := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	n.heapAt = -1
	return n
}

// check recounts the tree; refs are the regions that hold each slab.
func (t *tree) check(refs []int32) error {
	nodes, idle, evictable := 0, 0, 0
	var walk func(n *node) error
	walk = func(n *node) error {
		for i, c := range n.children {
			switch {
			case c.parent != n || c.slab >= 0 && t.bySlab[c.slab] != c || len(c.tokens) > t.slabTokens:
				return fmt.Errorf("kvmgr: check: slab %d is not where the tree has it", c.slab)
			case len(c.tokens) < t.slabTokens && len(c.children) > 0:
				return fmt.Errorf("kvmgr: check: slab %d has %d tokens and %d children", c.slab, len(c.tokens), len(c.children))
			case i > 0 && slices.Compare(n.children[i-1].tokens, c.tokens) >= 0:
				return fmt.Errorf("kvmgr: check: slabs %d and %d of the tree are not in order", n.children[i-1].slab, c.slab)
			case c.slab < 0 && slices.ContainsFunc(c.children, func(d *node) bool { return d.slab >= 0 }):
				return fmt.Errorf("kvmgr: check: a slab follows a pending one")
			case c.slab < 0:
				if err := walk(c); err != nil {
					return err
				}
				continue
			case len(c.waiters) > 0:
				return fmt.Errorf("kvmgr: check: sequences wait for slab %d, which is computed", c.slab)
			case c.held != (refs[c.slab] > 0):
				return fmt.Errorf("kvmgr: check: slab %d counts %d references, held in the tree: %t", c.slab, refs[c.slab], c.held)
			case c.held && n.slab >= 0 && !n.held:
				return fmt.Errorf("kvmgr: check: slab %d is held, slab %d above it is not", c.slab, n.slab)
			case !c.held && slices.ContainsFunc(c.children, func(d *node) bool { return d.slab < 0 }):
				return fmt.Errorf("kvmgr: check: a pending slab follows slab %d, which nobody holds", c.slab)
			case (c.heapAt >= 0) != (!c.held && len(c.children) == 0):
				return fmt.Errorf("kvmgr: check: slab %d has %d children, held: %t, can be evicted: %t", c.slab, len(c.children), c.held, c.heapAt >= 0)
			}
			nodes++
			if !c.held {
				idle++
			}
			if c.heapAt >= 0 {
				evictable++
			}
			if err := walk(c); err != nil {
				return err
			}
		}
		return nil
	}
	for _, root := range t.spaces {
		if err := walk(root); err != nil {
			return err
		}
	}
	for i, n := range t.leaves {
		if n.heapAt != i || t.leaves.Less(i, (i-1)/2) {
			return fmt.Errorf("kvmgr: check: slab %d is at %d of the slabs to evict, which is not its place", n.slab, i)
		}
	}
	bySlab := len(t.bySlab)
	for _, n := range t.bySlab {
		if n == nil {
			bySlab--
		}
	}
	if nodes != bySlab || idle != t.idle || evictable != len(t.leaves) {
		return fmt.Errorf("kvmgr: check: the tree has %d slabs, %d idle, %d to evict; the counts say %d, %d, %d",
			nodes, idle, evictable, bySlab, t.idle, len(t.leaves))
	}
	return nil
}
