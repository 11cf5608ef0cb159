package simulate

import (
	"container/heap"
	"errors"
	"fmt"
	"time"

	"github.com/millrace/millrace/cluster/route"
	"github.com/millrace/millrace/compute/sched"
	"github.com/millrace/millrace/compute/sim"
	"github.com/millrace/millrace/kvmgr"
)

// worker is the compute loop and the KV manager of one worker, without a device.
type worker struct {
	*fleet

	index int
	sched *sched.Scheduler
	kv    memory
	timer *sim.Timer    // shared
	at    *route.Worker // what the router knows of it
	spec  kvmgr.Spec    // of kv

	managed *managed // kv; nil with Recompute
	paged   *paged   // kv, with Recompute; else nil
	short   shortage // of it

	ticks bool          // an event is due at which sequences leave for decode workers
	link  time.Duration // until when copies of hand-overs use its network

	live   []live // by slot
	spare  []int  // free slots
	serial uint64
	events []sched.Event
	plan   *sched.Plan // of the step under way
	busy   bool
	groups kvmgr.Counts // of spec
	held   int          // slabs that hold a token
}

// live is a request that has not ended.
type live struct {
	Request
	id        sched.ID
	slice     int
	begun     bool // its prefill has begun
	preempted bool // its slabs are on their way back, and it is computed again
	leaving   bool // its keys and values are on their way to a decode worker
	left      bool // it ends here, and continues at a decode worker
	aside     bool // it has memory here, for a copy, and no reservation yet
	copied    int  // tokens that were copied to that memory when it came
	computed  int  // tokens in the KV cache after the step under way
	released  int  // positions of these whose slabs were given back: no later token sees them
	reached   int  // the most tokens that were there
	generated int
	first     time.Duration // the time of its first token
	last      time.Duration // of its last one
	stays     time.Duration // until when it stays: no decode worker had room
}

// slotBits are the low bits of a sequence's ID: its slot; above is a serial.
const slotBits = 24

func newWorker(f *fleet, index int, timer *sim.Timer) (*worker, error) {
	w := &worker{fleet: f, index: index, timer: timer, at: &f.news[index]}
	c, err := schedOf(f.cfg)
	if err != nil {
		return nil, err
	}
	w.spec = c.KV
	w.groups, w.at.KV = w.spec.Counts(), w.spec.Need()
	if w.sched, err = sched.New(c); err != nil {
		return nil, err
	}
	w.kv, err = newMemory(f.cfg)
	w.paged, _ = w.kv.(*paged)
	w.managed, _ = w.kv.(*managed)
	return w, err
}

// later makes do run when a copy is complete.
func (w *worker) later(at time.Duration, do func(now time.Duration) error) {
	heap.Push(&w.due, event{at, w.index, do})
}

// report updates the state that the router sees.
func (w *worker) report() {
	w.at.Running, w.at.Waiting = w.sched.Running(), len(w.live)-len(w.spare)-w.sched.Running()
	w.at.FreeSlabs = w.kv.Stats().Free
}

func (w *worker) submit(r Request, slice int) {
	w.line.Enter("", 1)
	w.enqueue(w.take(live{Request: r, slice: slice}))
}

// take gives a request a slot and an ID.
func (w *worker) take(q live) *live {
	if len(w.spare) == 0 {
		w.spare = append(w.spare, len(w.live))
		w.live = append(w.live, live{})
	}
	slot := w.spare[len(w.spare)-1]
	w.spare = w.spare[:len(w.spare)-1]
	w.live[slot] = q
	w.name(slot)
	return &w.live[slot]
}

// name gives the request of a slot a new ID.
func (w *worker) name(slot int) {
	w.serial++
	w.live[slot].id = sched.ID(w.serial<<slotBits | uint64(slot))
}

// free takes the slot of a request back.
func (w *worker) free(id sched.ID) {
	w.live[slotOf(id)] = live{}
	w.spare = append(w.spare, slotOf(id))
}

// find returns a request that has not ended; nil if it has.
func (w *worker) find(id sched.ID) *live {
	if q := &w.live[slotOf(id)]; q.id == id {
		return q
	}
	return nil
}

// enqueue submits a request to the scheduler, with the tokens that it has.
func (w *worker) enqueue(q *live) {
	w.events = append(w.events, sched.Submit(&sched.Sequence{
		ID: q.id, PromptTokens: q.Prompt + q.generated, MaxNewTokens: q.MaxTokens - q.generated, Arrival: q.At,
		Answered: q.generated, Migrated: q.begun,
	}))
}

func slotOf(id sched.ID) int { return int(id & (1<<slotBits - 1)) }

// round plans until there is a step, and returns its duration, or until nothing is left to do. The
// allocator answers at once.
func (w *worker) round(now time.Duration) (took time.Duration, err error) {
	for {
		if err := w.plans(now); err != nil {
			return 0, err
		}
		if w.plan.Hold {
			continue
		}
		w.busy = w.plan.Rows > 0
		if used := w.kv.Stats().Used; w.held > used {
			return 0, fmt.Errorf("%d slabs have tokens, %d are used", w.held, used)
		}
		if w.busy {
			return w.step(now), nil
		}
		if len(w.events) == 0 {
			return 0, nil
		}
	}
}

