package sched

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/millrace/millrace/kvmgr"
)

// world drives a Scheduler with random requests, a KV manager whose mailbox is
// slow, and a device whose samples may be late. It follows the sequences from
// the plans alone and compares every plan with the promises.
type world struct {
	t   *testing.T
	rng *rand.Rand
	cfg Config
	s   *Scheduler
	now time.Duration

	kv      *kvmgr.Manager
	inbox   []func() []Event // what the KV manager has not handled yet, in order
	replies []Event          // what it has answered and the scheduler has not received yet, in order

	seqs    map[ID]*life
	order   []ID // of submission
	late    []Event
	lost    map[ID]bool // the KV manager has nothing of these any more, and the scheduler may not know
	log     [][]Event   // events of each step, for the replay
	times   []time.Duration
	plans   bytes.Buffer
	tenants []string
	window  int            // tokens that a token sees, itself included; 0: all
	live    int            // slabs of a sequence at once at most, with a window
	yielded int            // prompt rows since the last step that left nobody out
	counts  map[string]int // rules that the run has exercised
}

// life is what the world knows of a sequence.
type life struct {
	Sequence
	serial    int
	requested bool // Reserve is out
	parked    bool // another sequence computes its prefix
	granted   bool
	leaving   bool // on its way to the tier
	away      bool // in the tier, or on its way back
	sampled   int  // tokens before it was in the tier
	released  int
	ended     int
	reason    Reason
	position  int // tokens computed
	cached    int // of them, before it began
	made      int // tokens sampled
	drafts    int // for the next step, and then in the open chunk
	forced    int // of drafts, as they
	leased    int // as reported to the scheduler
	from      int // tokens before it have no KV any more
	branch    int // where others left its prompt
	open      bool
	denied    bool    // KV, at least once
	passes    int     // later ones of its tenant that were admitted meanwhile
	passing   []*life // the earlier ones of its tenant that wait while it is reserved
	idle      int     // steps as a fresh prompt beside decode rows, with no prompt row in the step
	deferred  int     // turns of others, in each of which it could have decoded
}

func newWorld(t *testing.T, seed uint64) *world {
	t.Helper()
	rng := rand.New(rand.NewPCG(seed, 42))
	cfg := Config{
		MaxBatchSize: 1 + rng.IntN(9), MaxWaiting: rng.IntN(40), ChunkTokens: rng.IntN(3) * 9,
		WaitingServedRatio: float64(rng.IntN(4)) * 0.4, Predict: seed%2 == 1, Spill: seed%4 == 3,
		MaxSequenceTokens: 180,
	}
	slab := 1 + rng.IntN(16)
	cfg.LeaseAheadTokens = 1 + rng.IntN(40)
	if cfg.Spill {
		cfg.MaxBatchSize += 3
	}
	cfg.MaxBatchTokens = cfg.MaxBatchSize + rng.IntN(60)
	cfg.DraftRows = min(rng.IntN(3)*5, cfg.MaxBatchTokens)
	groups, window := []kvmgr.Group{kvmgr.Full{}}, kvmgr.Window{}
	if seed%5 < 2 {
		window.Tokens = 2 + rng.IntN(40)
		window.Live = kvmgr.LiveSlabs(window.Tokens, slab+rng.IntN(60), slab)
		groups[0] = window
	}
	pool := kvmgr.Config{Slabs: 160/slab + rng.IntN(300/slab)}
	if seed%4 == 3 {
		pool.Slabs = 180/slab + 1
		pool.Slots = pool.Slabs/4 + rng.IntN(2*pool.Slabs)
	}
	if seed%5 == 1 { // layers of both kinds
		full := slices.Repeat([]kvmgr.Group{kvmgr.Full{}}, 1+rng.IntN(2))
		groups = append(full, slices.Repeat(groups, 1+rng.IntN(2))...)
		pool.Slabs, pool.Slots = len(groups)*pool.Slabs, len(groups)*pool.Slots
	}
	if seed%5 == 4 { // layers with a state beside others
		groups = append(groups, kvmgr.State{Slabs: 1 + rng.IntN(3), Every: slab * (1 + rng.IntN(8))})
		cfg.DraftRows = 0
	}
	pool.Spec = kvmgr.NewSpec(slab, groups...)
	cfg.KV = pool.Spec
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	kv, err := kvmgr.New(pool)
	if err != nil {
		t.Fatal(err)
	}
	return &world{t: t, window: window.Tokens, live: window.Live, rng: rng, cfg: cfg, s: s, kv: kv, seqs: map[ID]*life{},
		lost:    map[ID]bool{},
		counts:  map[string]int{},
		tenants: []string{"a", "b", "c"}[:1+rng.IntN(3)]}
}

