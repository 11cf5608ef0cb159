// Package kv is the actor of the KV manager: it owns the allocator of the device's KV memory
// (package kvmgr) and answers the worker's loop.
//
// It must not know the device or the scheduler: slabs are numbers here.
package kv

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"github.com/rs/zerolog"

	"github.com/millrace/millrace/actors/msg"
	"github.com/millrace/millrace/cluster/prefix"
	"github.com/millrace/millrace/kvmgr"
	"github.com/millrace/millrace/kvmgr/kvfile"
	"github.com/millrace/millrace/metrics"
)

// kvIdle is how long the KV manager rests before it checks its allocator.
const kvIdle = time.Second

// flushPatience is how long a process that ends waits for its disk.
const flushPatience = 5 * time.Second

// Manager is the KV manager of this process's device.
type Manager struct {
	actor kvActor
	root  *actor.RootContext
	pid   *actor.PID
}

// Config is what a KV manager needs.
type Config struct {
	Root      *actor.RootContext
	Spawn     func(name string, a actor.Actor) (*actor.PID, error)
	Slabs     int
	Mappings  int         // as of kvmgr.Config
	KV        kvmgr.Spec  // of the Runner
	Predicted bool        // as sched.Config.Predict
	BatchSize int         // as sched.Config.MaxBatchSize; 0: no bound
	Broken    func(error) // gets the error when the allocator contradicts itself
	Metrics   *metrics.Model
	Node      string             // of this process
	Publish   func(prefix.Event) // of the prefix cache, for gateways; nil: this process is alone
	Memory    Memory
	Pages     Pages                  // nil: all slabs have memory
	Whole     bool                   // with Pages: all slabs are to have memory soon, and keep it
	Disk      Store                  // nil: none
	Tier      Tier                   // nil: none
	SlabsOf   string                 // see msg.Fetch; "": slabs are not copied to other workers
	Pools     *kvfile.Dir            // where workers of this host leave their pools; nil: nowhere
	Pool      func() *kvfile.File    // this worker's, of the memory that it has now; nil: it leaves nothing
	Alive     func(node string) bool // says whether a worker that slabs come from lives, also if it does not answer; nil: not known
	Log       zerolog.Logger
}

// New spawns the actor.
func New(cfg Config) (*Manager, error) {
	slots := 0
	if cfg.Tier != nil {
		slots = cfg.Tier.Slots()
	}
	start := 0
	if cfg.Pages != nil {
		start = cfg.Pages.CommittedSlabs()
	}
	allocator, err := kvmgr.New(kvmgr.Config{
		Slabs: cfg.Slabs, Committed: start, Mappings: cfg.Mappings, Slots: slots, Cold: cfg.Disk != nil, Spec: cfg.KV,
	})
	if err != nil {
		return nil, err
	}
	m := &Manager{actor: kvActor{exchange: exchange{
		kv: allocator, groups: cfg.KV.Counts().Count(), head: cfg.KV.Head(), memory: cfg.Memory, tier: cfg.Tier,
		slabTokens: cfg.KV.SlabTokens, slabsOf: cfg.SlabsOf, metrics: cfg.Metrics, log: cfg.Log, broken: cfg.Broken,
		predicted: cfg.Predicted, batchSize: cfg.BatchSize, pools: cfg.Pools, alive: cfg.Alive, limit: fetchLimit,
		leaving: make(map[msg.SeqID][]*msg.Fetch), departing: make(map[msg.SeqID]*departure),
	}, node: cfg.Node, pool: cfg.Pool}, root: cfg.Root}
	m.actor.keep()
	m.actor.disk = disk{exchange: &m.actor.exchange, hollow: cfg.KV.Hollow(), store: cfg.Disk}
	if cfg.Disk != nil {
		if m.actor.disk.io, err = cfg.Spawn("kv-disk", &diskActor{store: cfg.Disk}); err != nil {
			return nil, err
		}
	}
	m.actor.spill = spill{exchange: &m.actor.exchange, moves: make(map[msg.SeqID]*move), lost: make(map[msg.SeqID]bool)}
	if cfg.Tier != nil {
		if m.actor.spill.io, err = cfg.Spawn("kv-tier", &tierActor{cfg.Tier}); err != nil {
			return nil, err
		}
	}
	if start > 0 {
		if err := m.actor.supply.begin(&m.actor.exchange, cfg, start); err != nil {
			return nil, err
		}
	}
	stats := allocator.Stats()
	m.actor.stats.Store(&stats)
	if m.pid, err = cfg.Spawn(msg.KVActor, &m.actor); err != nil || cfg.Publish == nil {
		return m, err
	}
	_, err = cfg.Spawn(msg.BlocksActor, newBlocksActor(cfg.Node, m.pid, cfg.Publish))
	return m, err
}

