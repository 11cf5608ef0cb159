package kvdisk

import (
	"container/list"

	"github.com/millrace/millrace/kvmgr/chain"
)

// index says which slot of a file has which slab. Times are Unix seconds. It must not know files.
type index struct {
	byKey map[chain.Hash]*list.Element
	order list.List // of *entry, the one that was used the longest ago first
	free  []int     // slots
	ttl   int64     // seconds without a use, after which an entry is gone
}

type entry struct {
	key  chain.Hash
	slot int
	used int64
}

// newIndex returns an index of slots without entries.
func newIndex(slots int, ttl int64) *index {
	x := &index{byKey: make(map[chain.Hash]*list.Element), ttl: ttl}
	for slot := slots - 1; slot >= 0; slot-- {
		x.free = append(x.free, slot)
	}
	return x
}

// find returns the entry of a key, unless it has expired.
func (x *index) find(key chain.Hash, now int64) *entry {
	e := x.byKey[key]
	if e == nil || x.expired(e.Value.(*entry), now) {
		return nil
	}
	return e.Value.(*entry)
}

func (x *index) expired(e *entry, now int64) bool { return now-e.used >= x.ttl }

// use notes a use of the key's entry, which is there.
func (x *index) use(key chain.Hash, now int64) {
	e := x.byKey[key]
	e.Value.(*entry).used = now
	x.order.MoveToBack(e)
}

// take returns a slot that no entry has: a free one, or that of the entry that was used the longest ago, which is removed.
func (x *index) take() int {
	if len(x.free) == 0 {
		x.remove(x.order.Front().Value.(*entry).key)
	}
	last := len(x.free) - 1
	slot := x.free[last]
	x.free = x.free[:last]
	return slot
}

// add gives a slot that take returned to a key without an entry.
func (x *index) add(key chain.Hash, slot int, now int64) {
	x.byKey[key] = x.order.PushBack(&entry{key, slot, now})
}

// remove makes the slot of a key's entry free. It does nothing without one.
func (x *index) remove(key chain.Hash) {
	if e := x.byKey[key]; e != nil {
		x.free = append(x.free, x.order.Remove(e).(*entry).slot)
		delete(x.byKey, key)
	}
}

// oldest returns the entry that was used the longest ago, if it has expired; nil without.
func (x *index) oldest(now int64) *entry {
	if e := x.order.Front(); e != nil && x.expired(e.Value.(*entry), now) {
		return e.Value.(*entry)
	}
	return nil
}
