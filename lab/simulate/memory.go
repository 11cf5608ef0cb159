package simulate

import (
	"fmt"

	"github.com/millrace/millrace/compute/sched"
	"github.com/millrace/millrace/kvmgr"
)

// Admission is how a worker gives KV memory to requests.
type Admission string

// Admissions. A server has the first three; the others are to compare with.
const (
	Declared  Admission = "declared"  // prompt and longest answer from the start
	Predicted Admission = "predicted" // prompt and an answer of the predicted length, which grows or pauses
	Spill     Admission = "spill"     // as predicted, and what pauses waits in the tier: --kv-spill
	// Recompute is slabs as tokens come. For lack of one, the last request to arrive loses its own and is computed again.
	Recompute Admission = "recompute"
	Context   Admission = "context" // the longest sequence of the model, whatever was declared
)

// Admissions returns all of them, the most wasteful one first.
func Admissions() []Admission { return []Admission{Context, Declared, Recompute, Predicted, Spill} }

// predicts says whether requests begin with memory for a predicted answer.
func (a Admission) predicts() bool { return a == Predicted || a == Spill }

// memory gives the slabs of a worker to its sequences.
type memory interface {
	// reserve admits a sequence, leases what it begins with, and returns the tokens of that. A denial is a *kvmgr.ShortageError.
	reserve(r sched.Reservation) (leased int, err error)
	// grow leases more to a sequence. It returns kvmgr.ErrNoSlabs where that is denied.
	grow(l sched.Lease) error
	release(id sched.ID) error
	Stats() kvmgr.Stats
	Check() error
}

// newMemory returns the memory of a worker.
func newMemory(cfg *Config) (memory, error) {
	kv := cfg.Sched.KV
	if cfg.Admission == Recompute {
		return newPaged(cfg.Slabs/kv.Counts().Count(), kv.SlabTokens), nil
	}
	k := kvmgr.Config{Slabs: cfg.Slabs, Spec: kv}
	if cfg.Admission == Spill {
		k.Slots = cfg.Slots
	}
	m, err := kvmgr.New(k)
	if err != nil {
		return nil, err
	}
	memory := &managed{Manager: m, kv: kv}
	if cfg.Admission == Context {
		memory.context = cfg.Sched.MaxSequenceTokens
	}
	return memory, nil
}

// schedOf returns the settings of the scheduler for an admission.
func schedOf(cfg *Config) (sched.Config, error) {
	c := cfg.Sched
	c.Predict, c.Spill = cfg.Admission.predicts(), cfg.Admission == Spill
	switch cfg.Admission {
	case Declared, Predicted, Context:
	case Spill:
		if cfg.Slots < 1 {
			return c, fmt.Errorf("%w: admission %q with %d slots in the tier, expected at least 1", ErrConfig, Spill, cfg.Slots)
		}
	case Recompute:
		if cfg.Prefill > 0 {
			return c, fmt.Errorf("%w: admission %q with prefill workers, expected one with hand-over", ErrConfig, Recompute)
		}
		c.LeaseAheadTokens, c.KV = min(c.LeaseAheadTokens, pagedAhead), kvmgr.NewSpec(c.KV.SlabTokens, kvmgr.Full{}) // it keeps all slabs
	default:
		return c, fmt.Errorf("%w: admission %q, expected one of %v", ErrConfig, cfg.Admission, Admissions())
	}
	return c, nil
}

// managed is the KV manager of a server.
type managed struct {
	*kvmgr.Manager
	context int // tokens that each sequence reserves; 0: those that it declares
	kv      kvmgr.Spec
}

func (m *managed) reserve(r sched.Reservation) (leased int, err error) {
	l := kvmgr.Length{End: r.Tokens, Promise: r.Promise}
	if m.context > 0 {
		l = kvmgr.Declared(m.context)
	}
	if err := m.Reserve(kvmgr.Seq(r.ID), l); err != nil {
		return 0, err
	}
	leased = min(r.Lease, m.Limit(kvmgr.Seq(r.ID)))
	return leased, m.lease(r.ID, leased)
}

// reserveCopy reserves memory for a sequence whose tokens are copied here, and leases it for the last window of the first Lease of them.
func (m *managed) reserveCopy(r sched.Reservation) error {
	leased, err := m.reserve(r)
	for err == nil && leased < r.Lease {
		if err = m.Trim(kvmgr.Seq(r.ID), m.kv.FirstKept(leased)); err == nil {
			leased = min(r.Lease, m.Limit(kvmgr.Seq(r.ID)))
			err = m.lease(r.ID, leased)
		}
	}
	return err
}

// first returns the number of leading positions whose slabs a sequence gave back.
func (m *managed) first(id sched.ID) int { return m.Released(kvmgr.Seq(id)) }

func (m *managed) grow(l sched.Lease) error {
	if err := m.Trim(kvmgr.Seq(l.ID), l.From); err != nil {
		return err
	}
	if m.context == 0 {
		if err := m.Grow(kvmgr.Seq(l.ID), l.Promise); err != nil {
			return err
		}
	}
	return m.lease(l.ID, l.UpTo)
}

func (m *managed) lease(id sched.ID, upTo int) error {
	if _, err := m.Lease(kvmgr.Seq(id), upTo); err != nil {
		return fmt.Errorf("inside a reservation: %w", err)
	}
	return nil
}

func (m *managed) release(id sched.ID) error {
	_, err := m.Release(kvmgr.Seq(id))
	return err
}
