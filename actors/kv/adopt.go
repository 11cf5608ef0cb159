package kv

import (
	"slices"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/millrace/millrace/actors/msg"
	"github.com/millrace/millrace/kvmgr"
	"github.com/millrace/millrace/kvmgr/chain"
	"github.com/millrace/millrace/kvmgr/kvfile"
)

// estate is the pool that a dead worker left on this host. A transfer copies slabs from it as from a living worker.
type estate struct {
	pool     *kvfile.Dead
	prefixes [][]chain.Hash // of the sequence's full slabs, by group of layers
	state    chain.Hash     // of the tokens that the state comes after
	copied   bool           // at least one slab
}

// adopt copies the next slabs of a dead worker's sequence. It comes from the KV manager itself, one at a time: rounds are served
// between two of them.
type adopt struct{ seq msg.SeqID }

// estate finds what a dead worker left of a sequence; false if nothing can be there.
func (x *exchange) estate(t *transfer) bool {
	if x.pools == nil {
		return false
	}
	var e estate
	for group := range x.groups {
		e.prefixes = append(e.prefixes, chain.Of(kvmgr.GroupSpace(t.prompt.Space, group), x.slabTokens, t.prompt.Tokens))
	}
	t.have = len(t.prompt.Tokens) - 1
	slabs := len(e.prefixes[0])
	if t.begins() {
		e.pool, slabs = x.pools.Longest(x.slabsOf, e.prefixes[0])
	} else {
		e.pool = x.pools.Dead(t.source.KV.Address, x.slabsOf)
	}
	if e.pool == nil {
		return false
	}
	t.dead = &e
	switch {
	case x.head > 0:
		return x.stateOf(t, (slabs+1)*x.slabTokens-1)
	case t.begins():
		return x.limitTo(t, slabs*x.slabTokens)
	}
	return true
}

// orphaned makes the transfer of a sequence that has left its source copy from what that left, if it is dead.
func (x *exchange) orphaned(ctx actor.Context, t *transfer) bool {
	if x.pools == nil || t.waiting == nil || t.dead != nil || t.begins() || x.lives(t) ||
		x.pools.Dead(t.source.KV.Address, x.slabsOf) == nil {
		return false
	}
	x.transfers = slices.DeleteFunc(x.transfers, func(o *transfer) bool { return o == t })
	x.keep(t)
	source := t.source
	source.Dead = true
	x.begin(ctx, &transfer{source: source, prompt: t.prompt, length: t.length, waiting: t.waiting})
	return true
}

// keeps says whether the pool has all slabs of the state after a prefix.
func (e *estate) keeps(prefix chain.Hash, slabs int) bool {
	for i := range slabs {
		if _, ok := e.pool.Stored(kvmgr.StateHash(prefix, i)); !ok {
			return false
		}
	}
	return true
}

// limitTo limits a transfer to the first tokens of its sequence; false if this worker has them.
func (x *exchange) limitTo(t *transfer, tokens int) bool {
	known := kvmgr.Prompt{Space: t.prompt.Space, Tokens: t.prompt.Tokens[:len(t.prompt.Tokens)-1]} // the last one is computed
	if _, here := x.kv.Find(known, true); tokens <= here {
		return false
	}
	t.have = min(t.have, tokens)
	t.prompt.Tokens = t.prompt.Tokens[:t.have+1]
	return true
}

// stateOf limits a transfer to the last tokens, of a number at most, after which a dead worker kept the state; false if this worker has
// them, or there are none. A sequence's own state is not among these: the step that the death interrupted has changed a part of it.
func (x *exchange) stateOf(t *transfer, most int) bool {
	known, hashes := t.prompt.Tokens, t.dead.prefixes[0]
	for n := min(t.have, most); n > 0; n-- {
		prefix, rest := chain.Root(t.prompt.Space), n%x.slabTokens
		if whole := n / x.slabTokens; whole > 0 {
			prefix = hashes[whole-1]
		}
		if rest > 0 {
			prefix = prefix.Next(known[n-rest : n])
		}
		if !t.dead.keeps(prefix, x.head) {
			continue
		}
		if rest > 0 { // the slab that the tokens do not fill
			hashes = append(hashes[:n/x.slabTokens:n/x.slabTokens], prefix)
		}
		t.dead.prefixes[0], t.dead.state = hashes, prefix
		return x.limitTo(t, n)
	}
	return false
}

// ask makes a transfer from a dead worker's pool proceed, unless another one does.
func (x *exchange) ask(ctx actor.Context, t *transfer) {
	if t.slabs != nil && !x.adopting {
		x.adopting = true
		ctx.Send(ctx.Self(), &adopt{t.source.Seq})
	}
}

// adopt copies the next slabs of a transfer, until it finds no more.
func (x *exchange) adopt(ctx actor.Context, m *adopt) {
	x.adopting = false
	t := x.transfer(m.seq)
	if t == nil || t.dead == nil || t.slabs == nil { // it has ended, or is another one
		x.request(ctx)
		return
	}
	data := make([]byte, x.memory.SlabBytes())
	for range max(1, fetchBytes/max(1, len(data))) {
		slab, ok := x.inherited(t)
		if !ok {
			x.end(ctx, t)
			return
		}
		tokens, last := 0, false
		err := t.dead.pool.ReadSlab(slab, data)
		if err == nil {
			tokens, last, err = x.put(t, data)
		}
		if err != nil {
			x.fail(ctx, t, err)
			return
		}
		x.metrics.Adopted(tokens)
		t.dead.copied = true
		if t.next = t.got; last {
			x.end(ctx, t)
			return
		}
	}
	x.request(ctx)
}

// inherited returns the dead worker's slab for the next one of a transfer: the one that ends the same prefix, or else the
// one that the sequence computed.
func (x *exchange) inherited(t *transfer) (slab int32, ok bool) {
	if t.got < x.head {
		return t.dead.pool.Stored(kvmgr.StateHash(t.dead.state, t.got))
	}
	if prefixes := t.dead.prefixes[(t.got-x.head)%x.groups]; x.here(t) < len(prefixes) {
		if slab, ok = t.dead.pool.Stored(prefixes[x.here(t)]); ok {
			return slab, true
		}
	}
	if !t.source.Complete {
		return 0, false
	}
	return t.dead.pool.Leased(t.seq(), t.got)
}
