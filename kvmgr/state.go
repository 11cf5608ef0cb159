package kvmgr

import (
	"cmp"
	"container/heap"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"slices"

	"github.com/millrace/millrace/kvmgr/chain"
)

// State is the group of the layers whose past is a state of a fixed size, as in a gated delta net, Mamba-2 and short convolutions. The
// state changes with each token, so a sequence has slabs of its own for it, before those of its tokens, and others read copies: see
// Snapshot.
type State struct {
	Slabs int  // of the state
	Every int  // tokens between two snapshots in a prompt: a multiple of a slab's
	Sole  bool // no layer has keys and values, so slabs of tokens are names in the tree and hold nothing
}

func (g State) String() string { return fmt.Sprintf("a state of %d slabs", g.Slabs) }

func (g State) validate(slabTokens int) error {
	if g.Slabs < 1 || g.Every < 1 || g.Every > mostTokens || g.Every%slabTokens != 0 {
		return fmt.Errorf("%w: a state of %d slabs with a snapshot every %d tokens, expected at least 1 slab and a multiple of %d tokens",
			ErrInvalid, g.Slabs, g.Every, slabTokens)
	}
	return nil
}

// uses: a sequence begins where a snapshot is, at another worker too, and waits in the tier with its state. One that runs cannot go back to
// a snapshot.
func (State) uses() Uses { return Uses{Shares: true, Copies: true, Spills: true} }

// alone is false: the tokens of a Full group follow the state.
func (State) alone() bool { return false }

func (State) places(int, int) int { return 0 }

func (g State) head() int { return g.Slabs }

func (g State) every() int { return g.Every }

func (State) sees(int) int { return 0 }

func (State) trims() (live, kept int) { return 0, 0 }

func (g State) need(n *Need) { n.HeadSlabs += g.Slabs }

const (
	// templateTail is the number of tokens at the end of a prompt that the next turn of a conversation may not have: chat templates put the
	// beginning of an answer there, and those of models that think another one than they keep.
	templateTail = 8
	// branchTokens is the number of tokens that a snapshot at a branch saves at least for those that begin there.
	branchTokens = 64
)

// Snapshots says whether sequences have a state, and begin at snapshots of it.
func (s Spec) Snapshots() bool { return s.every() > 0 }

// NextSnapshot returns the first position after start at which the state of a sequence with a prompt of some tokens is to be kept, 0 if
// there is none. These are multiples of the distance of snapshots, the Branch of the sequence's Hit, and the last whole slab before the end
// of the prompt.
func (s Spec) NextSnapshot(start, prompt, branch int) int {
	every := s.every()
	if every == 0 {
		return 0
	}
	last := (prompt - templateTail) / s.SlabTokens * s.SlabTokens
	if start >= last {
		return 0
	}
	next := last
	if at := (start/every + 1) * every; at <= last-every/2 { // two that are close cost a step more
		next = at
	}
	if start < branch {
		next = min(next, branch)
	}
	return next
}

// snapshot is a copy of a state, in slabs that no sequence holds.
type snapshot struct {
	slabs  []int32
	node   *node   // with the last of the tokens that the state is of; nil: it is lent
	region *region // that it is lent to
	tokens int
	worth  int64
	heapAt int // -1: a region holds the slabs
}

// held says whether the sequence that computed the state has not been released yet.
func (v *snapshot) held() bool { return v.heapAt < 0 }

// states are the snapshots of a pool. Their slabs are given back on demand, as those of the prefix tree. The heap has them in the order of
// eviction.
type states struct {
	every int
	heap  []*snapshot
	slabs int // of all of them
}

// level is higher for snapshots that are evicted later, among those of one path that were used at the same time: what is left of a path is
// evenly spaced, and the ends of prompts and answers, where conversations continue, stay the longest.
func (s *states) level(tokens int) int {
	if tokens%s.every != 0 {
		return math.MaxInt
	}
	return bits.TrailingZeros(uint(tokens / s.every))
}

// Len is of heap.Interface.
func (s *states) Len() int { return len(s.heap) }