func (w *world) chance(percent int) bool { return w.rng.IntN(100) < percent }

// long says that a sequence runs to its declared end, which few do, and all late ones where there is a tier: the prediction is wrong for
// it.
func (w *world) long(id ID) bool { return w.cfg.Predict && (id%4 == 0 || w.cfg.Spill && id > 60) }

// request makes a random sequence, now and then one that must be refused.
func (w *world) request() *Sequence {
	q := &Sequence{
		ID: ID(len(w.order) + 1), PromptTokens: 1 + w.rng.IntN(90), MaxNewTokens: 1 + w.rng.IntN(60),
		Priority: w.rng.IntN(3), Tenant: w.tenants[w.rng.IntN(len(w.tenants))], Weight: w.rng.IntN(4),
		Arrival: w.now - time.Duration(w.rng.IntN(3))*time.Second,
	}
	if w.cfg.Predict { // answers that may be longer than a growth
		q.PromptTokens, q.MaxNewTokens = 1+w.rng.IntN(40), 70+w.rng.IntN(70)
	}
	if w.cfg.KV.Beams && w.chance(20) && (!w.cfg.Predict || q.ID%8 == 1) {
		q.Beams = 1 + w.rng.IntN(w.cfg.MaxBatchSize)
	}
	q.Migrated = w.chance(20)
	if w.chance(10) {
		q.Deadline = w.now + time.Duration(1+w.rng.IntN(60))*time.Second
	}
	switch {
	case w.chance(2):
		q.PromptTokens = 0
	case w.chance(2):
		q.MaxNewTokens = 181
	case w.cfg.KV.Beams && w.chance(1):
		q.Beams = w.cfg.MaxBatchSize + 1
	case w.chance(5): // fits the context, perhaps not the pool
		q.PromptTokens, q.MaxNewTokens = 100, 80
	}
	w.seqs[q.ID] = &life{Sequence: *q, serial: len(w.order)}
	w.order = append(w.order, q.ID)
	return q
}

// events gathers what happens before the next step.
func (w *world) events(submit bool) []Event {
	var ev []Event
	for submit && w.chance(45) {
		ev = append(ev, Submit(w.request()))
	}
	ev = append(ev, w.late...) // stops that the detokenizer found in the step before
	w.late = w.late[:0]
	for _, id := range w.order {
		l := w.seqs[id]
		if l.open && w.chance(95) {
			l.open = false
			switch {
			case !w.long(id) && w.chance(4), w.cfg.Spill && id <= 60 && w.chance(20):
				ev = append(ev, Finished(id, ReasonStop))
			case !w.long(id) && w.chance(4):
				w.late = append(w.late, Finished(id, ReasonStop))
				fallthrough
			default:
				taken := 1 + l.forced + w.rng.IntN(1+l.drafts-l.forced)
				w.counts["forced"] += l.forced
				if w.counts["drafted"] += l.drafts; taken > 1 {
					w.counts["accepted"]++
				}
				l.made += taken
				if l.position += taken - 1 - l.drafts; l.Beams == 0 && w.chance(60) {
					l.drafts = w.rng.IntN(9)
				} else {
					l.drafts = 0
				}
				if l.forced = 0; w.chance(30) {
					l.forced = w.rng.IntN(l.drafts + 1)
				}
				ev = append(ev, Forced(id, taken, l.drafts, l.forced))
			}
		}
		if (l.ended == 0 && !w.long(id) && w.rng.IntN(1000) < 6) || !w.cfg.Spill && w.rng.IntN(400) == 0 || w.rng.IntN(4000) == 0 {
			ev = append(ev, Cancel(id))
		}
	}
	// The answers of the KV manager come in their order, anywhere between the others.
	var merged []Event
	for _, e := range ev {
		merged = append(merged, w.receive()...)
		merged = append(merged, e)
	}
	return append(merged, w.receive()...)
}

