package device

/*
#include "backend.h"
*/
import "C"

import (
	"fmt"
	"unsafe"
)

// Beams says where the beams of a request have their past: a segment KV cache,
// see mr_beams. The prompt is in the request's own region, which plain Rows have
// filled; each beam writes its tokens into a region of its own.
type Beams struct {
	Prompt    int       // tokens
	Responses []*Region // [beams], all different
	// Index says for each beam and each earlier step in whose region the token
	// is that it has there: [beams][Position - Prompt].
	Index [][]int32
}

// beamArrays hold the beams of a step, in C memory.
type beamArrays struct {
	beams   []C.mr_beams   // [MaxRows]
	regions []*C.mr_region // [MaxRows]
	index   []int32        // grown on demand
	// Used by the step so far.
	sequences, rows, indices int
}

func (a *beamArrays) allocate(rows int) bool {
	return cSlice(&a.beams, rows) && cSlice(&a.regions, rows)
}

func (a *beamArrays) free() {
	cFree(&a.beams)
	cFree(&a.regions)
	cFree(&a.index)
}

// reset makes room for the indices of a batch: what add hands out stays where
// it is during the step.
func (a *beamArrays) reset(batch []Rows) error {
	a.sequences, a.rows, a.indices = 0, 0, 0
	need := 0
	for i := range batch {
		if b := batch[i].Beams; b != nil {
			for _, row := range b.Index {
				need += len(row)
			}
		}
	}
	if need <= len(a.index) {
		return nil
	}
	cFree(&a.index)
	if !cSlice(&a.index, 2*need) {
		return fmt.Errorf("%w: beam index of %d entries", ErrNoMemory, 2*need)
	}
	return nil
}

// add describes the beams of s, whose rows fit into the step.
func (a *beamArrays) add(s *Rows) (*C.mr_beams, error) {
	b, past := s.Beams, s.Position-s.Beams.Prompt
	if len(b.Responses) != len(s.Tokens) || len(b.Index) != len(s.Tokens) || past < 0 {
		return nil, fmt.Errorf("%d beams, %d of them in the index, at position %d after a prompt of %d: expected %d, one for each token",
			len(b.Responses), len(b.Index), s.Position, b.Prompt, len(s.Tokens))
	}
	regions, index := a.regions[a.rows:], a.index[a.indices:]
	for i, r := range b.Responses {
		if r == nil {
			return nil, fmt.Errorf("beam %d has no region", i)
		}
		if len(b.Index[i]) != past {
			return nil, fmt.Errorf("beam %d has %d steps in the index, expected %d", i, len(b.Index[i]), past)
		}
		regions[i] = r.handle
		copy(index[i*past:], b.Index[i])
	}
	c := &a.beams[a.sequences]
	*c = C.mr_beams{
		responses:     unsafe.SliceData(regions),
		index:         (*C.int32_t)(unsafe.SliceData(index)),
		prompt_tokens: C.int32_t(b.Prompt),
	}
	a.sequences++
	a.rows += len(b.Responses)
	a.indices += past * len(b.Index)
	return c, nil
}
