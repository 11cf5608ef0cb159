package kvmgr

import (
	"cmp"
	"container/heap"
	"errors"
	"fmt"
	"slices"

	"github.com/millrace/millrace/kvmgr/chain"
)

// tree is the prefix tree of a group of layers: the slabs whose tokens are computed, by the tokens before and in them.
//
// A node is a slab. Its path from the root is the tokens that its keys and values depend on, so that
// two sequences with the same tokens up to the end of a slab can share it. Each root is a space:
// what else keys and values depend on, and who may share them.
//
// A node without a slab may be pending: a sequence is computing its tokens, and others may wait for it. A node may have
// fewer tokens than a slab holds, and no children then: the tokens at the end of a prompt or of a sequence.
//
// Where sequences keep all slabs every other node has its slab. A region that holds a node holds all nodes above it. So a node that no
// region holds has no node below it that a region holds, and every such node can be evicted, leaves first.
//
// Where they give slabs back, as those of a window, a region holds the last nodes of its path only, and a hit needs no more than these. Any
// node that no region holds can be evicted. It loses its slab, and stays while there are nodes below it, or a region follows it.
type tree struct {
	group      int
	slabTokens int
	of         Group
	slides     bool // sequences give its slabs back, see Trim
	worthOf    Worth
	spaces     map[string]*node
	bySlab     []*node // of Manager
	states     *states // of Manager
	// nodes that no region holds, without a state, and without children where there is no window: what can be evicted now
	leaves   leaves
	idle     int   // nodes with slabs that no region holds
	clock    int64 // counts matches
	stay     int64 // see Use
	changes  changes
	observer Observer // see Manager.Observe
	cold     cold
}

// node is a slab in the tree. The root of a space has no slab.
type node struct {
	parent   *node
	group    int
	space    string // of a root
	children []*node
	tokens   []int32   // up to slabTokens; the parent's come before them
	slab     int32     // -1: pending, evicted, or a root
	held     bool      // its slab is, by a region
	known    bool      // its tokens were computed
	pins     int       // regions that follow it
	depth    int       // nodes above it, where there is a window
	state    *snapshot // after its tokens; nil: none is kept
	pending  bool      // a region computes it
	keeps    bool      // of a pending one: that region keeps its state there
	by       Seq       // that one
	waiters  []Seq     // of a pending one
	uses     uint32
	used     int64      // clock of the last use
	worth    int64      // in leaves
	heapAt   int        // in leaves, -1 without
	hash     chain.Hash // of a root, and of a node with a full slab, where the tree hashes
	cold     bool       // listed as cold
}

func newTree(bySlab []*node, group int, spec Spec, worth Worth) tree {
	of := spec.Groups[group]
	return tree{group: group, of: of, slides: trims(of), slabTokens: spec.SlabTokens, worthOf: worth, spaces: make(map[string]*node),
		bySlab: bySlab}
}

// find returns the place of tokens among a node's children, which are in lexical order, and whether a child has them.
func (n *node) find(tokens []int32) (at int, ok bool) {
	return slices.BinarySearchFunc(n.children, tokens, func(c *node, t []int32) int { return slices.Compare(c.tokens, t) })
}

// match is the part of a prompt that the tree has.
type match struct {
	path    []*node   // of the slabs that are all of the prompt's first tokens
	first   int       // those before it are not seen by the tokens that follow the match
	next    *node     // the child of the last one whose first tokens are the prompt's next ones; nil without
	partial int       // tokens of next
	pending *node     // the last of the nodes that follow path and are pending, with the prompt's next tokens; nil without
	soon    int       // tokens that pending and the nodes before it add to path
	state   *snapshot // see matchState
	branch  int       // tokens of the nodes with slabs that follow path, those of path counted; 0: none do
}

// matches is match, or where there are states matchState, and match of whole slabs.
func (t *tree) matches(space string, tokens []int32, slabs, all bool, want func(*node) bool) match {
	switch {
	case t.states == nil:
		return t.match(space, tokens, all, want)
	case slabs:
		return t.match(space, tokens[:len(tokens)/t.slabTokens*t.slabTokens], all, func(*node) bool { return false })
	default:
		return t.matchState(space, tokens)
	}
}