// plans passes the events to the scheduler and applies its plan.
func (w *worker) plans(now time.Duration) (err error) {
	if w.plan, err = w.sched.Step(now, w.events); err != nil {
		return err
	}
	w.events = w.events[:0]
	for _, e := range w.plan.Ended {
		w.ended(e)
	}
	return w.effects(now)
}

// ended counts the end of a sequence, unless it begins again.
func (w *worker) ended(e sched.End) {
	q := w.find(e.ID)
	w.hold(q, 0, 0)
	w.short.forget(e.ID)
	if q.preempted && q.generated < q.Output {
		q.preempted = false
		w.name(slotOf(e.ID))
		w.enqueue(q)
		return
	}
	if e.Reason > sched.ReasonLength && !q.preempted && !q.left { // else it was counted with its last token
		w.tally.refused(q.slice, e.Reason.String())
	}
	if !q.begun {
		w.line.Leave("")
	}
	w.free(e.ID)
}

func (w *worker) slabsOf(tokens int) int { return (tokens + w.spec.SlabTokens - 1) / w.spec.SlabTokens }

// effects applies the plan to the KV memory.
func (w *worker) effects(now time.Duration) error {
	for _, id := range w.plan.Release {
		if err := w.kv.release(id); err != nil {
			return err
		}
	}
	if err := w.leases(w.short.take()); err != nil {
		return err
	}
	if err := w.moves(now); err != nil {
		return err
	}
	for _, r := range w.plan.Reserve {
		leased, computed, err := w.reserve(r)
		if errors.Is(err, kvmgr.ErrNoSlabs) && w.sched.Running() == 0 && w.yield() {
			leased, computed, err = w.reserve(r)
		}
		var short *kvmgr.ShortageError
		switch {
		case errors.As(err, &short) && errors.Is(err, kvmgr.ErrNeverFits):
			w.events = append(w.events, sched.NeverFits(r.ID, short.Need, short.Pool))
		case errors.As(err, &short):
			w.events = append(w.events, sched.Denied(r.ID, short.Need, short.Free))
			return w.leases(w.plan.Lease) // as the KV manager does: the scheduler says who passes it
		case err != nil:
			return err
		default:
			w.begins(r.ID, leased, computed)
		}
	}
	return w.leases(w.plan.Lease)
}

// begins grants a sequence its reservation, with the tokens that are here already.
func (w *worker) begins(id sched.ID, leased, computed int) {
	first := 0
	if w.managed != nil {
		first = w.managed.first(id)
	}
	w.hold(w.find(id), computed, first)
	e := sched.GrantedPrefix(id, leased, computed)
	e.Lease = leased
	w.events = append(w.events, e)
}

// hold sets the tokens of a sequence in the pool, and the positions of these whose slabs were given back.
func (w *worker) hold(q *live, computed, released int) {
	w.held += w.groups.Slabs(w.slabsOf(computed), released) - w.groups.Slabs(w.slabsOf(q.computed), q.released)
	q.computed, q.released = computed, released
}

func (w *worker) leases(list []sched.Lease) error {
	for _, l := range list {
		err := w.kv.grow(l)
		if errors.Is(err, kvmgr.ErrNoSlabs) && w.yield() {
			err = w.kv.grow(l)
		}
		if q := w.find(l.ID); w.managed != nil && q != nil { // also if its growth is denied
			w.hold(q, q.computed, w.managed.first(l.ID))
		}
		switch {
		case err == nil:
			w.events = append(w.events, sched.Granted(l.ID, l.UpTo))
		case !errors.Is(err, kvmgr.ErrNoSlabs):
			return err
		case w.paged != nil:
			w.preempt(l)
		default:
			w.events = append(w.events, sched.Paused(l.ID))
		}
	}
	return nil
}

// step times the planned step, which begins now.
func (w *worker) step(now time.Duration) time.Duration {
	w.timer.Begin()
	for _, c := range w.plan.Chunks {
		q := &w.live[slotOf(c.ID)]
		if !q.begun {
			q.begun = true
			w.line.Start("", q.At, now)
		}
		end := c.Start + c.Rows
		w.tally.recomputed += max(min(end, q.reached)-c.Start, 0)
		w.hold(q, end, q.released)
		q.reached = max(end, q.reached)
		outputs := 0
		if c.Output {
			outputs = 1
		}
		w.timer.Add(c.Rows, c.Start, outputs)
	}
	t := w.timer.End()
	took := max(time.Duration((t.Device+t.Host)*float64(time.Second)), 1)
	w.tally.step(w.plan, t, took, load{
		kv: w.kv.Stats(), held: w.held, running: w.sched.Running(), waiting: w.sched.Waiting(), away: w.sched.Away(),
	})
	return took
}

// endStep gives each output of the step its token.
func (w *worker) endStep(now time.Duration) {
	for _, c := range w.plan.Chunks {
		if !c.Output {
			continue
		}
		q := &w.live[slotOf(c.ID)]
		if q.left {
			continue
		}
		if q.generated++; q.generated == 1 {
			q.first = now
			w.begun(now)
		} else {
			w.tally.gaps.add(now - q.last)
		}
		q.last = now
		if q.generated < q.Output {
			w.events = append(w.events, sched.Sampled(c.ID))
			continue
		}
		w.tally.served(q, now)
		if q.generated == q.MaxTokens { // the scheduler ends it by itself
			w.events = append(w.events, sched.Sampled(c.ID))
		} else {
			w.events = append(w.events, sched.Finished(c.ID, sched.ReasonStop))
		}
	}
}