// receive lets the KV manager handle some messages and returns some answers.
func (w *world) receive() []Event {
	for len(w.inbox) > 0 && w.chance(60) {
		w.replies = append(w.replies, w.inbox[0]()...)
		w.inbox = w.inbox[1:]
	}
	n := w.rng.IntN(len(w.replies) + 1)
	answers := w.replies[:n]
	w.replies = w.replies[n:]
	for _, e := range answers {
		l := w.seqs[e.ID]
		switch e.Kind {
		case KindGranted:
			if !l.granted && l.ended == 0 {
				w.admitted(l)
			}
			if !l.granted || l.away {
				l.position, l.cached, l.branch = e.Computed, e.Computed, e.Branch
			}
			if l.away {
				l.from = 0
			}
			l.granted, l.requested, l.away, l.leased = true, false, false, e.Tokens
		case KindSpilled:
			l.leaving, l.away, l.drafts, l.forced, l.idle = false, true, 0, 0, 0
			l.PromptTokens, l.MaxNewTokens, l.sampled, l.made = l.PromptTokens+l.made, l.MaxNewTokens-l.made, l.sampled+l.made, 0
			w.counts["spilled"]++
		case KindKept:
			l.leaving = false
			w.counts["kept"]++
		case KindLost:
			l.away, l.granted, l.leased, l.position, l.from = false, false, 0, 0, 0
			w.counts["lost"]++
		case KindParked:
			l.requested, l.parked = false, true
			w.counts["parked"]++
		case KindReady:
			l.parked = false
		case KindDenied:
			l.requested = false
			w.counts["denied"]++
			if !e.Never {
				l.denied = true
				for _, x := range w.seqs { // the KV manager stopped here
					x.requested = false
				}
			}
		}
	}
	return answers
}

// step runs one round and checks the plan.
func (w *world) step(submit bool) {
	w.now += time.Duration(w.rng.IntN(900)) * time.Millisecond
	ev := w.events(submit)
	w.log = append(w.log, ev)
	w.times = append(w.times, w.now)
	plan, err := w.s.Step(w.now, ev)
	if err != nil {
		w.t.Fatalf("step %d: %v", plan.Step, err)
	}
	printPlan(&w.plans, plan)
	if err := w.s.Check(); err != nil {
		w.t.Fatal(err)
	}
	w.checkEnds(plan)
	for _, e := range plan.Spill {
		w.seqs[e.ID].leaving = true
	}
	if plan.Hold {
		w.counts["hold"]++
	} else {
		w.checkChunks(plan)
	}
	w.checkReserves(plan)
	w.checkLeases(plan)
	w.checkDeadlines()
	w.send(plan)
}

func (w *world) checkEnds(p *Plan) {
	for _, e := range p.Ended {
		l := w.seqs[e.ID]
		if l == nil || l.ended > 0 {
			w.t.Fatalf("step %d: %+v: not submitted, or ended before", p.Step, e)
		}
		l.ended++
		l.reason = e.Reason
		w.counts[e.Reason.String()]++
		if e.Reason == ReasonLength && e.Generated != l.sampled+l.MaxNewTokens {
			w.t.Fatalf("step %d: %+v, expected %d tokens", p.Step, e, l.sampled+l.MaxNewTokens)
		}
	}
	for _, id := range p.Release {
		l := w.seqs[id]
		if w.lost[id] && !l.granted { // it ended before the scheduler knew
			continue
		}
		if !l.granted || l.released > 0 || l.ended == 0 {
			w.t.Fatalf("step %d: release of %d: %+v", p.Step, id, l)
		}
		l.released++
	}
	for _, id := range w.order {
		if l := w.seqs[id]; l.ended > 0 && l.granted && l.released == 0 {
			w.t.Fatalf("step %d: sequence %d has ended and keeps its KV", p.Step, id)
		}
	}
}