// match finds the nodes with the tokens that a prompt begins with: the longest run from the root whose last slabs are there, as far as the
// next token sees them, or to the root if all are wanted. The last one may have the first of its tokens only, if it is wanted.
func (t *tree) match(space string, tokens []int32, all bool, want func(*node) bool) (m match) {
	root := t.spaces[space]
	if root == nil {
		return m
	}
	walk := root.walk(tokens, t.slabTokens)
	tokens = tokens[len(walk)*t.slabTokens:]
	seen := func(position int) int { // the first slab that a token at a position sees
		if all {
			return 0
		}
		return t.of.sees(position) / t.slabTokens
	}
	there, found := 0, 0 // the slabs from there on are
	for i, n := range walk {
		if n.slab < 0 {
			there = i + 1
		} else if seen((i+1)*t.slabTokens) >= there {
			found = i + 1
		}
	}
	end := root
	if len(walk) > 0 {
		end = walk[len(walk)-1]
	}
	if m.next, m.partial = end.nearest(tokens, want); m.next != nil && seen(len(walk)*t.slabTokens+m.partial) >= there {
		found = len(walk)
	}
	if m.path = walk[:found]; found < len(walk) {
		last := root
		if found > 0 {
			last = walk[found-1]
		}
		m.next, m.partial = last.nearest(walk[found].tokens, want)
	}
	m.first = min(seen(found*t.slabTokens+m.partial), found)
	for i, n := range walk[found:] {
		if n.pending {
			m.pending, m.soon = n, (i+1)*t.slabTokens
		}
	}
	if c, common := end.nearest(tokens, func(c *node) bool { return c.pending }); c != nil && t.states == nil {
		m.pending, m.soon = c, (len(walk)-found)*t.slabTokens+common
	}
	return m
}

// walk returns the nodes below n whose tokens, all of a slab, are the first of some tokens.
func (n *node) walk(tokens []int32, slabTokens int) (path []*node) {
	for len(tokens) >= slabTokens {
		at, ok := n.find(tokens[:slabTokens])
		if !ok {
			break
		}
		n = n.children[at]
		path, tokens = append(path, n), tokens[slabTokens:]
	}
	return path
}

// hasSlab says that a node has a slab.
func hasSlab(n *node) bool { return n.slab >= 0 }

// quiet says that a node has a slab that no sequence writes to.
func quiet(n *node) bool { return hasSlab(n) && !n.held }

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
		n = &node{group: t.group, space: space, slab: -1, heapAt: -1}
		if t.hashes() {
			n.hash = chain.Root(GroupSpace(space, t.group))
		}
		t.spaces[space] = n
	}
	return n
}

// insert adds a node without a slab below parent, at the place that find returned.
func (t *tree) insert(parent *node, at int, tokens []int32) {
	n := &node{parent: parent, group: t.group, tokens: slices.Clone(tokens), slab: -1, heapAt: -1}
	if !t.slides {
		t.unleaf(parent)
	} else {
		n.depth = parent.depth + 1
	}
	if t.slides && t.hashes() {
		n.hash = n.chained()
	}
	parent.children = slices.Insert(parent.children, at, n)
}

// fill gives a node its slab, which a region holds, and returns the sequences that waited for it.
func (t *tree) fill(n *node, slab int32) (waiters []Seq) {
	n.slab, n.held, n.pending, n.uses, n.used = slab, true, false, max(n.uses, 1), t.clock
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
	if n.state != nil && !n.state.held() {
		n.state.worth = t.value(n)
		heap.Fix(t.states, n.state.heapAt)
	}
}

// drop says that no region holds the node any more. Without a window it removes the pending nodes below, so that the node can be evicted,
// and returns the sequences that waited for them: a region may have computed what another one, which does not hold the node
// yet, begins with.
func (t *tree) drop(n *node) (waiters []Seq) {
	n.held = false
	n.used = t.clock
	t.idle++
	for _, c := range slices.Clone(n.children) {
		if c.slab < 0 && !t.slides {
			waiters = append(waiters, t.cut(c)...)
		}
	}
	t.leaf(n)
	t.cool(n)
	return waiters
}

// cut says that nobody computes a pending node any more, and returns the sequences that waited for it. Without a window the nodes below it,
// which are pending too, go with it.
func (t *tree) cut(n *node) (waiters []Seq) {
	for _, c := range slices.Clone(n.children) {
		if !t.slides {
			waiters = append(waiters, t.cut(c)...)
		}
	}
	waiters, n.waiters = append(waiters, n.waiters...), nil
	n.pending = false
	t.prune(n)
	return waiters
}

// prune removes a node without a use, and those above it that have none then.
func (t *tree) prune(n *node) {
	for n != nil && n.parent != nil && n.slab < 0 && !n.pending && n.pins == 0 && len(n.children) == 0 {
		parent := n.parent
		t.remove(n)
		n = parent
	}
}

// evictable says whether a node's slab can be evicted now.
func (t *tree) evictable(n *node) bool {
	return n.slab >= 0 && !n.held && n.state == nil && (t.slides || len(n.children) == 0)
}

