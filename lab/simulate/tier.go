package simulate

import (
	"errors"
	"time"

	"github.com/millrace/millrace/compute/sched"
	"github.com/millrace/millrace/compute/sim"
	"github.com/millrace/millrace/kvmgr"
)

// moves begins the copies of the plan's sequences to the spill tier and back. Steps run meanwhile.
func (w *worker) moves(now time.Duration) error {
	for _, s := range w.plan.Spill {
		copies, err := w.managed.Spill(kvmgr.Seq(s.ID), s.Tokens)
		err = w.move(now, s.ID, copies, err, func() error {
			w.tally.tier.Spills++
			w.tally.tier.Slabs += len(copies)
			w.hold(w.find(s.ID), 0, 0)
			w.events = append(w.events, sched.Spilled(s.ID))
			return w.managed.Spilled(kvmgr.Seq(s.ID))
		})
		if err != nil {
			return err
		}
	}
	for _, r := range w.plan.Restore {
		seq, length := kvmgr.Seq(r.ID), kvmgr.Length{End: r.Tokens, Promise: r.Promise}
		copies, err := w.managed.Restore(seq, length)
		if errors.Is(err, kvmgr.ErrNoSlabs) && w.sched.Running() == 0 && w.yield() {
			copies, err = w.managed.Restore(seq, length)
		}
		err = w.move(now, r.ID, copies, err, func() error {
			w.tally.tier.Restores++
			tokens, err := w.managed.Restored(seq)
			if err != nil {
				return err
			}
			leased := min(r.Lease, w.managed.Limit(seq))
			w.begins(r.ID, leased, tokens)
			return w.managed.lease(r.ID, leased)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// move makes done run when the copies of a sequence are complete, unless it stays where it is, or ends before.
func (w *worker) move(now time.Duration, id sched.ID, copies []kvmgr.Move, err error, done func() error) error {
	if errors.Is(err, kvmgr.ErrNoSlabs) {
		w.events = append(w.events, sched.Kept(id))
		return nil
	}
	if err != nil {
		return err
	}
	w.later(now+duration(w.cfg.Device.SpillSeconds(w.bytes(len(copies)))), func(time.Duration) error {
		if w.find(id) == nil {
			return nil
		}
		return done()
	})
	return nil
}

// bytes returns the size of slabs.
func (w *worker) bytes(slabs int) uint64 { return uint64(slabs) * sim.SlabBytes(w.cfg.Program) }

func duration(seconds float64) time.Duration { return time.Duration(seconds * float64(time.Second)) }