// PID is the actor's.
func (m *Manager) PID() *actor.PID { return m.pid }

// Stats returns the pool's numbers after the last round.
func (m *Manager) Stats() kvmgr.Stats { return *m.actor.stats.Load() }

// Served is when another worker requested slabs last.
func (m *Manager) Served() time.Time { return time.Unix(0, m.actor.served.Load()) }

// Flush waits until what no sequence holds is on the disk. Error: that of an actor that does not answer.
func (m *Manager) Flush() error {
	_, err := m.root.RequestFuture(m.pid, &flushDisk{}, flushPatience).Result()
	return err
}

// CloseDisk ends the use of the disk. Nothing is copied from or to the pool for it afterward. Error: as Flush.
func (m *Manager) CloseDisk() error {
	_, err := m.root.RequestFuture(m.pid, &closeDisk{}, flushPatience).Result()
	return err
}

// State returns the state of the allocator. A brief one has neither the ids of slabs nor the result of a check: rounds
// wait for it, and its time and its size hardly depend on what the pool holds.
func (m *Manager) State(ctx context.Context, brief bool) (*State, error) {
	wait := time.Second
	if d, ok := ctx.Deadline(); ok {
		wait = time.Until(d)
	}
	answer, err := m.root.RequestFuture(m.pid, &snapshot{brief}, wait).Result()
	if err != nil {
		return nil, fmt.Errorf("kv: the KV manager did not answer: %w", err)
	}
	state, ok := answer.(*State)
	if !ok {
		return nil, fmt.Errorf("kv: the KV manager answered with a %T", answer)
	}
	return state, nil
}

// kvActor owns the allocator of the KV pool. It outlives a restart of its actor:
// the manager is a plain value.
type kvActor struct {
	exchange
	disk   disk
	spill  spill
	supply supply
	stats  atomic.Pointer[kvmgr.Stats] // after the last round, for others to see
	node   string                      // of this process
	pool   func() *kvfile.File         // see Config
	blocks *actor.PID                  // gets the changes of the prefix tree; nil: nobody wants them
	rest   rest
}

// snapshot requests the pool's state; *State answers.
type snapshot struct{ brief bool }

// mapCells bounds State.Map.
const mapCells = 1024

// State is the state of the KV manager's allocator.
type State struct {
	Stats   kvmgr.Stats    `json:"stats"`
	Bytes   Bytes          `json:"bytes"`
	Map     kvmgr.Map      `json:"map"`
	Regions []kvmgr.Region `json:"regions"`
	Imports []Transfer     `json:"imports,omitempty"` // slabs on their way from other workers
	Disk    *Disk          `json:"disk,omitempty"`    // slabs on the disk; nil: none are kept there
	Check   string         `json:"check,omitempty"`   // "ok", or what is wrong; "" if the state is brief
}

// Bytes is the memory of the pool.
type Bytes struct {
	Reserved  uint64 `json:"reserved"`  // at most
	Committed uint64 `json:"committed"` // taken from the machine
	Used      uint64 `json:"used"`      // of it, by sequences
	Cached    uint64 `json:"cached"`    // of it, by prefixes that no sequence has
}

// keep makes the file of the pool say what slabs hold.
func (a *kvActor) keep() {
	if a.pool == nil {
		return
	}
	f := a.pool()
	if f == nil {
		a.kv.Observe(nil)
		return
	}
	f.Serve(a.node, a.slabsOf)
	a.kv.Observe(f)
}

