package family

import (
	"strings"

	"github.com/millrace/millrace/compute/weights"
)

// finalNorm are the names of the last norm's weight, in a checkpoint with its head and in one without.
var finalNorm = []string{"model.norm.weight", "norm.weight"}

// onePlus adds one to the weights of norms: those of the tensors whose names is takes.
func onePlus(w *weights.Checkpoint, is func(name string) bool) error {
	return w.Replace(named(w, is), func(x float32) float32 { return 1 + x })
}

// transpose turns matrices whose rows are inputs: those of the tensors whose names is takes.
func transpose(w *weights.Checkpoint, is func(name string) bool) error {
	return w.Transpose(named(w, is))
}

// alias adds tensors that are others under another name: names are ends of names, to those of what is added.
func alias(w *weights.Checkpoint, names map[string]string) error {
	all := map[string][]string{}
	for from, to := range names {
		for _, name := range named(w, func(name string) bool { return strings.HasSuffix(name, from) }) {
			all[strings.TrimSuffix(name, from)+to] = []string{name}
		}
	}
	return w.Stack(all)
}

func named(w *weights.Checkpoint, is func(name string) bool) (names []string) {
	for _, name := range w.Names() {
		if is(name) {
			names = append(names, name)
		}
	}
	return names
}
