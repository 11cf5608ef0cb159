package kv

import (
	"sync/atomic"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/millrace/millrace/kvmgr"
)

const (
	// growBytes is what the pool commits ahead of need: while fewer bytes are free, and at a time. A step's worth of new sequences finds it
	// there.
	growBytes = 32 << 20
	// pieceBytes is committed at once. The system has the file of the pool locked meanwhile.
	pieceBytes = 1 << 20
	// pieceRest is the longest rest between two pieces while sequences run: committing takes time of their processors.
	pieceRest = 2 * time.Millisecond
	// shortShare is the part of the machine's memory, at most shortBytes, that the pool leaves to others: with less available, it gives
	// memory back, and it commits memory for prefixes only while twice as much is. Memory for sequences is committed down to a quarter of
	// it.
	shortShare = 16
	shortBytes = 2 << 30
	// measureBytes are committed between two readings of the machine's memory.
	measureBytes = 16 << 20
	// leastBack is given back at once, at least.
	leastBack = 8 << 20
	// pressureEvery is how often the machine's memory is read while the pool has more than it began with.
	pressureEvery = time.Second
)

// Pages is the memory of the pool's slabs, where it is committed while they are used: a *compute.Model.
type Pages interface {
	// CommittedSlabs is the number of slabs that have memory from the start, the first ones; 0: all have.
	CommittedSlabs() int
	CommitSlabs(first int32, n int) error
	// DiscardSlabs takes the memory of slabs that nobody has.
	DiscardSlabs(first int32, n int) error
	// FreeMemory returns the bytes that the machine has available, and in all.
	FreeMemory() (available, total uint64, err error)
}

// supply commits slabs as they are needed, ahead of need, and gives memory back while the machine is short of it. It knows
// no sequence: the allocator says what it lacks and what it can spare.
type supply struct {
	*exchange
	pages   Pages // nil: all slabs have memory
	io      *actor.PID
	whole   bool // all slabs are to have memory, and keep it
	start   int  // slabs that have memory from the start
	lacking int  // slabs that denied calls lack
	denied  bool // calls were denied that committed slabs may grant
	flying  bool // a change is
	scarce  bool // the machine had too little for sequences at the last change
	tight   bool // likewise for what is committed ahead of need
	refused bool // the machine had too little for the denied calls
	warned  bool
	running atomic.Bool // sequences are
	timer   *time.Timer // until the machine's memory is read next
}

type (
	// change gives slabs memory, or takes it, and comes back with the machine's memory when it is done.
	change struct {
		commit, discard []kvmgr.Range
		needed          bool // by sequences
		whole           bool // see supply: it was set aside for the pool
		committed       []kvmgr.Range
		available       uint64 // bytes of the machine
		low             uint64 // see shortShare
		err             error
	}
	// pressure says that it is time to read the machine's memory.
	pressure struct{}
)

// begin spawns what changes the memory of slabs.
func (s *supply) begin(x *exchange, cfg Config, start int) (err error) {
	s.exchange, s.pages, s.whole, s.start = x, cfg.Pages, cfg.Whole, start
	s.io, err = cfg.Spawn("kv-pages", &pagesActor{cfg.Pages, x.memory.SlabBytes(), &s.running})
	return err
}

func (s *supply) end() {
	if s.timer != nil {
		s.timer.Stop()
	}
}

// pagesActor changes the memory of slabs beside the KV manager.
type pagesActor struct {
	pages     Pages
	slabBytes int
	running   *atomic.Bool
}

func (a *pagesActor) Receive(ctx actor.Context) {
	m, ok := ctx.Message().(*change)
	if !ok {
		return
	}
	for _, r := range m.discard {
		if m.err == nil {
			m.err = a.pages.DiscardSlabs(r.First, r.Slabs)
		}
	}
	for _, r := range m.commit {
		if n := a.commit(m, r); n < r.Slabs {
			break
		}
	}
	a.measure(m)
	ctx.Respond(m)
}

// measure reads the machine's memory.
func (a *pagesActor) measure(m *change) {
	available, total, err := a.pages.FreeMemory()
	if err != nil {
		m.err = err
		return
	}
	m.available, m.low = available, min(total/shortShare, shortBytes)
}

// commit commits slabs piece by piece, as long as the machine has memory for them, and returns how many.
func (a *pagesActor) commit(m *change, r kvmgr.Range) (done int) {
	piece, measured := max(1, pieceBytes/a.slabBytes), -measureBytes
	for done < r.Slabs && m.err == nil {
		n := min(piece, r.Slabs-done)
		if done*a.slabBytes-measured >= measureBytes {
			measured = done * a.slabBytes
			a.measure(m)
		}
		bytes := uint64(n) * uint64(a.slabBytes)
		if m.err != nil || m.available < bytes+m.reserve() {
			break
		}
		begin := time.Now()
		first := r.First + int32(done)
		if m.err = a.pages.CommitSlabs(first, n); m.err != nil {
			break
		}
		m.committed = append(m.committed, kvmgr.Range{First: first, Slabs: n})
		m.available -= bytes
		if done += n; a.running.Load() {
			time.Sleep(m.rest(time.Since(begin))) //nolint:forbidigo // a pace: steps get the processor and the bus in between
		}
	}
	return done
}