func (a *kvActor) Receive(ctx actor.Context) {
	switch m := ctx.Message().(type) {
	case *msg.KVRound:
		if err := a.round(ctx, m); err != nil {
			a.broken(err)
			return
		}
		a.after(ctx, m)
		ctx.Send(m.Reply, m)
	case *msg.Prefetch, *msg.Import, *msg.Slab, *msg.KVCopied, *msg.Fetch, *expired, *adopt, *departed:
		a.receive(ctx)
		a.disk.receive(ctx)
		a.spill.receive(ctx)
		a.announce(ctx)
	case *readSlab, *writeSlab, *loadTimeout, *flushDisk, *closeDisk:
		a.disk.receive(ctx)
		a.announce(ctx)
	case *slotCopy:
		a.spill.receive(ctx)
		a.announce(ctx)
	case *change, *pressure:
		a.supply.receive(ctx)
	case *actor.Started:
		a.supply.plan(ctx)
		return
	case *record:
		a.kv.Record()
		a.blocks = m.reply
		ctx.Send(a.blocks, &changed{a.kv.Changes()})
		return
	case *snapshot:
		ctx.Respond(a.state(m.brief))
		return
	case *actor.Stopping:
		a.rest.end()
		a.supply.end()
		return
	case *rested:
		if err := a.kv.Check(); err != nil {
			a.broken(err)
		}
		return
	default:
		return
	}
	a.disk.keep(ctx)
	a.supply.plan(ctx)
	s := a.kv.Stats()
	if a.supply.scarce { // nobody can be promised the rest now
		s.Free -= s.Slabs - s.Committed
	}
	if list := a.kv.Changes(); len(list) > 0 {
		ctx.Send(a.blocks, &changed{list})
	}
	a.metrics.KVUsage(s.Used+s.Promised, s.Slabs)
	a.metrics.Spilled(s.Spilled)
	a.stats.Store(&s)
	a.rest.begin(ctx, kvIdle)
}

// round does what the message says. An error says that the allocator and the scheduler disagree.
func (a *kvActor) round(ctx actor.Context, m *msg.KVRound) error {
	for i := range m.Commit {
		if err := a.commit(&m.Commit[i]); err != nil {
			return err
		}
	}
	for _, seq := range m.Release {
		if a.spill.lost[seq] {
			delete(a.spill.lost, seq)
			delete(a.departing, seq)
			continue
		}
		delete(a.spill.moves, seq)
		if a.holds(ctx, seq) {
			continue
		}
		if _, err := a.kv.Release(kvmgr.Seq(seq)); err != nil {
			return err
		}
	}
	if m.Forget {
		a.keep()
		a.kv.Forget()
		a.disk.abandon()
	}
	for _, e := range m.Extend {
		if err := a.kv.Trim(kvmgr.Seq(e.Seq), e.From); err != nil {
			return err
		}
	}
	if err := a.spill.round(ctx, m); err != nil {
		return err
	}
	for i := range m.Reserve {
		short, err := a.reserve(ctx, m, &m.Reserve[i])
		if err != nil {
			return err
		}
		if short {
			break
		}
	}
	for _, e := range m.Extend {
		if err := a.extend(m, e); err != nil {
			return err
		}
	}
	for _, e := range m.Lend {
		m.Lent = append(m.Lent, msg.Lent{Seq: e.Seq, Tokens: e.Tokens, Slabs: a.kv.Lend(kvmgr.Seq(e.Seq), e.Tokens)})
	}
	return nil
}

// commit offers what a step computed to others.
func (a *kvActor) commit(c *msg.Commit) error {
	seq := kvmgr.Seq(c.Seq)
	if c.State && c.Tail {
		return a.kv.Retire(seq, c.Tokens)
	}
	if err := a.kv.Commit(seq, c.Tokens, c.Tail); err != nil || !c.State {
		return err
	}
	return a.kv.Snapshot(seq, len(c.Tokens))
}

