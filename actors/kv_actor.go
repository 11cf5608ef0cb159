package actors

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/millrace/millrace/actors/msg"
	"github.com/millrace/millrace/kvmgr"
	"github.com/millrace/millrace/metrics"
)

// kvIdle is how long the KV manager rests before it recounts its books.
const kvIdle = time.Second

// kvActor owns the books of the KV pool. It outlives a restart of its actor:
// the manager is a plain value.
type kvActor struct {
	kv      *kvmgr.Manager
	metrics *metrics.Model
	free    *atomic.Int64 // slabs, for others to see
	broken  func(error)   // told when the books contradict themselves
}

// kvSnapshot asks for the pool's state; *KVState answers.
type kvSnapshot struct{}

// KVState is the KV manager's books.
type KVState struct {
	Stats   kvmgr.Stats    `json:"stats"`
	Regions []kvmgr.Region `json:"regions"`
	Check   string         `json:"check"` // "ok", or what is wrong
}

func (a *kvActor) Receive(ctx actor.Context) {
	switch m := ctx.Message().(type) {
	case *msg.Reserve:
		a.reserve(ctx, m)
	case *msg.Lease:
		a.lease(ctx, m)
	case *msg.Release:
		freed, err := a.kv.Release(kvmgr.Seq(m.Seq))
		if err != nil {
			a.broken(err)
			return
		}
		ctx.Send(m.Reply, &msg.Freed{Slabs: freed})
	case *kvSnapshot:
		ctx.Respond(a.state())
		return
	case *actor.ReceiveTimeout:
		if err := a.kv.Check(); err != nil {
			a.broken(err)
		}
		return
	default:
		return
	}
	s := a.kv.Stats()
	a.metrics.KVUsage(s.Used+s.Promised, s.Slabs)
	a.free.Store(int64(s.Free))
	ctx.SetReceiveTimeout(kvIdle)
}

func (a *kvActor) reserve(ctx actor.Context, m *msg.Reserve) {
	var err error
	if m.Beams > 0 {
		err = a.kv.ReserveSegments(kvmgr.Seq(m.Seq), kvmgr.Segments{Prompt: m.Prompt, Response: m.Tokens - m.Prompt, Beams: m.Beams})
	} else {
		err = a.kv.Reserve(kvmgr.Seq(m.Seq), m.Tokens)
	}
	var short *kvmgr.ShortageError
	switch {
	case err == nil:
		a.lease(ctx, &m.Lease)
	case errors.As(err, &short):
		ctx.Send(m.Reply, &msg.Denied{
			Seq: m.Seq, Need: short.Need, Free: short.Free, Pool: short.Pool, Never: errors.Is(err, kvmgr.ErrNeverFits),
		})
	default:
		a.broken(err)
	}
}

// lease cannot fail within a reservation: if it does, the books and the
// scheduler disagree.
func (a *kvActor) lease(ctx actor.Context, m *msg.Lease) {
	slabs, err := a.kv.Lease(kvmgr.Seq(m.Seq), m.UpTo)
	if err != nil {
		a.broken(err)
		return
	}
	m.Slabs = slabs
	ctx.Send(m.Reply, &m.Leased)
}

func (a *kvActor) state() *KVState {
	s := &KVState{Stats: a.kv.Stats(), Regions: a.kv.Regions(), Check: "ok"}
	if err := a.kv.Check(); err != nil {
		s.Check = err.Error()
	}
	return s
}