// Less is of heap.Interface.
func (s *states) Less(i, j int) bool {
	a, b := s.heap[i], s.heap[j]
	return cmp.Or(cmp.Compare(a.worth, b.worth), cmp.Compare(s.level(a.tokens), s.level(b.tokens)), cmp.Compare(a.tokens, b.tokens),
		cmp.Compare(a.slabs[0], b.slabs[0])) < 0
}

// Swap is of heap.Interface.
func (s *states) Swap(i, j int) {
	s.heap[i], s.heap[j] = s.heap[j], s.heap[i]
	s.heap[i].heapAt, s.heap[j].heapAt = i, j
}

// Push is of heap.Interface.
func (s *states) Push(x any) {
	v := x.(*snapshot)
	v.heapAt = len(s.heap)
	s.heap = append(s.heap, v)
}

// Pop is of heap.Interface.
func (s *states) Pop() any {
	last := len(s.heap) - 1
	v := s.heap[last]
	s.heap[last] = nil
	s.heap = s.heap[:last]
	return v
}

// add lists a snapshot.
func (s *states) add(v *snapshot) {
	heap.Push(s, v)
	s.slabs += len(v.slabs)
}

// remove takes a snapshot off the list, and its node or region off the snapshot.
func (s *states) remove(v *snapshot) {
	heap.Remove(s, v.heapAt)
	s.slabs -= len(v.slabs)
	if v.node != nil {
		v.node.state = nil
	} else {
		v.region.lent = nil
	}
}

// lentOnly says that all snapshots that are left are lent.
func (s *states) lentOnly() bool { return len(s.heap) == 0 || s.heap[0].node == nil }

// StateHash names a slab of the state after a prefix, as the prefix names its slab: no token is negative.
func StateHash(prefix chain.Hash, slab int) chain.Hash { return prefix.Next([]int32{int32(-1 - slab)}) }

// keepState reports the slabs of a state that is at a node, and the node's own one if it is not full: nobody writes to it any more.
func (t *tree) keepState(n *node) {
	if t.observer == nil {
		return
	}
	prefix := n.chained()
	if len(n.tokens) < t.slabTokens {
		t.observer.Stored(n.slab, prefix)
	}
	for i, id := range n.state.slabs {
		t.observer.Stored(id, StateHash(prefix, i))
	}
}

// enter makes a snapshot the state at a node.
func (t *tree) enter(v *snapshot, n *node) {
	v.node, v.region, n.state = n, nil, v
	t.unleaf(n)
	t.states.add(v)
	for ; n != nil; n = n.parent { // a path that is used stays as a whole
		if n.state != nil {
			t.touch(n)
		}
	}
}

// matchState is match where a sequence begins with a state: it ends with the last node whose snapshot the tree has.
func (t *tree) matchState(space string, tokens []int32) (m match) {
	root := t.spaces[space]
	if root == nil {
		return m
	}
	walk := root.walk(tokens, t.slabTokens)
	for i := len(walk); i >= 0 && m.state == nil; i-- {
		n := root
		if i > 0 {
			n = walk[i-1]
		}
		if c := n.ending(tokens[i*t.slabTokens:], t.slabTokens); c != nil {
			m = match{path: walk[:i], next: c, partial: len(c.tokens), state: c.state}
		} else if n.state != nil {
			m = match{path: walk[:i], state: n.state}
		}
	}
	for i, n := range walk[len(m.path):] {
		if n.slab >= 0 {
			m.branch = (len(m.path) + i + 1) * t.slabTokens
		}
		if n.pending && n.keeps {
			m.pending, m.soon = n, (i+1)*t.slabTokens
		}
	}
	return m
}

// ending returns the longest child with fewer tokens than a slab that some tokens begin with and that has a state; nil without.
func (n *node) ending(tokens []int32, slabTokens int) *node {
	if len(n.children) == 1 && len(n.children[0].tokens) == slabTokens {
		return nil // most nodes
	}
	for k := min(slabTokens-1, len(tokens)); k > 0; k-- {
		if at, ok := n.find(tokens[:k]); ok && n.children[at].state != nil {
			return n.children[at]
		}
	}
	return nil
}