func (w *world) checkChunks(p *Plan) {
	rows, prompt, fresh, outputs, decode, decoding, draftTokens, forced := 0, 0, 0, 0, 0, 0, 0, 0
	for i, c := range p.Chunks {
		l, tokens := w.seqs[c.ID], c.Rows
		if c.Beams > 0 {
			w.counts["beams"]++
			tokens = 1
		}
		switch {
		case c.Beams > 0 && (c.Beams != l.Beams || c.Rows != c.Beams), (c.Beams > 0) != (l.Beams > 0 && c.Start >= l.PromptTokens):
			w.t.Fatalf("step %d: %+v: %+v", p.Step, c, l)
		case !l.granted || l.leaving || l.away || l.ended > 0 || l.open:
			w.t.Fatalf("step %d: %+v runs: %+v", p.Step, c, l)
		case w.window > 0 && l.from > max(0, c.Start-w.window+1):
			w.t.Fatalf("step %d: %+v sees tokens before %d: %+v", p.Step, c, l.from, l)
		case c.Row != rows || c.Start != l.position || c.Rows < 1 || c.Start+tokens > min(l.leased, l.PromptTokens+l.made+c.Drafts):
			w.t.Fatalf("step %d: %+v: %+v", p.Step, c, l)
		case c.Output != (c.Start+tokens == l.PromptTokens+l.made+c.Drafts):
			w.t.Fatalf("step %d: %+v: %+v", p.Step, c, l)
		case c.Drafts > 0 && (c.Drafts != c.Rows-1 || c.Drafts > l.drafts || l.made+c.Rows > l.MaxNewTokens),
			c.Forced > l.forced, c.Forced > c.Drafts, c.Drafts > c.Forced && c.Forced != l.forced:
			w.t.Fatalf("step %d: %+v: %+v", p.Step, c, l)
		}
		w.checkSnapshot(p, &c, l)
		if c.Output {
			l.drafts, l.forced = c.Drafts, c.Forced
		}
		draftTokens += c.Drafts - c.Forced
		forced += c.Forced
		rows += c.Rows
		l.position += tokens
		l.open = c.Output
		if c.Output {
			outputs += max(1, c.Beams) + c.Drafts - c.Forced
		}
		if c.Start >= l.PromptTokens {
			decode += c.Rows
			if decoding++; decoding != i+1 {
				w.t.Fatalf("step %d: a decode row after prompt rows: %+v", p.Step, p.Chunks)
			}
		} else {
			prompt += c.Rows
			if !l.Migrated {
				fresh += c.Rows
			}
		}
	}
	if rows > w.cfg.MaxBatchTokens || rows != p.Rows || decode != p.DecodeRows || outputs != p.Outputs ||
		outputs > max(w.cfg.MaxBatchSize, w.cfg.DraftRows) || draftTokens > 0 && rows-forced > w.cfg.DraftRows ||
		(decode > 0 && w.cfg.ChunkTokens > 0 && fresh > w.cfg.ChunkTokens) {
		w.t.Fatalf("step %d: rows %d, prompt %d, decode %d, outputs %d of %+v", p.Step, rows, prompt, decode, outputs, w.cfg)
	}
	w.checkProgress(p, fresh)
}

// checkSnapshot: no chunk passes a position where the state is kept, and the one that ends there says so.
func (w *world) checkSnapshot(p *Plan, c *Chunk, l *life) {
	next := 0
	if c.Start < l.PromptTokens {
		next = w.cfg.KV.NextSnapshot(c.Start, l.PromptTokens, l.branch)
	}
	if next > 0 && c.Start+c.Rows > next || c.Snapshot != (next > 0 && c.Start+c.Rows == next) {
		w.t.Fatalf("step %d: %+v, the next snapshot is at %d: %+v", p.Step, c, next, l)
	}
	if c.Snapshot {
		w.counts["snapshot"]++
	}
}

// checkProgress: a sequence that can run does; a fresh prompt is held back for at most maxHeld
// steps. fresh counts the step's prompt rows of new sequences.
func (w *world) checkProgress(p *Plan, fresh int) {
	if p.Yielded == 0 {
		w.yielded = 0
	} else if w.yielded += fresh; w.yielded > fresh && w.cfg.ChunkTokens > 0 && w.yielded > w.cfg.ChunkTokens {
		w.t.Fatalf("step %d: %d sequences gave way for %d rows", p.Step, p.Yielded, w.yielded)
	}
	ran := map[ID]bool{}
	for _, c := range p.Chunks {
		ran[c.ID] = true
	}
	for _, id := range w.order {
		l := w.seqs[id]
		if !l.granted || l.leaving || l.away || l.ended > 0 || ran[id] {
			l.deferred = 0
			continue
		}
		switch {
		case l.open || l.position == l.leased: // its token or its lease is awaited
			l.deferred = 0
		case l.position >= l.PromptTokens && p.Yielded > 0:
			w.counts["yielded"]++
		case l.position >= l.PromptTokens && p.Deferred > 0:
			w.counts["deferred"]++
			if l.deferred++; l.deferred >= readTurns {
				w.t.Fatalf("step %d: sequence %d has missed its turn: %+v", p.Step, id, l)
			}
		case l.position >= l.PromptTokens:
			w.t.Fatalf("step %d: sequence %d could decode: %+v", p.Step, id, l)
		case p.PromptRows == 0 && l.position > l.cached:
			w.t.Fatalf("step %d: prompt %d has begun and is held back: %+v", p.Step, id, l)
		case p.PromptRows == 0:
			w.counts["held"]++
			if l.idle++; l.idle > maxHeld || p.DecodeRows == 0 || w.cfg.WaitingServedRatio == 0 {
				w.t.Fatalf("step %d: prompt %d was held back for %d steps: %+v", p.Step, id, l.idle, w.cfg)
			}
		}
	}
}

