package sim

import (
	"encoding/binary"
	"fmt"

	"github.com/millrace/millrace/compute/device"
)

// stateBytes is the size of the state of a token.
const stateBytes = 8

// SlabLayout is that of every simulated pool: the states of a slab's tokens in their order. As on a real device, those whose slabs are not
// copied have none.
func (r *Runner) SlabLayout() string {
	if !r.spec.Copies {
		return ""
	}
	return "sim"
}

// SlabBytes is the size of the states of a slab. A real slab is larger, see [SlabBytes].
func (r *Runner) SlabBytes() int { return stateBytes * device.SlabTokens }

// ReadSlab copies the states of a slab to memory.
func (r *Runner) ReadSlab(slab int32, to []byte) error {
	states, err := r.slab(slab, to)
	for i, s := range states {
		binary.LittleEndian.PutUint64(to[i*stateBytes:], uint64(s))
	}
	return err
}

// WriteSlab copies memory to the states of a slab.
func (r *Runner) WriteSlab(slab int32, from []byte) error {
	states, err := r.slab(slab, from)
	for i := range states {
		states[i] = state(binary.LittleEndian.Uint64(from[i*stateBytes:]))
	}
	return err
}

func (r *Runner) slab(slab int32, bytes []byte) ([]state, error) {
	if slab < 0 || int(slab) >= r.slabs || len(bytes) != r.SlabBytes() {
		return nil, fmt.Errorf("sim: %w: %d bytes of slab %d, expected %d bytes, and the pool has %d slabs", device.ErrInvalid, len(bytes),
			slab, r.SlabBytes(), r.slabs)
	}
	return r.kv[int(slab)*device.SlabTokens:][:device.SlabTokens], nil
}
