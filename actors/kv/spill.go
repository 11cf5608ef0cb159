package kv

import (
	"errors"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/millrace/millrace/actors/msg"
	"github.com/millrace/millrace/kvmgr"
)

// moveAhead bounds the slabs of a move that are on their way: their bytes are in memory twice.
const moveAhead = 4

// Tier is where slabs of paused sequences are kept: a *tier.File.
type Tier interface {
	Slots() int
	Write(slot int32, data []byte) error
	Read(slot int32, to []byte) error
}

// spill copies the slabs of paused sequences to the tier and back, while others run.
type spill struct {
	*exchange
	io    *actor.PID // reads and writes the tier; nil: there is none
	moves map[msg.SeqID]*move
	lost  map[msg.SeqID]bool // that have nothing since their copies failed. The worker may release them before it knows
}

// move copies a sequence to the tier, or from there.
type move struct {
	seq    msg.SeqID
	copies []kvmgr.Move
	back   bool // from the tier
	upTo   int  // tokens to lease when it is back
	next   int  // the first of copies that was not begun
	done   int
	failed bool
}

// slotCopy is for the tierActor, and comes back when it is done.
type slotCopy struct {
	of   *move
	copy kvmgr.Move
	data []byte
	err  error
}

// tierActor reads and writes a tier beside the KV manager, in the order of its messages: a slot that was given to another sequence is
// written after everything that the one before it requested.
type tierActor struct{ tier Tier }

func (a *tierActor) Receive(ctx actor.Context) {
	m, ok := ctx.Message().(*slotCopy)
	if !ok {
		return
	}
	if m.of.back {
		m.err = a.tier.Read(m.copy.Slot, m.data)
	} else {
		m.err = a.tier.Write(m.copy.Slot, m.data)
	}
	ctx.Respond(m)
}

// round begins the moves that the worker requested.
func (s *spill) round(ctx actor.Context, m *msg.KVRound) error {
	for _, e := range m.Spill {
		copies, err := s.kv.Spill(kvmgr.Seq(e.Seq), e.Tokens)
		if err := s.begin(ctx, m, &move{seq: e.Seq, copies: copies}, err); err != nil {
			return err
		}
	}
	for i := range m.Restore {
		r := &m.Restore[i]
		copies, err := s.kv.Restore(kvmgr.Seq(r.Seq), kvmgr.Length{End: r.Tokens, Promise: r.Promise})
		if err := s.begin(ctx, m, &move{seq: r.Seq, copies: copies, back: true, upTo: r.Lease}, err); err != nil {
			return err
		}
	}
	return nil
}

// begin starts a move, unless the sequence has to stay where it is.
func (s *spill) begin(ctx actor.Context, m *msg.KVRound, v *move, err error) error {
	if errors.Is(err, kvmgr.ErrNoSlabs) {
		m.Kept = append(m.Kept, v.seq)
		return nil
	}
	if err == nil {
		s.moves[v.seq] = v
		s.request(ctx, v)
	}
	return err
}

func (s *spill) receive(ctx actor.Context) {
	switch m := ctx.Message().(type) {
	case *slotCopy:
		s.take(ctx, m)
	case *msg.KVCopied:
		for _, v := range s.moves {
			s.request(ctx, v)
		}
	}
}

// request makes the next copies begin. Slabs are read here and now. The first one from the tier waits for copies inside the pool: their
// sources may be slabs of the sequence now.
func (s *spill) request(ctx actor.Context, v *move) {
	if v.back && v.next == 0 && s.copies > 0 {
		return
	}
	for !v.failed && v.next < len(v.copies) && v.next-v.done < moveAhead {
		c := &slotCopy{of: v, copy: v.copies[v.next], data: s.buffer()}
		v.next++
		if !v.back {
			if err := s.memory.ReadSlab(c.copy.Slab, c.data); err != nil {
				s.fail(v, err)
			}
		}
		ctx.Request(s.io, c)
	}
}

// take notes a copy that is done. A slab that comes from the tier is written to the pool, where nobody else has it.
func (s *spill) take(ctx actor.Context, c *slotCopy) {
	v := c.of
	v.done++
	if s.moves[v.seq] == v { // else the sequence has ended
		if c.err == nil && v.back && !v.failed {
			c.err = s.memory.WriteSlab(c.copy.Slab, c.data)
		}
		if c.err != nil {
			s.fail(v, c.err)
		}
		s.request(ctx, v)
		if v.done == v.next {
			s.end(ctx, v)
		}
	}
	s.buffers = append(s.buffers, c.data)
}

func (s *spill) fail(v *move, err error) {
	if !v.failed {
		v.failed = true
		s.log.Warn().Err(err).Uint64("seq", uint64(v.seq)).Msg("keys and values of a spilled sequence are computed again")
	}
}

// end says what became of a move, when nothing of it is on its way any more.
func (s *spill) end(ctx actor.Context, v *move) {
	delete(s.moves, v.seq)
	answer := &msg.KVMoved{}
	var err error
	switch seq := kvmgr.Seq(v.seq); {
	case v.failed:
		answer.Lost = append(answer.Lost, v.seq)
		s.lost[v.seq] = true
		s.metrics.SpillLost()
		_, err = s.kv.Release(seq)
		if !v.back {
			answer.Spilled = append(answer.Spilled, v.seq)
		}
	case v.back:
		g := msg.Granted{Seq: v.seq, UpTo: min(v.upTo, s.kv.Limit(seq))}
		if g.Computed, err = s.kv.Restored(seq); err == nil {
			_, err = s.kv.Lease(seq, g.UpTo)
		}
		g.First, g.Slabs = s.kv.Live(seq)
		answer.Granted = append(answer.Granted, g)
		s.metrics.Restored()
	default:
		err = s.kv.Spilled(seq)
		answer.Spilled = append(answer.Spilled, v.seq)
	}
	if err != nil {
		s.broken(err)
		return
	}
	ctx.Send(s.worker, answer)
}