// checkLeases: the rows of the step, and those of later ones, do not see what is given back.
func (w *world) checkLeases(p *Plan) {
	start := map[ID]int{}
	for _, c := range p.Chunks {
		start[c.ID] = c.Start
	}
	for _, e := range p.Lease {
		l := w.seqs[e.ID]
		if at, ok := start[e.ID]; ok && e.From > max(0, at-w.window+1) || e.From < l.from || e.From > 0 && (w.window == 0 || l.Beams > 0) {
			w.t.Fatalf("step %d: %+v: rows at %d: %+v", p.Step, e, at, l)
		}
		if e.From > l.from {
			w.counts["trimmed"]++
		}
		if slab := w.cfg.KV.SlabTokens; w.window > 0 && (e.From/slab+w.live)*slab < e.UpTo && l.Beams == 0 {
			w.t.Fatalf("step %d: %+v: more than %d tokens have KV at once", p.Step, e, w.live*slab)
		}
		l.from = e.From
	}
}

// admitted counts a sequence that begins for those that it passes: at most maxPasses while one waits, and none that its reader has begun
// to read.
func (w *world) admitted(l *life) {
	for _, x := range l.passing {
		w.counts["passed"]++
		if x.passes++; x.passes > maxPasses || x.Migrated || x.sampled > 0 {
			w.t.Fatalf("%d passes %d, which waits for KV, for the %dth time: %+v %+v", l.ID, x.ID, x.passes, l, x)
		}
	}
	l.passes, l.passing, l.denied = 0, nil, false
}

// checkReserves: only live sequences, in their order, but for smaller ones of the priority of one that was denied.
func (w *world) checkReserves(p *Plan) {
	for _, r := range p.Reserve {
		l := w.seqs[r.ID]
		if l.requested || l.parked || l.granted || l.ended > 0 || r.Tokens != l.PromptTokens+l.MaxNewTokens || r.Lease < l.PromptTokens ||
			r.Lease > r.Tokens {
			w.t.Fatalf("step %d: %+v: %+v", p.Step, r, l)
		}
		l.requested = true
	}
	batch := 0
	var waiting []*life
	denied := map[int]bool{} // by priority
	for _, x := range w.seqs {
		if x.requested || x.granted && x.released == 0 && !x.away {
			batch += max(1, x.Beams)
		}
		if x.ended > 0 || x.granted || x.requested || x.parked {
			continue
		}
		waiting = append(waiting, x)
		denied[x.Priority] = denied[x.Priority] || x.denied
	}
	if batch > w.cfg.MaxBatchSize {
		w.t.Fatalf("step %d: %d sequences hold or ask for KV, expected at most %d", p.Step, batch, w.cfg.MaxBatchSize)
	}
	kept := batch > w.cfg.MaxBatchSize-w.cfg.MaxBatchSize/headroom // rows that only some tenants may take
	for _, r := range p.Reserve {
		y := w.seqs[r.ID]
		for _, x := range w.seqs {
			if x.away && x.ended == 0 && x.Priority <= y.Priority {
				w.t.Fatalf("step %d: %d is admitted while %d is in the tier: %+v %+v", p.Step, y.ID, x.ID, y, x)
			}
		}
		y.passing = y.passing[:0]
		for _, x := range waiting {
			if x != y && x.first(y) && x.Tenant == y.Tenant && x.Priority == y.Priority {
				y.passing = append(y.passing, x)
			}
			if x == y || !x.first(y) || x.Tenant != y.Tenant && (kept || x.Priority == y.Priority) || y.Migrated && kept ||
				denied[y.Priority] && x.Priority == y.Priority && !x.Migrated {
				continue
			}
			w.t.Fatalf("step %d: %d passes %d: %+v %+v", p.Step, y.ID, x.ID, y, x)
		}
	}
}