// leaf lists a node, if it is evictable.
func (t *tree) leaf(n *node) {
	if t.evictable(n) && n.heapAt < 0 {
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

// evict takes the slab of the node that is worth the least, and returns it. There is one: idle > 0.
func (t *tree) evict() int32 {
	n := heap.Pop(&t.leaves).(*node)
	if t.states == nil { // else those that have a use are snapshots
		t.stay = max(t.clock-n.worth, 0)
	}
	t.idle--
	slab := n.slab
	t.bySlab[slab], n.slab = nil, -1
	t.prune(n)
	return slab
}

// remove unlinks a node without children.
func (t *tree) remove(n *node) {
	p := n.parent
	at, _ := p.find(n.tokens)
	p.children = slices.Delete(p.children, at, at+1)
	if n.slab >= 0 {
		t.bySlab[n.slab] = nil
	}
	if n.known {
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
	if a.depth != b.depth { // what follows needs the last window
		return a.depth < b.depth
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

// checkNode checks a child of a node by itself.
func (t *tree) checkNode(n, c *node) error {
	switch {
	case c.pending && c.slab >= 0 || len(c.waiters) > 0 && !c.pending:
		return fmt.Errorf("kvmgr: check: slab %d is computed, and pending: %t; %d sequences wait for it", c.slab, c.pending, len(c.waiters))
	case c.slab < 0 && !c.pending && (!t.slides || c.pins == 0 && len(c.children) == 0):
		return errors.New("kvmgr: check: the tree has a slab that is of no use")
	case t.slides:
	case c.slab < 0 && slices.ContainsFunc(c.children, func(d *node) bool { return d.slab >= 0 }):
		return errors.New("kvmgr: check: a slab follows a pending one")
	case c.held && n.slab >= 0 && !n.held:
		return fmt.Errorf("kvmgr: check: slab %d is held, slab %d above it is not", c.slab, n.slab)
	case c.slab >= 0 && !c.held && slices.ContainsFunc(c.children, func(d *node) bool { return d.slab < 0 }):
		return fmt.Errorf("kvmgr: check: a pending slab follows slab %d, which nobody holds", c.slab)
	}
	return nil
}

// check recounts the tree, and returns the number of its slabs; refs are the regions that hold each slab.
func (t *tree) check(refs []int32) (nodes int, err error) {
	idle, evictable := 0, 0
	var walk func(n *node) error
	walk = func(n *node) error {
		for i, c := range n.children {
			if err := t.checkNode(n, c); err != nil {
				return err
			}
			switch {
			case c.parent != n || c.group != t.group || c.slab >= 0 && t.bySlab[c.slab] != c || len(c.tokens) > t.slabTokens:
				return fmt.Errorf("kvmgr: check: slab %d is not where the tree has it", c.slab)
			case len(c.tokens) < t.slabTokens && len(c.children) > 0:
				return fmt.Errorf("kvmgr: check: slab %d has %d tokens and %d children", c.slab, len(c.tokens), len(c.children))
			case i > 0 && slices.Compare(n.children[i-1].tokens, c.tokens) >= 0:
				return fmt.Errorf("kvmgr: check: slabs %d and %d of the tree are not in order", n.children[i-1].slab, c.slab)
			case c.slab < 0:
				if err := walk(c); err != nil {
					return err
				}
				continue
			case c.held != (refs[c.slab] > 0):
				return fmt.Errorf("kvmgr: check: slab %d counts %d references, held in the tree: %t", c.slab, refs[c.slab], c.held)
			case (c.heapAt >= 0) != t.evictable(c):
				return fmt.Errorf("kvmgr: check: slab %d has %d children, held: %t, can be evicted: %t", c.slab, len(c.children), c.held,
					c.heapAt >= 0)
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
			return 0, err
		}
	}
	for i, n := range t.leaves {
		if n.heapAt != i || t.leaves.Less(i, (i-1)/2) {
			return 0, fmt.Errorf("kvmgr: check: slab %d is at %d of the slabs to evict, which is not its place", n.slab, i)
		}
	}
	if idle != t.idle || evictable != len(t.leaves) {
		return 0, fmt.Errorf("kvmgr: check: the tree of group %d has %d slabs, %d idle, %d to evict; the counts say %d, %d",
			t.group, nodes, idle, evictable, t.idle, len(t.leaves))
	}
	return nodes, nil
}

// checkTrees recounts all trees.
func (m *Manager) checkTrees() error {
	nodes, bySlab := 0, 0
	for i := range m.trees {
		n, err := m.trees[i].check(m.refs)
		if err != nil {
			return err
		}
		nodes += n
	}
	for _, n := range m.bySlab {
		if n != nil {
			bySlab++
		}
	}
	if nodes != bySlab {
		return fmt.Errorf("kvmgr: check: the trees have %d slabs, the count says %d", nodes, bySlab)
	}
	return nil
}

// idle is the number of slabs that no region holds, in all trees, those of snapshots counted.
func (m *Manager) idle() (n int) {
	for i := range m.trees {
		n += m.trees[i].idle
	}
	if m.states != nil {
		n += m.states.slabs
	}
	return n
}
