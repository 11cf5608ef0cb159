package device

/*
#include "backend.h"
*/
import "C"

import (
	"fmt"
	"unsafe"
)

// Region is a run of virtual addresses for the KV cache of one sequence,
// backed by mapping physical slabs of the engine's pool.
type Region struct {
	engine *Engine
	handle *C.mr_region
	slabs  int
	first  int // slabs [first, mapped) are mapped
	mapped int
}

// ReserveKV commits the pool of physical slabs. It is called once.
func (e *Engine) ReserveKV(slabs int) error {
	var me C.mr_error
	if C.mr_kv_reserve(e.dev.backend, e.handle, C.int32_t(slabs), &me) != C.MR_OK {
		return fail(fmt.Sprintf("reserve %d KV slabs of %d bytes", slabs, e.info.SlabBytes), &me)
	}
	return nil
}

// ReserveKVFile is ReserveKV with the pool in a file on tmpfs, from offset on, which is a multiple of the page size. The file is
// the caller's to close. Errors: those of the backend, ErrUnsupported where the pool is memory of a device.
func (e *Engine) ReserveKVFile(slabs int, file uintptr, offset int64) error {
	var me C.mr_error
	if C.mr_kv_reserve_file(e.dev.backend, e.handle, C.int32_t(slabs), C.int32_t(file), C.uint64_t(offset), &me) != C.MR_OK {
		return fail(fmt.Sprintf("reserve %d KV slabs of %d bytes in a file", slabs, e.info.SlabBytes), &me)
	}
	return nil
}

// Slabs is the number of slabs that hold n tokens.
func Slabs(tokens int) int { return (tokens + SlabTokens - 1) / SlabTokens }

// NewRegion reserves addresses for a sequence of up to the given tokens.
// Nothing is mapped yet.
func (e *Engine) NewRegion(tokens int) (*Region, error) {
	r := &Region{engine: e, slabs: Slabs(tokens)}
	var me C.mr_error
	if C.mr_region_create(e.dev.backend, e.handle, C.int32_t(r.slabs), &r.handle, &me) != C.MR_OK {
		return nil, fail("create region", &me)
	}
	return r, nil
}

// NewRegionAt is NewRegion with the physical slabs from first on mapped to all of it:
// for who has the pool to himself.
func (e *Engine) NewRegionAt(first, tokens int) (*Region, error) {
	r, err := e.NewRegion(tokens)
	if err != nil {
		return nil, err
	}
	slabs := make([]int32, Slabs(tokens))
	for i := range slabs {
		slabs[i] = int32(first + i)
	}
	if err := r.Append(slabs); err != nil {
		r.Close()
		return nil, err
	}
	return r, nil
}

// Append maps physical slabs after those that are already mapped. The same
// slab may be mapped into several regions.
func (r *Region) Append(slabs []int32) error {
	if len(slabs) == 0 {
		return nil
	}
	e := r.engine
	if r.mapped+len(slabs) > r.slabs {
		return fmt.Errorf("map region: %w: %d slabs after %d, the region has %d", ErrInvalid, len(slabs), r.mapped, r.slabs)
	}
	var me C.mr_error
	ids := (*C.int32_t)(unsafe.SliceData(slabs)) // no pointers inside, read during the call only
	if C.mr_region_map(e.dev.backend, r.handle, C.int32_t(r.mapped), ids, C.int32_t(len(slabs)), &me) != C.MR_OK {
		return fail("map region", &me)
	}
	r.mapped += len(slabs)
	return nil
}

// Unmap unmaps up to n of the mapped slabs, the last ones, and returns how many these were. After an error, which the limit
// of the system's mappings can cause, the region can only be closed.
func (r *Region) Unmap(n int) (int, error) {
	if n = min(n, r.mapped-r.first); n < 1 {
		return 0, nil
	}
	if err := r.unmap(r.mapped-n, n); err != nil {
		return 0, err
	}
	r.mapped -= n
	return n, nil
}

// Advance unmaps the slabs before place first: no later step reads their tokens. A region without slabs begins at this
// place. Errors are those of Unmap.
func (r *Region) Advance(first int) error {
	if first > r.slabs || first > r.mapped && r.mapped > r.first {
		return fmt.Errorf("advance region: %w: to place %d, slabs %d to %d of %d are mapped", ErrInvalid, first, r.first, r.mapped-1, r.slabs)
	}
	if n := min(first, r.mapped) - r.first; n > 0 {
		if err := r.unmap(r.first, n); err != nil {
			return err
		}
	}
	r.first, r.mapped = max(r.first, first), max(r.mapped, first)
	return nil
}

// unmap unmaps n slabs from place first on.
func (r *Region) unmap(first, n int) error {
	var me C.mr_error
	if C.mr_region_unmap(r.engine.dev.backend, r.handle, C.int32_t(first), C.int32_t(n), &me) != C.MR_OK {
		return fail("unmap region", &me)
	}
	return nil
}

// Tokens is the number of tokens up to the end of the mapped slabs.
func (r *Region) Tokens() int { return r.mapped * SlabTokens }

// Close unmaps the region and gives its addresses back. It may be called more
// than once.
func (r *Region) Close() {
	if r.handle != nil {
		C.mr_region_destroy(r.engine.dev.backend, r.handle)
		r.handle = nil
	}
}

// CopySlab copies the first tokens of a physical slab to another one.
func (e *Engine) CopySlab(from, to int32, tokens int) error {
	var me C.mr_error
	if C.mr_slab_copy(e.dev.backend, e.handle, C.int32_t(from), C.int32_t(to), C.int32_t(tokens), &me) != C.MR_OK {
		return fail("copy slab", &me)
	}
	return nil
}

// ReadSlab copies a physical slab, all of its SlabBytes, to memory. It may run beside Run, for tokens that the step does
// not touch, as WriteSlab may.
func (e *Engine) ReadSlab(slab int32, to []byte) error {
	if err := e.wholeSlab(slab, to); err != nil {
		return err
	}
	var me C.mr_error
	if C.mr_slab_read(e.dev.backend, e.handle, C.int32_t(slab), unsafe.Pointer(unsafe.SliceData(to)), &me) != C.MR_OK {
		return fail("read slab", &me)
	}
	return nil
}

// WriteSlab copies memory to a physical slab, all of its SlabBytes.
func (e *Engine) WriteSlab(slab int32, from []byte) error {
	if err := e.wholeSlab(slab, from); err != nil {
		return err
	}
	var me C.mr_error
	if C.mr_slab_write(e.dev.backend, e.handle, C.int32_t(slab), unsafe.Pointer(unsafe.SliceData(from)), &me) != C.MR_OK {
		return fail("write slab", &me)
	}
	return nil
}

func (e *Engine) wholeSlab(slab int32, bytes []byte) error {
	if uint64(len(bytes)) != e.info.SlabBytes {
		return fmt.Errorf("slab %d: %w: %d bytes, expected %d", slab, ErrInvalid, len(bytes), e.info.SlabBytes)
	}
	return nil
}
