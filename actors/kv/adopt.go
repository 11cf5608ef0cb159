package kv

import (
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
	if t.begins() {
		e.pool = x.prefix(t, e.prefixes[0])
	} else {
		e.pool = x.pools.Dead(t.source.KV.Address, x.slabsOf)
	}
	if e.pool == nil {
		return false
	}
	t.dead = &e
	return true
}

// prefix returns the pool of a dead worker that has a longer prefix of a prompt than this worker, and limits the transfer to
// it; nil without.
func (x *exchange) prefix(t *transfer, prefixes []chain.Hash) *kvfile.Dead {
	pool, slabs := x.pools.Longest(x.slabsOf, prefixes)
	if _, here := x.kv.Find(t.prompt); slabs*x.slabTokens <= here {
		return nil
	}
	t.prompt.Tokens = t.prompt.Tokens[:min(len(t.prompt.Tokens), slabs*x.slabTokens+1)]
	return pool
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
	t := x.find(m.seq)
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
		tokens := 0
		err := t.dead.pool.ReadSlab(slab, data)
		if err == nil {
			tokens, err = x.put(t, data, min((x.here(t)+1)*x.slabTokens, len(t.prompt.Tokens)-1))
		}
		if err != nil {
			x.fail(ctx, t, err)
			return
		}
		x.metrics.Adopted(tokens)
		t.dead.copied = true
		if t.next = t.got; t.got == len(t.slabs) {
			x.end(ctx, t)
			return
		}
	}
	x.request(ctx)
}

// inherited returns the dead worker's slab for the next one of a transfer: the one that ends the same prefix, or else the
// one that the sequence computed.
func (x *exchange) inherited(t *transfer) (slab int32, ok bool) {
	if prefixes := t.dead.prefixes[t.got%x.groups]; x.here(t) < len(prefixes) {
		if slab, ok = t.dead.pool.Stored(prefixes[x.here(t)]); ok {
			return slab, true
		}
	}
	if !t.source.Complete {
		return 0, false
	}
	return t.dead.pool.Leased(t.seq(), t.got)
}