// first is the order of service, written down anew.
func (l *life) first(o *life) bool {
	if l.Priority != o.Priority {
		return l.Priority < o.Priority
	}
	if l.Migrated != o.Migrated {
		return l.Migrated
	}
	if l.Arrival != o.Arrival {
		return l.Arrival < o.Arrival
	}
	return l.serial < o.serial
}

func (w *world) checkDeadlines() {
	for id, l := range w.seqs {
		if l.ended == 0 && l.Deadline != 0 && l.Deadline <= w.now {
			w.t.Fatalf("sequence %d was due at %v, it is %v", id, l.Deadline, w.now)
		}
	}
}

// send puts the plan's requests into the KV manager's mailbox.
func (w *world) send(p *Plan) {
	for _, id := range p.Release {
		w.inbox = append(w.inbox, func() []Event {
			if w.lost[id] {
				delete(w.lost, id)
				return nil
			}
			if _, err := w.kv.Release(kvmgr.Seq(id)); err != nil {
				w.t.Fatal(err)
			}
			return nil
		})
	}
	for _, e := range p.Spill {
		w.inbox = append(w.inbox, func() []Event { return w.spill(e) })
	}
	for _, r := range p.Restore {
		w.inbox = append(w.inbox, func() []Event { return w.restore(r) })
	}
	if len(p.Reserve) > 0 {
		reserve := slices.Clone(p.Reserve)
		w.inbox = append(w.inbox, func() (answer []Event) {
			for _, r := range reserve {
				e := w.reserve(r)
				if answer = append(answer, e); e.Kind == KindDenied && !e.Never {
					break
				}
			}
			return answer
		})
	}
	for _, l := range p.Lease {
		w.inbox = append(w.inbox, func() []Event {
			if err := w.kv.Trim(kvmgr.Seq(l.ID), l.From); err != nil {
				w.t.Fatal(err)
			}
			if errors.Is(w.kv.Grow(kvmgr.Seq(l.ID), l.Promise), kvmgr.ErrNoSlabs) {
				w.counts["paused"]++
				return []Event{Paused(l.ID)}
			}
			return []Event{w.lease(l.ID, l.UpTo)}
		})
	}
}

// spill copies a sequence to the tier, which takes a while. Now and then it cannot be written.
func (w *world) spill(e Spill) []Event {
	if l := w.seqs[e.ID]; e.Tokens != l.position || l.open {
		w.t.Fatalf("spill of %+v: %+v", e, l)
	}
	_, err := w.kv.Spill(kvmgr.Seq(e.ID), e.Tokens)
	if errors.Is(err, kvmgr.ErrNoSlabs) {
		return []Event{Kept(e.ID)}
	}
	if err != nil {
		w.t.Fatal(err)
	}
	w.inbox = append(w.inbox, func() []Event {
		if !w.kv.Has(kvmgr.Seq(e.ID)) { // it ended meanwhile
			return nil
		}
		if err := w.kv.Spilled(kvmgr.Seq(e.ID)); err != nil {
			w.t.Fatal(err)
		}
		if w.chance(20) {
			return []Event{Spilled(e.ID), w.lose(e.ID)}
		}
		return []Event{Spilled(e.ID)}
	})
	return nil
}

// restore copies a sequence back. Now and then it cannot be read.
func (w *world) restore(r Reservation) []Event {
	_, err := w.kv.Restore(kvmgr.Seq(r.ID), kvmgr.Length{End: r.Tokens, Promise: r.Promise})
	if errors.Is(err, kvmgr.ErrNoSlabs) {
		return []Event{Kept(r.ID)}
	}
	if err != nil {
		w.t.Fatal(err)
	}
	w.inbox = append(w.inbox, func() []Event {
		if !w.kv.Has(kvmgr.Seq(r.ID)) { // it ended meanwhile
			return nil
		}
		if w.chance(20) {
			return []Event{w.lose(r.ID)}
		}
		tokens, err := w.kv.Restored(kvmgr.Seq(r.ID))
		if err != nil {
			w.t.Fatal(err)
		}
		w.counts["restored"]++
		e := w.begin(r)
		e.Computed = tokens
		return []Event{e}
	})
	return nil
}