// branches returns the position at which a prompt leaves the tokens that others computed, if it is far from the last state before it; else
// 0. What two have in common a third one will have, as the system prompt of a service.
func (f *found) branches(whole int) int {
	if branch := f.groups[0].branch; branch-whole-f.partial >= branchTokens {
		return branch
	}
	return 0
}

// leaseHead leases the slabs of a region before those of its tokens.
func (m *Manager) leaseHead(r *region) {
	m.room(m.head)
	m.count(r, -1)
	r.head = m.free.take(nil, m.head, -1)
	for _, id := range r.head {
		m.refs[id] = 1
		m.keep(r, 0, id, 1)
	}
	m.count(r, 1)
	m.void(r.head)
}

// resume leases the state of a region that begins at a snapshot, and the slab in which the snapshot's tokens end, and adds the copies to
// its hit. Where there is no room for two the region takes the snapshot over.
func (m *Manager) resume(r *region, f *found, h *Hit) {
	v, need := f.state, m.head+min(f.partial, 1)
	n, held := v.node, v.held()
	if !held {
		m.states.remove(v)
	}
	if f.partial > 0 {
		n.uses++
		m.trees[0].touch(n)
	}
	if !held && need > m.free.count+m.idle()-min(f.partial, 1) { // what ends in the slab of n is not evicted
		m.takeOver(r, v)
		m.trees[0].leaf(n)
	} else {
		n.state = v
		m.leaseHead(r)
		h.Copy = Copy{From: slices.Clone(v.slabs), To: slices.Clone(r.head), Tokens: m.slabTokens}
	}
	if f.partial > 0 {
		from := n.slab // the lease may return it
		to := m.extend(r, f.whole+1)
		h.Slabs++
		h.Tokens += f.partial
		if to[0] != from {
			h.Copy = Copy{From: append(h.Copy.From, from), To: append(h.Copy.To, to[0]), Tokens: m.slabTokens}
		}
	}
	if n.state != nil && !held {
		m.trees[0].enter(v, n)
	}
}

// takeOver makes the slabs of a snapshot those of a region's state.
func (m *Manager) takeOver(r *region, v *snapshot) {
	m.count(r, -1)
	r.head = v.slabs
	m.void(r.head)
	for _, id := range r.head {
		m.refs[id] = 1
		m.keep(r, 0, id, 1)
	}
	m.count(r, 1)
}

// Lend returns slabs for a copy of a sequence's state after its first tokens, whole slabs of them, which it is to have soon; nil if there
// is no use or no room for it. They are the tree's, which may give them to others with the next call that leases. So who copies the state
// does it before what that call leased is written, or not at all. Snapshot says that the copy is there.
func (m *Manager) Lend(seq Seq, tokens int) []int32 {
	r := m.regions[seq]
	if m.states == nil || r == nil || !r.cached || tokens < 1 || tokens%m.slabTokens != 0 || m.slabsOf(r, tokens) > r.positions() {
		return nil
	}
	if r.lent == nil {
		for m.free.count < m.head {
			if len(m.trees[0].leaves) == 0 && m.states.lentOnly() {
				return nil
			}
			m.evict()
		}
		r.lent = &snapshot{slabs: m.free.take(nil, m.head, -1), region: r, worth: math.MaxInt64}
		m.states.add(r.lent)
		m.void(r.lent.slabs)
	}
	r.lent.tokens = tokens
	heap.Fix(m.states, r.lent.heapAt)
	return slices.Clip(r.lent.slabs)
}

// Snapshot says that the slabs that were lent to a sequence hold the state after its first tokens, which it has committed: others may begin
// there. Only the last state of an answer is kept. Without effect if the slabs are others' now. Error: ErrUnknownSequence.
func (m *Manager) Snapshot(seq Seq, tokens int) error {
	r := m.regions[seq]
	if r == nil {
		return fmt.Errorf("%w: snapshot of %d", ErrUnknownSequence, seq)
	}
	v := r.lent
	if v == nil || v.tokens != tokens {
		return nil
	}
	p := &r.paths[0]
	m.states.remove(v)
	if !r.cached || p.inTree*m.slabTokens != tokens || p.last.state != nil {
		m.discard(v)
		return nil
	}
	m.trees[0].enter(v, p.last)
	m.trees[0].keepState(p.last)
	if tokens > r.known {
		m.outlive(r)
		r.late = v
	}
	return nil
}

