package kv

import (
	"hash/crc32"
	"slices"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/millrace/millrace/actors/msg"
	"github.com/millrace/millrace/kvmgr"
)

// departure is a sequence whose slabs another worker copies. It keeps them when it ends, until that worker has them: in a small pool others
// would have its last ones at once.
type departure struct{ timer *time.Timer } // nil: it runs

// departed says that the worker has had its time.
type departed struct{ seq msg.SeqID }

// fetch answers with slabs, the last time after the sequence has ended: its last tokens are in the prefix tree then.
func (x *exchange) fetch(ctx actor.Context, m *msg.Fetch) {
	x.served.Store(time.Now().UnixNano())
	d, runs := x.departing[m.Seq], x.kv.Has(kvmgr.Seq(m.Seq))
	switch {
	case d != nil && d.timer != nil:
		runs = false
		d.timer.Reset(roomPatience)
	case runs && m.Count > 0:
		x.departing[m.Seq] = &departure{}
	}
	switch {
	case m.Count == 0 && m.Last: // the worker needs nothing more
		x.depart(ctx, m.Seq)
	case m.Count == 0: // it still needs this one
	case m.Last && runs:
		again := func(o *msg.Fetch) bool { return o.First == m.First && o.Reply.Equal(m.Reply) }
		x.leaving[m.Seq] = append(slices.DeleteFunc(x.leaving[m.Seq], again), m)
	default:
		x.serve(ctx, m)
	}
}

// holds says that a sequence that ends is to be released later.
func (x *exchange) holds(ctx actor.Context, seq msg.SeqID) bool {
	d := x.departing[seq]
	if d == nil {
		return false
	}
	root, self := ctx.ActorSystem().Root, ctx.Self()
	d.timer = time.AfterFunc(roomPatience, func() { root.Send(self, &departed{seq}) })
	return true
}

// depart releases a sequence that has ended, or will when it does.
func (x *exchange) depart(ctx actor.Context, seq msg.SeqID) {
	d := x.departing[seq]
	delete(x.departing, seq)
	if d == nil || d.timer == nil {
		return
	}
	d.timer.Stop()
	if _, err := x.kv.Release(kvmgr.Seq(seq)); err != nil {
		x.broken(err)
		return
	}
	x.announceRoom(ctx)
	x.reserveAll(ctx)
}

// released answers those that waited for the end of sequences.
func (x *exchange) released(ctx actor.Context, seqs []msg.SeqID) {
	for _, seq := range seqs {
		for _, m := range x.leaving[seq] {
			x.serve(ctx, m)
		}
		delete(x.leaving, seq)
	}
}

// find returns what there is of a sequence by place, the number of its tokens, and how it is read. They are in the prefix tree, or, if it
// is spilled, in the tier.
func (x *exchange) find(m *msg.Fetch) (found []int32, have int, read func(from int32, to []byte) error) {
	if x.slabsOf == "" || m.SlabsOf != x.slabsOf {
		return nil, 0, nil
	}
	found, have, slots := x.kv.Away(kvmgr.Seq(m.Seq))
	ahead := x.head > 0 && m.Last && have >= len(m.Tokens) // a state of tokens that the other side does not know
	switch {
	case found != nil && !ahead && slots:
		return found, have, x.tier.Read
	case found != nil && !ahead:
		return found, have, x.memory.ReadSlab
	}
	tokens := m.Tokens
	if n := len(tokens); x.head > 0 && m.Last && n > 0 { // the other side computes the last token: a state of it is too late
		tokens = tokens[:n-1]
	}
	found, have = x.kv.FindOf(kvmgr.Seq(m.Seq), kvmgr.Prompt{Space: m.Space, Tokens: tokens}, m.Last)
	return found, have, x.memory.ReadSlab
}

// serve sends slabs. They are read here and now, before anything can be evicted.
func (x *exchange) serve(ctx actor.Context, m *msg.Fetch) {
	found, have, read := x.find(m)
	next := m.First
	for ; next-m.First < m.Count; next++ {
		if !x.kv.Copied(len(m.Tokens), next, m.Last) {
			continue
		}
		if next >= len(found) || found[next] < 0 {
			break
		}
		s := msg.NewSlab(x.memory.SlabBytes())
		if err := read(found[next], s.Data); err != nil {
			x.log.Warn().Err(err).Msg("a slab for another worker cannot be read")
			break
		}
		s.Seq, s.Index, s.Have, s.Sum = m.Seq, next, have, crc32.Checksum(s.Data, castagnoli)
		ctx.Send(m.Reply, s)
	}
	if next-m.First < m.Count {
		ctx.Send(m.Reply, &msg.Slab{Seq: m.Seq, Index: next, Have: have})
	}
}
