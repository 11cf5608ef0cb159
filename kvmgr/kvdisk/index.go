package kvdisk

import (
	"cmp"
	"container/heap"

	"github.com/millrace/millrace/kvmgr/chain"
)

// index says which slots of a file have which slabs. Times are Unix seconds. It must not know files.
//
// What others follow stays: a slab is found by those before it, and a state by the slabs of its tokens. So the next entry to go is the one
// that was used the longest ago among those that none follows, and a use of an entry is one of all before it. The slabs of a state go
// together.
type index struct {
	tokens     map[chain.Hash]*entry // slabs of tokens
	states     map[chain.Hash]*entry // by the prefix that they come after
	followers  map[chain.Hash]int    // entries by their parent, which need not be there
	leaves     leaves
	free       []int // slots
	ttl        int64 // seconds without a use, after which an entry is gone
	stateSlabs int   // of a state; 0: there are none
	uses       uint64
}

// entry is a slab of tokens, or those of a state that are there.
type entry struct {
	key    chain.Hash // of a state the parent's
	parent chain.Hash
	state  bool
	slots  []int // of a state by slab, -1: not there
	used   int64
	use    uint64 // number of the last one: an order of those of a second
	heapAt int    // in leaves, -1 without
}

// newIndex returns an index of slots without entries.
func newIndex(slots, stateSlabs int, ttl int64) *index {
	x := &index{
		tokens: make(map[chain.Hash]*entry), states: make(map[chain.Hash]*entry), followers: make(map[chain.Hash]int),
		ttl: ttl, stateSlabs: stateSlabs,
	}
	for slot := slots - 1; slot >= 0; slot-- {
		x.free = append(x.free, slot)
	}
	return x
}

// entry returns that of a block; nil without.
func (x *index) entry(b Block) *entry {
	if b.state() >= 0 {
		return x.states[b.Key]
	}
	return x.tokens[b.Key]
}

// slot returns that of a block; -1 without.
func (x *index) slot(b Block) int {
	if e := x.entry(b); e != nil {
		return e.slots[max(b.state(), 0)]
	}
	return -1
}

// find returns the slot of a block, unless it has expired.
func (x *index) find(b Block, now int64) (slot int, ok bool) {
	if e := x.entry(b); e == nil || x.expired(e, now) {
		return -1, false
	}
	slot = x.slot(b)
	return slot, slot >= 0
}

// has says whether there is a slab of tokens.
func (x *index) has(key chain.Hash, now int64) bool {
	e := x.tokens[key]
	return e != nil && !x.expired(e, now)
}

// hasState says whether there are all slabs of the state after a prefix.
func (x *index) hasState(prefix chain.Hash, now int64) bool {
	e := x.states[prefix]
	if e == nil || x.expired(e, now) {
		return false
	}
	for _, slot := range e.slots {
		if slot < 0 {
			return false
		}
	}
	return true
}

func (x *index) expired(e *entry, now int64) bool { return now-e.used >= x.ttl }

// touch notes a use of an entry, and of those before it that this second has not seen.
func (x *index) touch(e *entry, now int64) {
	for x.uses++; e != nil; e = x.tokens[e.parent] {
		e.used, e.use = now, x.uses
		if e.heapAt >= 0 {
			heap.Fix(&x.leaves, e.heapAt)
		}
		if p := x.tokens[e.parent]; p == nil || p.used >= now {
			return
		}
	}
}

// take returns a slot for a block that has none: a free one, or one of the entry that goes next, which is removed. false if that is what
// the block follows or belongs to: there is no room for both.
func (x *index) take(b Block, now int64) (slot int, ok bool) {
	if p := x.tokens[b.Parent]; p != nil {
		x.touch(p, now)
	}
	if len(x.free) == 0 {
		if len(x.leaves) == 0 || x.leaves[0] == x.entry(b) || x.leaves[0] == x.tokens[b.Parent] {
			return -1, false
		}
		x.remove(x.leaves[0])
	}
	last := len(x.free) - 1
	slot = x.free[last]
	x.free = x.free[:last]
	return slot, true
}

// add gives a slot that take returned to a block without one.
func (x *index) add(b Block, slot int, now int64) {
	e, at := x.entry(b), b.state()
	if e == nil {
		e = &entry{key: b.Key, parent: b.Parent, state: at >= 0, heapAt: -1}
		if x.followers[b.Parent]++; x.tokens[b.Parent] != nil {
			x.unleaf(x.tokens[b.Parent])
		}
		if e.state {
			x.states[b.Key] = e
			for range x.stateSlabs {
				e.slots = append(e.slots, -1)
			}
		} else {
			x.tokens[b.Key], e.slots = e, []int{-1}
		}
		x.leaf(e)
	}
	e.slots[max(at, 0)] = slot
	x.touch(e, now)
}

// remove makes the slots of an entry free, and returns them.
func (x *index) remove(e *entry) (slots []int) {
	for _, slot := range e.slots {
		if slot >= 0 {
			slots = append(slots, slot)
		}
	}
	x.free = append(x.free, slots...)
	x.unleaf(e)
	if e.state {
		delete(x.states, e.key)
	} else {
		delete(x.tokens, e.key)
	}
	if x.followers[e.parent]--; x.followers[e.parent] == 0 {
		delete(x.followers, e.parent)
		if p := x.tokens[e.parent]; p != nil {
			x.leaf(p)
		}
	}
	return slots
}

// leaf lists an entry, if none follows it.
func (x *index) leaf(e *entry) {
	if e.heapAt < 0 && (e.state || x.followers[e.key] == 0) {
		heap.Push(&x.leaves, e)
	}
}

func (x *index) unleaf(e *entry) {
	if e.heapAt >= 0 {
		heap.Remove(&x.leaves, e.heapAt)
	}
}

// oldest returns the entry that goes next, if it has expired; nil without.
func (x *index) oldest(now int64) *entry {
	if len(x.leaves) > 0 && x.expired(x.leaves[0], now) {
		return x.leaves[0]
	}
	return nil
}

// leaves is a heap of entries by their last use.
type leaves []*entry

func (h *leaves) Len() int { return len(*h) }

func (h *leaves) Less(i, j int) bool {
	a, b := (*h)[i], (*h)[j]
	return cmp.Or(cmp.Compare(a.used, b.used), cmp.Compare(a.use, b.use)) < 0
}

func (h *leaves) Swap(i, j int) {
	s := *h
	s[i], s[j] = s[j], s[i]
	s[i].heapAt, s[j].heapAt = i, j
}

// Push is of heap.Interface.
func (h *leaves) Push(v any) {
	e := v.(*entry)
	e.heapAt = len(*h)
	*h = append(*h, e)
}

// Pop is of heap.Interface.
func (h *leaves) Pop() any {
	old := *h
	e := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	e.heapAt = -1
	return e
}
