package explain

import (
	"fmt"
	"io"

	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/compute/device"
	"github.com/millrace/millrace/compute/model"
	"github.com/millrace/millrace/compute/sim"
)

// Pool is the memory of a server's KV cache, in bytes, where it is not set.
type Pool struct {
	Sequences int    `json:"sequences"`
	Tokens    int    `json:"tokens"`         // of each
	Need      uint64 `json:"need_bytes"`     // of all of them
	Reserved  uint64 `json:"reserved_bytes"` // at most: what they need, or a share of the free memory
	Start     uint64 `json:"start_bytes"`    // committed at the start; the others are when they are used
}

// NewPool computes the KV cache of a server with some sequences in a step, where free bytes are free before the weights are loaded.
func NewPool(p *model.Program, sequences int, start, free uint64) *Pool {
	slab := sim.SlabBytes(p)
	o := &Pool{Sequences: sequences, Tokens: p.MaxPositions}
	o.Need = uint64(sequences*p.Groups().Count()*device.Slabs(p.MaxPositions)) * slab
	left := float64(free - min(free, sim.WeightBytes(p)))
	o.Reserved = min(o.Need, uint64(compute.PoolShare*left)/slab*slab)
	o.Start = min(o.Reserved, start)
	return o
}

// Print writes the sizes for people.
func (p *Pool) Print(out io.Writer) error {
	why := fmt.Sprintf("what %d sequences of %d tokens need", p.Sequences, p.Tokens)
	if p.Reserved < p.Need {
		why = fmt.Sprintf("%g of the memory that is free now (%d sequences of %d tokens would need %s)", compute.PoolShare, p.Sequences,
			p.Tokens, gigabytes(p.Need))
	}
	_,
		err := fmt.Fprintf(out,
		"\nKV cache of a server here: %s reserved, %s\n  committed at start  %s, and more while it is used\n  in use              what sequences and cached prefixes have: GET /debug/kv of the server\n",
		gigabytes(p.Reserved), why, gigabytes(p.Start))
	return err
}
