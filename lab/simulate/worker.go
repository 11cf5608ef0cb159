package simulate

import (
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
	index int
	sched *sched.Scheduler
	kv    *kvmgr.Manager
	timer *sim.Timer           // shared
	tally *tally               // shared
	line  *sched.WaitEstimator // shared
	news  *route.Worker

	live   []live // by slot
	spare  []int  // free slots
	serial uint64
	events []sched.Event
	plan   *sched.Plan // of the step under way
	busy   bool
}

// live is a request that has not ended.
type live struct {
	Request
	slice     int
	begun     bool // its prefill has begun
	generated int
	first     time.Duration // the time of its first token
}

// slotBits are the low bits of a sequence's ID: its slot; above is a serial.
const slotBits = 24

func newWorker(cfg *Config, timer *sim.Timer, tally *tally, line *sched.WaitEstimator, news *route.Worker) (*worker, error) {
	w := &worker{timer: timer, tally: tally, line: line, news: news}
	var err error
	if w.sched, err = sched.New(cfg.Sched); err != nil {
		return nil, err
	}
	w.kv, err = kvmgr.New(kvmgr.Config{Slabs: cfg.Slabs, SlabTokens: cfg.Sched.SlabTokens})
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
	w.serial++
	w.events = append(w.events, sched.Submit(sched.Sequence{
		ID: sched.ID(w.serial<<slotBits | uint64(slot)), PromptTokens: r.Prompt, MaxNewTokens: r.MaxTokens, Arrival: r.At,
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
		q := &w.live[slotOf(e.ID)]
		if e.Reason > sched.ReasonLength { // else it was counted with its last token
			w.tally.refused(q.slice, e.Reason.String())
		}
		if !q.begun {
			w.line.Leave("")
		}
		w.spare = append(w.spare, slotOf(e.ID))
	}
	return w.effects()
}

// effects applies the plan to the KV allocator.
func (w *worker) effects() error {
	for _, id := range w.plan.Release {
		if _, err := w.kv.Release(kvmgr.Seq(id)); err != nil {
			return err
		}
	}
	for _, r := range w.plan.Reserve {
		err := w.kv.Reserve(kvmgr.Seq(r.ID), kvmgr.Length{End: r.Tokens, Promise: r.Promise})
		var short *kvmgr.ShortageError
		switch {
		case errors.As(err, &short) && errors.Is(err, kvmgr.ErrNeverFits):
			w.events = append(w.events, sched.NeverFits(r.ID, short.Need, short.Pool))
		case errors.As(err, &short):
			w.events = append(w.events, sched.Denied(r.ID, short.Need, short.Free))
			return w.leases() // nobody passes it
		case err != nil:
			return err
		default:
			if err := w.lease(r.ID, r.Lease); err != nil {
				return err
			}
		}
	}
	return w.leases()
}

func (w *worker) leases() error {
	for _, l := range w.plan.Lease {
		if errors.Is(w.kv.Grow(kvmgr.Seq(l.ID), l.Promise), kvmgr.ErrNoSlabs) {
			w.events = append(w.events, sched.Paused(l.ID))
			continue
		}
		if err := w.lease(l.ID, l.UpTo); err != nil {
			return err
		}
	}
	return nil
}

func (w *worker) lease(id sched.ID, upTo int) error {
	if _, err := w.kv.Lease(kvmgr.Seq(id), upTo); err != nil {
		return fmt.Errorf("inside a reservation: %w", err)
	}
	w.events = append(w.events, sched.Granted(id, upTo))
	return nil
}

// step times the planned step, which begins now.
func (w *worker) step(now time.Duration) time.Duration {
	w.timer.Begin()
	for _, c := range w.plan.Chunks {
		if q := &w.live[slotOf(c.ID)]; !q.begun {
			q.begun = true
			w.line.Start("", q.At, now)
		}
		outputs := 0
		if c.Output {
			outputs = 1
		}
		w.timer.Add(c.Rows, c.Start, outputs)
	}
	t := w.timer.End()
	took := max(time.Duration((t.Device+t.Host)*float64(time.Second)), 1)
	w.tally.step(w.plan, t, took, w.kv.Stats().Usage())
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