// Retire commits a sequence's tokens, and gives the tree its state, which is that after all of them: the next turn of a conversation begins
// there. The sequence computes nothing from here on, and holds the slabs of the state, as those of its tokens, until its Release. Without
// states it is Commit with a tail. Errors: those of Commit.
func (m *Manager) Retire(seq Seq, tokens []int32) error {
	if err := m.Commit(seq, tokens, true); err != nil || m.states == nil {
		return err
	}
	r := m.regions[seq]
	if !r.cached || r.head == nil || len(tokens) == 0 || r.paths[0].inTree != len(tokens)/m.slabTokens {
		return nil
	}
	t, p := &m.trees[0], &r.paths[0]
	n := p.last
	if rest := tokens[p.inTree*m.slabTokens:]; len(rest) > 0 {
		parent := m.parent(r, 0)
		at, ok := parent.find(rest)
		if !ok {
			t.insert(parent, at, rest)
		}
		if n = parent.children[at]; n.slab < 0 {
			m.ready = append(m.ready, t.fill(n, r.at(p.inTree, 0))...)
		}
	}
	r.cached = false
	m.settle(r)
	if n.state != nil {
		t.touch(n)
		return nil
	}
	t.unleaf(n)
	r.left = &snapshot{slabs: r.head, node: n, tokens: len(tokens), heapAt: -1}
	n.state = r.left
	t.keepState(n)
	m.outlive(r)
	return nil
}

// leave gives the tree the slabs of the state that a region, which ends, has left there.
func (m *Manager) leave(r *region) {
	if r.left == nil {
		return
	}
	for _, id := range r.head {
		m.keep(r, 0, id, -1)
		m.refs[id] = 0
	}
	r.head = nil
	m.trees[0].enter(r.left, r.left.node)
}

// outlive gives back the last snapshot of a region's answer, if the tree still has it: there is a later one. Those who continue the answer
// begin there.
func (m *Manager) outlive(r *region) {
	if v := r.late; v != nil && v.node.state == v {
		n := v.node
		m.states.remove(v)
		m.discard(v)
		m.trees[0].leaf(n)
	}
	r.late = nil
}

// discard gives the slabs of a snapshot back.
func (m *Manager) discard(v *snapshot) {
	for _, id := range v.slabs {
		m.free.put(int(id))
	}
}

// evictState gives back the slabs of the snapshot that is worth the least. There is one.
func (m *Manager) evictState() {
	v := m.states.heap[0]
	n := v.node
	m.states.remove(v)
	m.discard(v)
	if n != nil {
		t := &m.trees[0]
		t.stay = max(t.clock-v.worth, 0)
		t.leaf(n)
	}
}

// check recounts the snapshots, and marks their slabs; refs are the regions that hold each slab.
func (s *states) check(refs []int32, marked []bool) error {
	slabs := 0
	for i, v := range s.heap {
		switch {
		case v.heapAt != i || s.Less(i, (i-1)/2):
			return fmt.Errorf("kvmgr: check: the snapshot of %d tokens is at %d of those to evict, which is not its place", v.tokens, i)
		case v.node != nil && (v.node.state != v || v.node.slab < 0 || v.node.parent == nil), v.node == nil && v.region.lent != v:
			return fmt.Errorf("kvmgr: check: the snapshot of %d tokens is not where the tree has it", v.tokens)
		}
		for _, id := range v.slabs {
			if refs[id] > 0 || marked[id] {
				return fmt.Errorf("kvmgr: check: slab %d of a snapshot of %d tokens is another one's, or %d sequences hold it", id,
					v.tokens, refs[id])
			}
			marked[id] = true
		}
		slabs += len(v.slabs)
	}
	if slabs != s.slabs {
		return errors.New("kvmgr: check: the count of the slabs of snapshots is wrong")
	}
	return nil
}
