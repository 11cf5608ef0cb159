package device

/*
#include "backend.h"

void millraceUseWeights(uintptr_t context, int32_t op, int32_t in_use);
*/
import "C"

import (
	"errors"
	"runtime/cgo"
	"slices"
	"sync"

	"github.com/millrace/millrace/compute/model"
	"github.com/millrace/millrace/compute/weights"
)

// weightsInUse puts the weights of a linear op into memory before a backend packs the op, and takes them away after it. So a model that
// loads needs memory for its packed weights and for one op more.
type weightsInUse struct {
	tensors Tensors
	linear  map[string]bool // that linear ops alone read
	mu      sync.Mutex
	errs    []error
}

func newWeightsInUse(tensors Tensors, programs []*model.Program) *weightsInUse {
	w := &weightsInUse{tensors: tensors, linear: map[string]bool{}}
	for _, p := range programs {
		for _, name := range p.PackedTensors() {
			w.linear[name] = true
		}
	}
	return w
}

// find finds a tensor. The data of one that linear ops alone read may not be there.
func (w *weightsInUse) find(name string) (weights.Tensor, bool) {
	if w.linear[name] {
		return w.tensors.Reserved(name)
	}
	return w.tensors.Tensor(name)
}

// failed is what went wrong until now.
func (w *weightsInUse) failed() error { return errors.Join(w.errs...) }

// rankWeights is weightsInUse for the ops of a rank.
type rankWeights struct {
	*weightsInUse
	program *model.Program
}

// use begins or ends the use of an op's weights.
func (w rankWeights) use(op int, inUse bool) {
	var names []string
	for _, part := range w.program.Ops[op].Parts {
		if name := w.program.Tensors[part.Weight].Name; w.linear[name] {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	names = slices.Compact(names)
	if inUse {
		w.tensors.Use(names)
	} else if err := w.tensors.Forget(names); err != nil {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.errs = append(w.errs, err)
	}
}

// describe adds to the descriptions of programs a function by which a backend says which weights it reads. done is called
// when they are loaded.
func (w *weightsInUse) describe(programs []*model.Program, descs []C.mr_program_desc) (done func()) {
	handles := make([]cgo.Handle, len(programs))
	for i, p := range programs {
		handles[i] = cgo.NewHandle(rankWeights{w, p})
		descs[i].use_weights = (*[0]byte)(C.millraceUseWeights)
		descs[i].context = C.uintptr_t(handles[i])
	}
	return func() {
		for _, h := range handles {
			h.Delete()
		}
	}
}

//export millraceUseWeights
func millraceUseWeights(context C.uintptr_t, op, inUse C.int32_t) {
	cgo.Handle(context).Value().(rankWeights).use(int(op), inUse != 0) //nolint:forcetypeassert // describe made it
}
