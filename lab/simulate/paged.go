package simulate

import (
	"fmt"

	"github.com/millrace/millrace/compute/sched"
	"github.com/millrace/millrace/kvmgr"
)

const (
	// pagedAhead is the number of unused leased tokens below which a sequence of a paged memory requests a slab: one step
	// before it needs it.
	pagedAhead = 2
	// watermark is the share of a paged pool, 1/watermark, that stays free when a sequence is admitted.
	watermark = 100
)

// paged is the memory of vLLM (arXiv:2309.06180, section 4.5): sequences hold what their tokens need, and nothing is kept
// for what they may need later.
type paged struct {
	slabs, slabTokens, free int
	held                    map[sched.ID]int
}

func newPaged(slabs, slabTokens int) *paged {
	return &paged{slabs: slabs, slabTokens: slabTokens, free: slabs, held: make(map[sched.ID]int)}
}

func (p *paged) slabsOf(tokens int) int { return (tokens + p.slabTokens - 1) / p.slabTokens }

func (p *paged) reserve(r sched.Reservation) (leased int, err error) {
	if n := p.slabsOf(r.Tokens); n > p.slabs {
		return 0, &kvmgr.ShortageError{Err: kvmgr.ErrNeverFits, Need: n, Free: p.free, Pool: p.slabs}
	}
	need := p.slabsOf(r.Lease)
	if len(p.held) > 0 && need > p.free-p.slabs/watermark {
		return 0, &kvmgr.ShortageError{Err: kvmgr.ErrNoSlabs, Need: need, Free: p.free, Pool: p.slabs}
	}
	p.held[r.ID] = need
	p.free -= need
	return r.Lease, nil
}

func (p *paged) grow(l sched.Lease) error {
	more := p.slabsOf(l.UpTo) - p.held[l.ID]
	if more > p.free {
		return &kvmgr.ShortageError{Err: kvmgr.ErrNoSlabs, Need: more, Free: p.free, Pool: p.slabs}
	}
	p.held[l.ID] += more
	p.free -= more
	return nil
}

func (p *paged) release(id sched.ID) error {
	p.free += p.held[id]
	delete(p.held, id)
	return nil
}

// Stats counts slabs as kvmgr does.
func (p *paged) Stats() kvmgr.Stats {
	return kvmgr.Stats{Slabs: p.slabs, Used: p.slabs - p.free, Free: p.free, Regions: len(p.held)}
}

// Check recounts the slabs.
func (p *paged) Check() error {
	free := p.slabs
	for _, n := range p.held {
		free -= n
	}
	if free != p.free || free < 0 {
		return fmt.Errorf("%w: %d slabs are free, the count says %d", ErrState, free, p.free)
	}
	return nil
}
