// Package computetest has runners for tests and benchmarks of the code around a device. It must
// not know models or kernels.
package computetest

import (
	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/kvmgr"
)

// SlabTokens is the number of tokens of a slab of these runners.
const SlabTokens = 16

// Null answers at once, always with the same token: what is left is the cost of
// the pipeline around it.
type Null struct {
	slabs  int
	logits []float32
}

// NewNull returns a runner with a pool of the given number of slabs and a vocabulary in which
// token is the likeliest.
func NewNull(slabs, vocab, token int) *Null {
	n := &Null{slabs: slabs, logits: make([]float32, vocab)}
	n.logits[token] = 1
	return n
}

// Slabs of the pool.
func (n *Null) Slabs() int { return n.slabs }

// KV is that of one group of layers that see all tokens, whose slabs are not copied.
func (n *Null) KV() kvmgr.Spec {
	s := kvmgr.NewSpec(SlabTokens, kvmgr.Full{})
	s.Copies, s.Spills = false, false
	return s
}

// Vocab is the number of logits per row.
func (n *Null) Vocab() int { return len(n.logits) }

// NewRegion returns a region that keeps nothing.
func (n *Null) NewRegion(int) (compute.Region, error) { return nullRegion{}, nil }

// Mappings is 0: any number.
func (n *Null) Mappings() int { return 0 }

// CopySlab does nothing.
func (n *Null) CopySlab(int32, int32, int) error { return nil }

// SlabLayout is "": slabs have no bytes.
func (n *Null) SlabLayout() string { return "" }

// SlabBytes is 0.
func (n *Null) SlabBytes() int { return 0 }

// ReadSlab does nothing.
func (n *Null) ReadSlab(int32, []byte) error { return nil }

// WriteSlab does nothing.
func (n *Null) WriteSlab(int32, []byte) error { return nil }

// Run returns the same logits for every row.
func (n *Null) Run([]compute.Rows) (compute.Logits, error) { return n, nil }

// HiddenWidth is the number of elements of a hidden state.
func (n *Null) HiddenWidth() int { return len(n.logits) }

// Hidden returns every hidden state: the logits.
func (n *Null) Hidden(int) []float32 { return n.logits }

// Row returns the logits of every row.
func (n *Null) Row(int) []float32 { return n.logits }

// Reload has nothing to do.
func (n *Null) Reload() error { return nil }

type nullRegion struct{}

func (nullRegion) Append([]int32) error   { return nil }
func (nullRegion) Unmap(int) (int, error) { return 0, nil }
func (nullRegion) Advance(int) error      { return nil }
func (nullRegion) Close()                 {}
