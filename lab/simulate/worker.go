package simulate

import (
	"errors"
	"time"

	"github.com/millrace/millrace/cluster/route"
	"github.com/millrace/millrace/compute/sched"
	"github.com/millrace/millrace/compute/sim"
	"github.com/millrace/millrace/kvmgr"
)

// worker is the compute loop and the KV manager of one worker, without a device.
type worker struct {
	index int
	sched *sched.Scheduler
	kv    memory
	timer *sim.Timer           // shared
	tally *tally               // shared
	line  *sched.WaitEstimator // shared
	news  *route.Worker
	slab  int // tokens of one

	paged *paged   // kv, with Recompute; else nil
	short shortage // of it

	live   []live // by slot
	spare  []int  // free slots
	serial uint64
	events []sched.Event
	plan   *sched.Plan // of the step under way
	busy   bool
	held   int // slabs that hold a token
}

// live is a request that has not ended.
type live struct {
	Request
	id        sched.ID
	slice     int
	begun     bool // its prefill has begun
	preempted bool // its slabs are on their way back, and it is computed again
	computed  int  // tokens in the KV cache after the step under way
	generated int
	first     time.Duration // the time of its first token
}

// slotBits are the low bits of a sequence's ID: its slot; above is a serial.
const slotBits = 24

func newWorker(cfg *Config, timer *sim.Timer, tally *tally, line *sched.WaitEstimator, news *route.Worker) (*worker, error) {
	w := &worker{timer: timer, tally: tally, line: line, news: news, slab: cfg.Sched.SlabTokens}
	c, err := schedOf(cfg)
	if err != nil {
		return nil, err
	}
	if w.sched, err = sched.New(c); err != nil {
		return nil, err
	}
	w.kv, err = newMemory(cfg)
	w.paged, _ = w.kv.(*paged)
	return w, err
}

// report updates the state that the router sees.
func (w *worker) report() {
	w.news.Running, w.news.Waiting = w.sched.Running(), len(w.live)-len(w.spare)-w.sched.Running()
	w.news.FreeSlabs = w.kv.Stats().Free
}

func (w *worker) submit(r Request, slice int) {
	if len(w.spare) == 0 {
		w.spare = append(w.spare, len(w.live))
		w.live = append(w.live, live{})
	}
	slot := w.spare[len(w.spare)-1]
	w.spare = w.spare[:len(w.spare)-1]
	w.live[slot] = live{Request: r, slice: slice}
	w.line.Enter("", 1)
	w.enqueue(slot)
}

// enqueue submits a request to the scheduler under a new ID, with the tokens that it has.
func (w *worker) enqueue(slot int) {
	w.serial++
	q := &w.live[slot]
	q.id = sched.ID(w.serial<<slotBits | uint64(slot))
	w.events = append(w.events, sched.Submit(sched.Sequence{
		ID: q.id, PromptTokens: q.Prompt + q.generated, MaxNewTokens: q.MaxTokens - q.generated, Arrival: q.At,
		Answered: q.generated, Migrated: q.begun,
	}))
}

func slotOf(id sched.ID) int { return int(id & (1<<slotBits - 1)) }

// round plans until there is a step, and returns its duration, or until nothing is left to do. The
// allocator answers at once.
func (w *worker) round(now time.Duration) (took time.Duration, err error) {
	for {
		if err := w.planned(now); err != nil {
			return 0, err
		}
		if w.plan.Hold {
			continue
		}
		w.busy = w.plan.Rows > 0
		if w.busy {
			return w.step(now), nil
		}
		if len(w.events) == 0 {
			return 0, nil
		}
	}
}

// planned passes the events to the scheduler and applies its plan.
func (w *worker) planned(now time.Duration) (err error) {
	if w.plan, err = w.sched.Step(now, w.events); err != nil {
		return err
	}
	w.events = w.events[:0]
	for _, e := range w.plan.Ended {
		w.ended(e)
	}
	return w.effects()
}

// ended counts the end of a sequence, unless it begins again.
func (w *worker) ended(e sched.End) {
	slot := slotOf(e.ID)
	q := &w.live[slot]
	w.held -= w.slabsOf(q.computed)
	w.short.forget(e.ID)
	if q.preempted && q.generated < q.Output {
		w.tally.recomputed += q.computed
		q.preempted, q.computed = false, 0
		w.enqueue(slot)
		return
	}
	if e.Reason > sched.ReasonLength && !q.preempted { // else it was counted with its last token
		w.tally.refused(q.slice, e.Reason.String())
	}
	if !q.begun {
		w.line.Leave("")
	}
	w.spare = append(w.spare, slot)
}

func (w *worker) slabsOf(tokens int) int { return (tokens + w.slab - 1) / w.slab }

// effects applies the plan to the KV memory.
func (w *worker) effects() error {
	for _, id := range w.plan.Release {
		if err := w.kv.release(id); err != nil {
			return err
		}
	}
	if err := w.leases(w.short.take()); err != nil {
		return err
	}
	for _, r := range w.plan.Reserve {
		err := w.kv.reserve(r)
		var short *kvmgr.ShortageError
		switch {
		case errors.As(err, &short) && errors.Is(err, kvmgr.ErrNeverFits):
			w.events = append(w.events, sched.NeverFits(r.ID, short.Need, short.Pool))
		case errors.As(err, &short):
			w.events = append(w.events, sched.Denied(r.ID, short.Need, short.Free))
			return w.leases(w.plan.Lease) // nobody passes it
		case err != nil:
			return err
		default:
			w.events = append(w.events, sched.Granted(r.ID, r.Lease))
		}
	}
	return w.leases(w.plan.Lease)
}

func (w *worker) leases(list []sched.Lease) error {
	for _, l := range list {
		err := w.kv.grow(l)
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
		w.held += w.slabsOf(c.Start+c.Rows) - w.slabsOf(q.computed)
		q.computed = c.Start + c.Rows
		outputs := 0
		if c.Output {
			outputs = 1
		}
		w.timer.Add(c.Rows, c.Start, outputs)
	}
	t := w.timer.End()
	took := max(time.Duration((t.Device+t.Host)*float64(time.Second)), 1)
	w.tally.step(w.plan, t, took, load{kv: w.kv.Stats(), held: w.held, running: w.sched.Running(), waiting: w.sched.Waiting()})
	return took
}

// endStep gives each output of the step its token.
func (w *worker) endStep(now time.Duration) {
	for _, c := range w.plan.Chunks {
		if !c.Output {
			continue
		}
		q := &w.live[slotOf(c.ID)]
		q.generated++
		if q.generated == 1 {
			q.first = now
		}
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
