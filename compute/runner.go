// Package compute opens a model for serving: configuration, weights, op program, device and KV
// pool together.
//
// It must not know requests, actors or which sequences a step computes.
package compute

import (
	"github.com/millrace/millrace/compute/sample"
	"github.com/millrace/millrace/kvmgr"
)

// Runner runs steps over a KV pool. One goroutine drives it.
type Runner interface {
	Slabs() int    // physical slabs of the pool
	Mappings() int // slabs that all regions may hold together, a shared one counted for each; 0: any number
	// KV is what a sequence keeps in the pool. It does not change.
	KV() kvmgr.Spec
	Vocab() int       // logits per output
	HiddenWidth() int // elements of a hidden state
	// NewRegion reserves addresses for a sequence of up to the given tokens.
	NewRegion(tokens int) (Region, error)
	// CopySlab copies the first tokens of a physical slab to another one.
	CopySlab(from, to int32, tokens int) error
	SlabMemory
	// Run runs one step over all rows. The logits are valid until the next Run.
	Run(batch []Rows) (Logits, error)
	// Reload opens the device again after an error of the calls above. Every
	// region must be closed before; the pool keeps its size. After an error of
	// Reload the runner is of no use any more.
	Reload() error
}

// SlabMemory is the bytes of a pool's physical slabs. Slabs can be copied between pools of the same layout whose devices
// compute the same bits. It may be used beside the goroutine that runs steps, for tokens that no step touches.
type SlabMemory interface {
	// SlabLayout describes the order of the bytes in a slab. "": slabs cannot be copied to other pools, see kvmgr.Uses.
	SlabLayout() string
	SlabBytes() int
	// ReadSlab copies a slab to memory of SlabBytes.
	ReadSlab(slab int32, to []byte) error
	// WriteSlab copies memory of SlabBytes to a slab.
	WriteSlab(slab int32, from []byte) error
}

// Region is the KV cache of one sequence. A place is the tokens of a slab, with a slab for each group of layers.
type Region interface {
	// Append maps physical slabs after those already mapped: those of all groups for each place. -1 in a windowed group says that the
	// sequence needs none there, and none before. After an error the region can only be closed.
	Append(slabs []int32) error
	// Unmap unmaps up to n of the slabs, the last ones, and at least those of the last place. It returns how many these were, 0 if none
	// were left. After an error the region can only be closed.
	Unmap(n int) (int, error)
	// Advance unmaps the slabs of windowed groups before place first, those of tokens that no later step reads: sinks stay. If there are no
	// other groups, a region without slabs begins at this place. Errors are those of Unmap.
	Advance(first int) error
	// Close unmaps the others. It takes long where there are many.
	Close()
}

// Rows are the tokens of one sequence in a step.
type Rows struct {
	Region   Region
	Tokens   []int32 // at Position, Position+1, ...
	Position int
	Output   bool // the logits of the last token are wanted
	Drafts   int  // draft tokens: the last ones; their logits, and those of the token before them, are wanted too
	Second   int  // of an encoder, as device.Rows has it
	Hidden   int  // last tokens whose hidden states are wanted, without Output; such Rows are the last ones of a batch
	Beams    *Beams
}

// Outputs returns the number of rows, at the end, whose logits are wanted.
func (r *Rows) Outputs() int {
	switch {
	case r.Beams != nil:
		return len(r.Tokens)
	case r.Output:
		return 1 + r.Drafts
	}
	return 0
}

// Beams make Rows one token for each beam of a request. All are at Position, and the logits of all
// are wanted. Their past is a segment KV cache, see device.Beams.
type Beams struct {
	Prompt    int       // tokens, in the Region of Rows
	Responses []Region  // [beams]
	Index     [][]int32 // [beams][Position - Prompt]: in whose Region a beam's past is
}

// Best is what Logits of a device that keeps them have too.
type Best interface {
	// Best returns the token of the largest logit of row i, of equal ones the lowest. False: the row has none, or it is
	// not known, and Row says why.
	Best(i int) (token int32, ok bool)
}

// Draws is what Logits of a device that keeps them have too.
type Draws interface {
	// Draw draws a token of each row. Below 0: the device does not say, and Row does. After an error, Run returns errors too.
	Draw(draws []sample.Draw, tokens []int32) error
}

// Ahead is what a Runner has too whose device may take a step before it has done the one before.
type Ahead interface {
	// RunsAhead reports whether the device does. If not, Start returns an error.
	RunsAhead() bool
	// Start starts a step, and a draw from each of its outputs, in their order: without draws, the tokens of the largest logits. It returns
	// before the device has done them. Nobody reads the step's logits. A token may be Drawn(i) of the step that was started before it. Up
	// to two steps are started at a time, and Run waits until both are drawn.
	Start(batch []Rows, draws []sample.Draw) error
	// Drawn waits for the oldest step of Start, and returns the token of each of its outputs in tokens. Below 0: the device does not say,
	// and a row of Drawn has no meaning.
	Drawn(tokens []int32) error
}

// Drawn stands for the token that the step before draws from its output i, where it is not known yet.
func Drawn(i int) int32 { return -1 - int32(i) }

// Logits are the output rows of a step, in the order of its sequences.
type Logits interface {
	Row(i int) []float32 // [vocab], may be overwritten
	// Hidden returns hidden state i, in the order of the rows with Rows.Hidden: what the model's head makes logits of.
	Hidden(i int) []float32 // [HiddenWidth]
}