func (w *world) lose(id ID) Event {
	if _, err := w.kv.Release(kvmgr.Seq(id)); err != nil {
		w.t.Fatal(err)
	}
	w.lost[id] = true
	return Lost(id)
}

func (w *world) reserve(r Reservation) Event {
	if r.Beams == 0 && w.chance(10) {
		w.inbox = append(w.inbox, func() []Event { return []Event{Ready(r.ID)} })
		return Parked(r.ID, ID(w.rng.IntN(int(r.ID)+1)))
	}
	delete(w.lost, r.ID)
	var err error
	if r.Beams > 0 {
		_, err = w.kv.ReserveSegments(kvmgr.Seq(r.ID), kvmgr.Segments{Prompt: r.Prompt, Response: r.Tokens - r.Prompt, Beams: r.Beams},
			kvmgr.Prompt{})
	} else {
		err = w.kv.Reserve(kvmgr.Seq(r.ID), kvmgr.Length{End: r.Tokens, Promise: r.Promise})
	}
	var short *kvmgr.ShortageError
	switch {
	case errors.As(err, &short) && errors.Is(err, kvmgr.ErrNeverFits):
		return NeverFits(r.ID, short.Need, short.Pool)
	case errors.As(err, &short):
		return Denied(r.ID, short.Need, short.Free)
	case err != nil:
		w.t.Fatal(err)
	}
	e := w.begin(r)
	if r.Beams == 0 && w.chance(30) {
		e.Computed = w.rng.IntN(min(r.Prompt, e.Lease))
	}
	if w.chance(30) {
		e.Branch = w.rng.IntN(r.Prompt)
	}
	return e
}

// begin grants a sequence as much of the lease that it begins with as may be.
func (w *world) begin(r Reservation) Event {
	e := w.lease(r.ID, min(r.Lease, w.kv.Limit(kvmgr.Seq(r.ID))))
	e.Lease = e.Tokens
	return e
}

func (w *world) lease(id ID, upTo int) Event {
	if _, err := w.kv.Lease(kvmgr.Seq(id), upTo); err != nil {
		w.t.Fatal(err)
	}
	return Granted(id, upTo)
}

// finish runs without new requests until all is over.
func (w *world) finish() {
	for range 50_000 {
		if w.s.Idle() && len(w.inbox)+len(w.replies) == 0 {
			break
		}
		w.step(false)
	}
	for _, id := range w.order {
		if l := w.seqs[id]; l.ended != 1 || l.granted != (l.released == 1) {
			w.t.Fatalf("sequence %d at the end: %+v", id, l)
		}
	}
	if err := w.kv.Check(); err != nil {
		w.t.Fatal(err)
	}
	if s := w.kv.Stats(); !w.s.Idle() || w.s.Running()+w.s.Waiting()+w.s.Away() != 0 || s.Free != s.Slabs || s.Spilled != 0 {
		w.t.Fatalf("at the end: %+v, %+v", w.s.Snapshot(), s)
	}
}

// replay gives the recorded events to a new scheduler.
func (w *world) replay() {
	s, err := New(w.cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	var plans bytes.Buffer
	for i := range w.log {
		plan, err := s.Step(w.times[i], w.log[i])
		if err != nil {
			w.t.Fatal(err)
		}
		printPlan(&plans, plan)
	}
	if !bytes.Equal(plans.Bytes(), w.plans.Bytes()) {
		w.t.Fatal("the same events gave other plans")
	}
}

func TestPromisesHoldUnderRandomTraffic(t *testing.T) {
	counts := map[string]int{}
	for seed := range uint64(100) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			w := newWorld(t, seed)
			for range 150 {
				w.step(true)
			}
			w.finish()
			w.replay()
			for k, n := range w.counts {
				counts[k] += n
			}
		})
	}
	// A run that never gets somewhere proves nothing about it.
	for _, k := range []string{"stop", "length", "cancelled", "deadline", "queue-full", "too-long", "invalid", "denied", "hold", "held",
		"beams", "yielded", "deferred", "drafted", "accepted", "spilled", "restored", "trimmed", "snapshot", "passed"} {
		if counts[k] < 20 {
			t.Errorf("%q happened %d times in all, expected at least 20", k, counts[k])
		}
	}
	t.Log(counts)
}
