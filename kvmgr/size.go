package kvmgr

import (
	"errors"
	"fmt"
	"math"
)

// ErrNoMemory is a pool that does not fit into the device's memory.
var ErrNoMemory = errors.New("kvmgr: not enough memory")

// SizePool returns how many slabs of slabBytes fit into share (0 to 1) of what
// weights and worst-case activations leave of available bytes. Errors:
// ErrNoMemory if not one does, ErrInvalid.
func SizePool(available, weightBytes, activationBytes uint64, share float64, slabBytes uint64) (slabs int, err error) {
	if !(share > 0 && share <= 1) {
		return 0, fmt.Errorf("%w: share %g, expected more than 0 and at most 1", ErrInvalid, share)
	}
	if weightBytes > available || activationBytes > available-weightBytes {
		return 0, fmt.Errorf("%w: weights %d + activations %d bytes, available %d",
			ErrNoMemory, weightBytes, activationBytes, available)
	}
	left := available - weightBytes - activationBytes
	part := left
	if share < 1 {
		part = min(left, uint64(float64(left)*share))
	}
	slabs, err = SlabsIn(part, slabBytes)
	if err != nil {
		return 0, fmt.Errorf("%w (%g of the %d bytes that weights and activations leave)", err, share, left)
	}
	return slabs, nil
}

// SlabsIn returns how many slabs of slabBytes fit into bytes. Errors:
// ErrNoMemory if not one does, ErrInvalid.
func SlabsIn(bytes, slabBytes uint64) (slabs int, err error) {
	if slabBytes == 0 {
		return 0, fmt.Errorf("%w: slab of 0 bytes", ErrInvalid)
	}
	n := bytes / slabBytes
	if n == 0 {
		return 0, fmt.Errorf("%w: one slab takes %d bytes, room for %d", ErrNoMemory, slabBytes, bytes)
	}
	return int(min(n, math.MaxInt32)), nil
}
