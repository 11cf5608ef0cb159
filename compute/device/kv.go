package device

/*
#include "backend.h"
*/
import "C"

import (
	"fmt"
	"unsafe"

	"github.com/millrace/millrace/compute/model"
)

// Region is a run of virtual addresses for the KV cache of one sequence, for each group of layers,
// backed by mapping physical slabs of the engine's pool.
type Region struct {
	engine *Engine
	handle *C.mr_region
	tokens int // at most
	slabs  int // of each group
	first  int // slabs [first, mapped) of windowed groups are mapped, and those of sinks, and [0, mapped) of the others
	mapped int
	ids    []int32 // of one group, reused
}

// ReserveKV makes the pool of physical slabs. Those on the host have memory from their first use on. It is called once.
func (e *Engine) ReserveKV(slabs int) error {
	var me C.mr_error
	if C.mr_kv_reserve(e.dev.backend, e.handle, C.int32_t(slabs), &me) != C.MR_OK {
		return fail(fmt.Sprintf("reserve %d KV slabs of %d bytes", slabs, e.info.SlabBytes), &me)
	}
	return nil
}

// ReserveKVFile is ReserveKV with the pool in a file on tmpfs, from offset on, which is a multiple of the page size. The file is
// the caller's to close, and each slab the caller's to commit before it is mapped or written. Errors: those of the backend, ErrUnsupported
// where the pool is memory of a device.
func (e *Engine) ReserveKVFile(slabs int, file uintptr, offset int64) error {
	var me C.mr_error
	if C.mr_kv_reserve_file(e.dev.backend, e.handle, C.int32_t(slabs), C.int32_t(file), C.uint64_t(offset), &me) != C.MR_OK {
		return fail(fmt.Sprintf("reserve %d KV slabs of %d bytes in a file", slabs, e.info.SlabBytes), &me)
	}
	return nil
}

// Slabs is the number of slabs of one group of layers that hold n tokens.
func Slabs(tokens int) int { return (tokens + SlabTokens - 1) / SlabTokens }

// Groups are the groups of layers, see model.Groups.
func (e *Engine) Groups() model.Groups { return e.groups }

// Slabs is the number of slabs of a region for n tokens, for all groups of layers: its HeadSlabs, and those that hold the tokens.
func (e *Engine) Slabs(tokens int) int { return e.groups.Count() * e.places(tokens) }

// places is the number of slabs of each group.
func (e *Engine) places(tokens int) int { return e.need.AtOnce(Slabs(tokens)) }

// NewRegion reserves addresses for a sequence of up to the given tokens.
// Nothing is mapped yet.
func (e *Engine) NewRegion(tokens int) (*Region, error) {
	r := &Region{engine: e, tokens: tokens, slabs: e.places(tokens)}
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
	slabs := make([]int32, e.Slabs(tokens))
	for i := range slabs {
		slabs[i] = int32(first + i)
	}
	if err := r.Append(slabs); err != nil {
		r.Close()
		return nil, err
	}
	return r, nil
}

// Append maps physical slabs after those that are already mapped: for each place one slab of each group. -1 in a windowed group says that
// the sequence has none for this place and those before it. The same slab may be mapped into several regions. After an error the region can
// only be closed.
func (r *Region) Append(slabs []int32) error {
	groups := r.engine.groups
	n := len(slabs) / groups.Count()
	if n*groups.Count() != len(slabs) {
		return fmt.Errorf("map region: %w: %d slabs, expected %d for each place", ErrInvalid, len(slabs), groups.Count())
	}
	if r.mapped+n > r.slabs {
		return fmt.Errorf("map region: %w: slabs for %d places after %d, the region has %d", ErrInvalid, n, r.mapped, r.slabs)
	}
	first := r.first
	for group := range groups.Count() {
		ids, at := slabs, r.mapped
		if groups.Count() > 1 {
			r.ids = r.ids[:0]
			for i := range n {
				r.ids = append(r.ids, slabs[i*groups.Count()+group])
			}
			ids = r.ids
		}
		for group >= groups.Full && r.first == r.mapped && len(ids) > 0 && ids[0] < 0 {
			ids, at = ids[1:], at+1
		}
		if group >= groups.Full {
			first = max(first, at)
		}
		if err := r.mapSlabs(group, at, ids); err != nil {
			return err
		}
	}
	if r.first == r.mapped {
		r.first = first
	}
	r.mapped += n
	return nil
}

// mapSlabs maps slabs of a group from a place on.
func (r *Region) mapSlabs(group, at int, slabs []int32) error {
	if len(slabs) == 0 {
		return nil
	}
	e := r.engine
	var me C.mr_error
	ids := (*C.int32_t)(unsafe.SliceData(slabs)) // no pointers inside, read during the call only
	if C.mr_region_map(e.dev.backend, r.handle, C.int32_t(group*r.slabs+at), ids, C.int32_t(len(slabs)), &me) != C.MR_OK {
		return fail("map region", &me)
	}
	return nil
}

// Unmap unmaps up to n of the mapped slabs, the last ones, and at least those of the last place. It returns how many these were, 0 if none
// were left. After an error, which the limit of the system's mappings can cause, the region can only be closed.
func (r *Region) Unmap(n int) (unmapped int, err error) {
	if n < 1 {
		return 0, nil
	}
	to := max(r.begin(0), r.mapped-max(n/r.engine.groups.Count(), 1))
	for group := range r.engine.groups.Count() {
		from := max(to, r.begin(group))
		if err := r.unmap(group, from, r.mapped-from); err != nil {
			return 0, err
		}
		unmapped += max(r.mapped-from, 0)
	}
	r.mapped, r.first = to, min(r.first, to)
	return unmapped, nil
}

// begin is the first place of a group that may have a slab.
func (r *Region) begin(group int) int {
	if group < r.engine.groups.Full {
		return 0
	}
	return r.first
}

// Advance unmaps the slabs of windowed groups before place first, but for those of sinks: no later step reads their tokens. If there are no
// other groups, a region without slabs begins at this place. Errors are those of Unmap.
func (r *Region) Advance(first int) error {
	groups := r.engine.groups
	if first > r.slabs || first > r.mapped && (r.mapped > r.first || groups.Full > 0) {
		return fmt.Errorf("advance region: %w: to place %d, slabs %d to %d of %d are mapped", ErrInvalid, first, r.first, r.mapped-1,
			r.slabs)
	}
	from := max(r.first, r.engine.sinks)
	for group := groups.Full; group < groups.Count(); group++ {
		if err := r.unmap(group, from, min(first, r.mapped)-from); err != nil {
			return err
		}
	}
	if groups.Windowed > 0 {
		r.first, r.mapped = max(r.first, first), max(r.mapped, first)
	}
	return nil
}

// unmap unmaps n slabs of a group from a place on.
func (r *Region) unmap(group, first, n int) error {
	if n < 1 {
		return nil
	}
	var me C.mr_error
	if C.mr_region_unmap(r.engine.dev.backend, r.handle, C.int32_t(group*r.slabs+first), C.int32_t(n), &me) != C.MR_OK {
		return fail("unmap region", &me)
	}
	return nil
}

// Tokens is the number of tokens up to the end of the mapped slabs: those that the region is for where these are all of its slabs.
func (r *Region) Tokens() int {
	if r.mapped == r.slabs {
		return r.tokens
	}
	return max(0, r.mapped-r.engine.info.HeadSlabs) * SlabTokens
}

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
