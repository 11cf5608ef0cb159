package kv

import (
	"hash/crc32"
	"slices"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/millrace/millrace/actors/msg"
	"github.com/millrace/millrace/kvmgr"
)

// fetch answers with slabs, the last time after the sequence has ended: its last tokens are in the prefix tree then.
func (x *exchange) fetch(ctx actor.Context, m *msg.Fetch) {
	x.served.Store(time.Now().UnixNano())
	switch {
	case m.Count == 0: // the worker still needs this one
	case m.Last && x.kv.Has(kvmgr.Seq(m.Seq)):
		again := func(o *msg.Fetch) bool { return o.First == m.First && o.Reply.Equal(m.Reply) }
		x.leaving[m.Seq] = append(slices.DeleteFunc(x.leaving[m.Seq], again), m)
	default:
		x.serve(ctx, m)
	}
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

// serve sends slabs. They are read here and now, before anything can be evicted.
func (x *exchange) serve(ctx actor.Context, m *msg.Fetch) {
	var found []int32
	have := 0
	if x.slabsOf != "" && m.SlabsOf == x.slabsOf {
		found, have = x.kv.Find(kvmgr.Prompt{Space: m.Space, Tokens: m.Tokens}, m.Last)
	}
	next := m.First
	for ; next-m.First < m.Count; next++ {
		if !x.kv.Copied(len(m.Tokens), next, m.Last) {
			continue
		}
		if next >= len(found) || found[next] < 0 {
			break
		}
		s := msg.NewSlab(x.memory.SlabBytes())
		if err := x.memory.ReadSlab(found[next], s.Data); err != nil {
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
