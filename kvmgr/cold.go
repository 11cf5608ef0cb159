package kvmgr

import (
	"slices"

	"github.com/millrace/millrace/kvmgr/chain"
)

// Cold is a slab of the prefix tree whose tokens nobody computes or changes any more.
type Cold struct {
	Slab   int32
	Hash   chain.Hash // of the tokens up to the slab's end
	Parent chain.Hash // of those before it
	Tokens []int32    // of the slab; read only
}

// cold lists slabs that somebody wants to keep elsewhere.
type cold struct {
	wanted bool
	queue  []*node
}

// Cold returns the next whole slab that no sequence held for a time, after the slabs before it in its prefix; false when there
// is none. A slab is listed again each time that it is released, and evicted slabs are not. Its contents stay until the next
// call that leases. It needs Config.Cold.
func (m *Manager) Cold() (Cold, bool) {
	c := &m.trees[0].cold
	for len(c.queue) > 0 {
		n := c.queue[0]
		c.queue[0] = nil
		c.queue = c.queue[1:]
		n.cold = false
		if n.parent != nil && n.slab >= 0 {
			return Cold{Slab: n.slab, Hash: n.hash, Parent: n.parent.hash, Tokens: n.tokens}, true
		}
	}
	return Cold{}, false
}

// cool lists a node that nobody holds now, and those above it that are not listed: without them it is of no use. With a window its sequence
// has given those back before.
func (t *tree) cool(n *node) {
	c := &t.cold
	if !c.wanted || len(n.tokens) < t.slabTokens {
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
		c.queue = slices.DeleteFunc(c.queue, func(n *node) bool { return n.parent == nil })
	}
}
