package sched

import (
	"errors"
	"fmt"

	"github.com/millrace/millrace/kvmgr"
)

// ErrConfig is the error for a configuration that cannot work.
var ErrConfig = errors.New("sched: invalid configuration")

// Config bounds the steps and the accepted sequences. Tokens are rows of the
// step's token axis.
type Config struct {
	// MaxBatchTokens is the token budget: rows of a step, decode rows and
	// prompt rows together.
	MaxBatchTokens int
	// ChunkTokens bounds the prompt rows of a step that has decode rows too, so that a long
	// prompt does not delay the tokens of other sequences. Only MaxBatchTokens bounds the rows
	// of migrated sequences. 0: no bound.
	ChunkTokens int
	// MaxBatchSize is the most sequences that hold or request KV. A sequence with beams counts
	// once for each beam. A step has at most this many outputs, and those of DraftRows.
	MaxBatchSize int
	// MaxWaiting is the number of sequences accepted beyond MaxBatchSize. More are refused at once.
	MaxWaiting int
	// DraftRows is the number of decode rows up to which draft tokens fill a step without prompts.
	// Up to this many rows a step takes hardly longer than with one. 0: no draft tokens. KV without Rollback has none.
	DraftRows int
	// WaitingServedRatio holds new prompts back until there are at least
	// floor(WaitingServedRatio * decode rows) of them, for at most maxHeld steps.
	// 0 holds none back.
	WaitingServedRatio float64
	// MaxSequenceTokens is the longest prompt + answer (the context limit).
	MaxSequenceTokens int
	// KV is what a sequence keeps. Leases are whole slabs.
	KV kvmgr.Spec
	// Predict reserves KV for the predicted length of an answer, which grows up to the declared one. Else all of it is
	// reserved.
	Predict bool
	// Spill says that the KV manager has a tier for sequences that make room in the pool.
	Spill bool
	// StateTokens is the number of tokens of an answer between two copies of its state, which outlive the process: whole slabs. 0: none are
	// made.
	StateTokens int
	// LeaseAheadTokens is the number of unused leased tokens below which the scheduler requests a
	// longer lease.
	LeaseAheadTokens int
}

// limit keeps sums of settings inside 32 bits.
const limit = 1 << 30

// Validate returns an ErrConfig that names the first field at fault.
func (c Config) Validate() error {
	for _, f := range []struct {
		name       string
		value, min int
	}{
		{"MaxBatchTokens", c.MaxBatchTokens, 1},
		{"ChunkTokens", c.ChunkTokens, 0},
		{"MaxBatchSize", c.MaxBatchSize, 1},
		{"DraftRows", c.DraftRows, 0},
		{"MaxWaiting", c.MaxWaiting, 0},
		{"MaxSequenceTokens", c.MaxSequenceTokens, 2},
		{"LeaseAheadTokens", c.LeaseAheadTokens, 1},
		{"StateTokens", c.StateTokens, 0},
	} {
		if f.value < f.min || f.value > limit {
			return fmt.Errorf("%w: %s is %d, expected %d to %d", ErrConfig, f.name, f.value, f.min, limit)
		}
	}
	if err := c.KV.Validate(kvmgr.Wants{Tier: c.Spill, Drafts: c.DraftRows > 0}); err != nil {
		return fmt.Errorf("%w: %w", ErrConfig, err)
	}
	// With a budget below the batch size the decode rows alone could fill every
	// step and starve an admitted prompt.
	if c.MaxBatchTokens < c.MaxBatchSize {
		return fmt.Errorf("%w: MaxBatchTokens is %d, expected at least MaxBatchSize, %d", ErrConfig, c.MaxBatchTokens, c.MaxBatchSize)
	}
	if c.MaxBatchTokens < c.DraftRows {
		return fmt.Errorf("%w: MaxBatchTokens is %d, expected at least DraftRows, %d", ErrConfig, c.MaxBatchTokens, c.DraftRows)
	}
	if !(c.WaitingServedRatio >= 0 && c.WaitingServedRatio <= 1e6) {
		return fmt.Errorf("%w: WaitingServedRatio is %g, expected 0 to 1e6", ErrConfig, c.WaitingServedRatio)
	}
	return nil
}