// rest is the rest after a piece that took some time, in which others may have had the processor: as long as the piece while a request
// waits for the memory, else longer.
func (m *change) rest(took time.Duration) time.Duration {
	if m.needed {
		return min(took, pieceRest/4)
	}
	return min(4*took, pieceRest)
}

// reserve is what a commitment leaves to others.
func (m *change) reserve() uint64 {
	switch {
	case m.whole:
		return 0
	case m.needed:
		return m.low / 4
	}
	return 2 * m.low
}

func (s *supply) receive(ctx actor.Context) {
	switch m := ctx.Message().(type) {
	case *change:
		s.changed(ctx, m)
	case *pressure:
		if s.timer = nil; !s.flying {
			s.send(ctx, &change{})
		}
	}
}

// changed continues with what a change did.
func (s *supply) changed(ctx actor.Context, m *change) {
	s.flying = false
	s.kv.Grown(m.committed)
	s.lacking = max(0, s.lacking-slabsOfAll(m.committed)) // calls were denied before these came
	measured := len(m.commit)+len(m.discard) == 0
	failed := slabsOfAll(m.committed) < slabsOfAll(m.commit)
	s.scarce = failed && m.needed || s.scarce && !measured && !m.needed
	s.tight = failed && !m.needed || s.tight && !measured
	s.refused = s.denied && failed && m.needed
	s.warn(m)
	switch {
	case s.denied && (measured || len(m.committed) > 0 || s.refused && s.alone()):
		s.denied = false
		s.announceRoom(ctx)
		s.reserveAll(ctx)
	case measured && m.err == nil && m.available < m.low && !s.whole:
		s.giveBack(ctx, m.low-m.available)
	}
}

// alone says that no sequence has slabs, which would return them.
func (s *supply) alone() bool { return s.kv.Stats().Regions == 0 }

// hopeless says whether a call that was denied now waits in vain: no sequence has slabs, and the machine had no memory for the denied
// calls. It says so once for each attempt to get some.
func (s *supply) hopeless() bool {
	hopeless := s.refused && s.alone()
	s.refused = s.refused && !hopeless
	return hopeless
}

// warn says once that sequences wait for memory of the machine, or that the system refused to give or to take it.
func (s *supply) warn(m *change) {
	if s.warned = s.warned && (s.scarce || s.denied); s.warned || !s.scarce && m.err == nil {
		return
	}
	s.warned = true
	stats := s.kv.Stats()
	s.log.Warn().Err(m.err).Uint64("available_bytes", m.available).Uint64("committed_bytes", s.bytes(stats.Committed)).
		Uint64("reserved_bytes", s.bytes(stats.Slabs)).
		Msg("the machine is short of memory: requests wait until it has more for the KV cache, or others have ended")
}

// giveBack gives some memory back to the machine, what is beyond the start: of slabs that are free, or kept for their tokens alone.
func (s *supply) giveBack(ctx actor.Context, bytes uint64) {
	slab := uint64(s.memory.SlabBytes())
	n := min(int((max(bytes, leastBack)+slab-1)/slab), s.kv.Stats().Committed-s.start)
	if n < 1 || s.copies > 0 { // a copy may read a slab that nobody holds
		return
	}
	if list := s.kv.Shrink(n); len(list) > 0 {
		s.log.Info().Uint64("bytes", s.bytes(slabsOfAll(list))).Msg("the machine is short of memory: the KV cache gives some back")
		s.send(ctx, &change{discard: list})
	}
}

// plan commits what is lacking, or what will be soon.
func (s *supply) plan(ctx actor.Context) {
	if s.pages == nil {
		return
	}
	stats := s.kv.Stats()
	s.running.Store(stats.Regions > 0)
	if n := s.kv.Lacking(); n > 0 {
		s.lacking, s.denied = n, true
	}
	s.watch(ctx, stats)
	if s.flying || stats.Committed == stats.Slabs {
		return
	}
	ahead := max(1, growBytes/s.memory.SlabBytes())
	free := stats.Committed - stats.Used - stats.Cached - stats.Promised
	switch {
	case (s.lacking > 0 || s.whole) && !s.scarce:
		n := max(s.lacking, ahead)
		s.lacking = 0
		s.send(ctx, &change{commit: s.kv.Uncommitted(n), needed: true, whole: s.whole})
	case free < ahead && !s.scarce && !s.tight:
		s.send(ctx, &change{commit: s.kv.Uncommitted(ahead)})
	}
}

func (s *supply) send(ctx actor.Context, m *change) {
	s.flying = true
	ctx.Request(s.io, m)
}

// watch reads the machine's memory from time to time, while there is memory to give back or to wait for.
func (s *supply) watch(ctx actor.Context, stats kvmgr.Stats) {
	wanted := stats.Committed > s.start && !s.whole || s.scarce || s.tight
	if wanted && s.timer == nil {
		root, self := ctx.ActorSystem().Root, ctx.Self()
		s.timer = time.AfterFunc(pressureEvery, func() { root.Send(self, &pressure{}) })
	}
}

func slabsOfAll(list []kvmgr.Range) (n int) {
	for _, r := range list {
		n += r.Slabs
	}
	return n
}