// reserve grants or denies a reservation. short: there are too few slabs for now.
func (a *kvActor) reserve(ctx actor.Context, m *msg.KVRound, r *msg.Reserve) (short bool, err error) {
	setAside := a.arrived(r.Seq)
	if setAside == 0 && a.placesKept() {
		m.Denied = append(m.Denied, msg.Denied{Seq: r.Seq, Free: a.kv.Stats().Free, Pool: a.kv.Stats().Slabs})
		return true, nil
	}
	delete(a.spill.lost, r.Seq) // the worker knows
	var hit kvmgr.Hit
	length := kvmgr.Length{End: r.Tokens, Promise: r.Promise}
	switch seq := kvmgr.Seq(r.Seq); {
	case r.Beams > 0:
		beams := kvmgr.Segments{Prompt: r.Prompt, Response: r.Tokens - r.Prompt, Beams: r.Beams}
		hit, err = a.kv.ReserveSegments(seq, beams, kvmgr.Prompt{Space: r.Space, Tokens: r.Known})
	case len(r.Known) > 0:
		if l := a.disk.begin(ctx, r, length); l != nil {
			m.Parked = append(m.Parked, msg.Parked{Seq: r.Seq, By: msg.SeqID(l.seq())})
			return false, nil
		}
		hit, err = a.kv.ReservePrompt(seq, length, kvmgr.Prompt{Space: r.Space, Tokens: r.Known})
	default:
		err = a.kv.Reserve(seq, length)
	}
	if errors.Is(err, kvmgr.ErrNoSlabs) && setAside > 0 { // less than was predicted: else its slabs would be others' before there is more
		length.Promise = min(max(setAside, len(r.Known)), length.Promise)
		hit, err = a.kv.ReservePrompt(kvmgr.Seq(r.Seq), length, kvmgr.Prompt{Space: r.Space, Tokens: r.Known})
	}
	if c, ok := errors.AsType[*kvmgr.ComputingError](err); ok {
		m.Parked = append(m.Parked, msg.Parked{Seq: r.Seq, By: msg.SeqID(c.By)})
		return false, nil
	}
	if s, ok := errors.AsType[*kvmgr.ShortageError](err); ok {
		d := msg.Denied{Seq: r.Seq, Need: s.Need, Free: s.Free, Pool: s.Pool, Never: errors.Is(err, kvmgr.ErrNeverFits)}
		d.NoMemory = !d.Never && a.supply.hopeless()
		m.Denied = append(m.Denied, d)
		return !d.Never && !d.NoMemory, nil
	}
	if err != nil {
		return false, err
	}
	if err := a.lease(m, r.Seq, min(r.Lease, a.kv.Limit(kvmgr.Seq(r.Seq)))); err != nil {
		return false, err
	}
	g := &m.Granted[len(m.Granted)-1]
	if g.Branch = hit.Branch; hit.Slabs == 0 {
		return false, nil
	}
	g.Computed = hit.Tokens
	g.First, g.Slabs = a.kv.Live(kvmgr.Seq(r.Seq)) // those of the hit, too
	g.CopyFrom, g.CopyTo, g.CopyTokens = hit.Copy.From, hit.Copy.To, hit.Copy.Tokens
	return false, nil
}

// extend grants more slabs to a sequence, or none if it may not grow.
func (a *kvActor) extend(m *msg.KVRound, e msg.Extend) error {
	err := a.kv.Grow(kvmgr.Seq(e.Seq), e.Promise)
	if errors.Is(err, kvmgr.ErrNoSlabs) {
		m.Paused = append(m.Paused, e.Seq)
		a.metrics.GrowthDenied()
		return nil
	}
	if err != nil {
		return err
	}
	return a.lease(m, e.Seq, e.UpTo)
}

// lease grants the slabs of a sequence's first upTo tokens: it cannot fail within a reservation.
func (a *kvActor) lease(m *msg.KVRound, seq msg.SeqID, upTo int) error {
	slabs, err := a.kv.Lease(kvmgr.Seq(seq), upTo)
	m.Granted = append(m.Granted, msg.Granted{Seq: seq, UpTo: upTo, Slabs: slabs})
	return err
}

func (a *kvActor) state(brief bool) *State {
	s := &State{Stats: a.kv.Stats(), Map: a.kv.Map(mapCells), Imports: a.list(), Disk: a.disk.state()}
	if a.memory != nil {
		s.Bytes = Bytes{a.bytes(s.Stats.Slabs), a.bytes(s.Stats.Committed), a.bytes(s.Stats.Used), a.bytes(s.Stats.Cached)}
	}
	if brief {
		s.Regions = a.kv.Summaries()
		return s
	}
	s.Regions, s.Check = a.kv.Regions(), "ok"
	if err := a.kv.Check(); err != nil {
		s.Check = err.Error()
	}
	return s
}
