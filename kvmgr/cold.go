package kvmgr

import (
	"slices"

	"github.com/millrace/millrace/kvmgr/chain"
)

// Cold is a slab of the prefix tree whose tokens nobody computes or changes any more, or one of a state after these.
type Cold struct {
	Slab   int32
	Hash   chain.Hash // of the tokens up to the slab's end, or that the state is of
	Parent chain.Hash // of those before the slab
	Tokens []int32    // of the slab; read only
	State  int        // number of the slab in its state; -1: it is of tokens
}

// cold lists slabs that somebody wants to keep elsewhere.
type cold struct {
	wanted bool
	hollow bool // slabs of tokens hold nothing
	queue  []*node
	next   int // the slab of the first node: -1 for that of its tokens, and then those of its state
}

// Cold returns the next whole slab that no sequence held for a time, after the slabs before it in its prefix; false when there
// is none. Where there are states it returns the slabs of one after those of its tokens, which need not be whole, and none that no state
// follows. A slab is listed again each time that it is released, and evicted slabs are not. Its contents stay until the next
// call that leases. It needs Config.Cold.
func (m *Manager) Cold() (Cold, bool) {
	c := &m.trees[0].cold
	for len(c.queue) > 0 {
		n, at := c.queue[0], c.next
		c.next++
		switch {
		case n.parent == nil || n.slab < 0 || at >= 0 && (n.state == nil || at == len(n.state.slabs)):
			c.queue[0] = nil
			c.queue, c.next = c.queue[1:], -1
			n.cold = false
		case at >= 0:
			return Cold{Slab: n.state.slabs[at], Hash: n.chained(), State: at}, true
		case !c.hollow:
			return Cold{Slab: n.slab, Hash: n.chained(), Parent: n.parent.hash, Tokens: n.tokens, State: -1}, true
		}
	}
	return Cold{}, false
}

// cool lists a node that nobody holds now, and those above it that are not listed: without them it is of no use. With a window its sequence
// has given those back before. Where there are states a node is of no use without one.
func (t *tree) cool(n *node) {
	c := &t.cold
	if !c.wanted || t.states == nil && len(n.tokens) < t.slabTokens || t.states != nil && n.state == nil {
		return
	}
	at := len(c.queue)
	for ; n.parent != nil && !n.cold; n = n.parent {
		n.cold = true
		c.queue = append(c.queue, n)
		if t.slides {
			break
		}
	}
	slices.Reverse(c.queue[at:])
	if len(c.queue) > 2*len(t.bySlab) { // most of them are evicted
		c.next = -1
		c.queue = slices.DeleteFunc(c.queue, func(n *node) bool { return n.parent == nil })
	}
}
