package family

import (
	"strings"

	"github.com/millrace/millrace/compute/weights"
)

// finalNorm are the names of the last norm's weight, in a checkpoint with its head, in one without, and in those of a model with images.
var finalNorm = []string{
	"model.norm.weight", "norm.weight", "model.language_model.norm.weight", "language_model.model.norm.weight",
	"model.language_model.model.norm.weight", "language_model.norm.weight", "model.text_model.norm.weight", "text_model.norm.weight",
}

// onePlus adds one to the weights of norms: those of the tensors whose names is takes.
func onePlus(w *weights.Checkpoint, is func(name string) bool) error {
	return w.Replace(named(w, is), func(x float32) float32 { return 1 + x })
}

// transpose turns matrices whose rows are inputs: those of the tensors whose names is takes.
func transpose(w *weights.Checkpoint, is func(name string) bool) error {
	return w.Transpose(named(w, is))
}

// rename gives tensors other names: ends are the ends of names, to the new ones.
func rename(w *weights.Checkpoint, ends map[string]string) {
	all := map[string]string{}
	for from, to := range ends {
		for _, name := range named(w, func(name string) bool { return strings.HasSuffix(name, from) }) {
			all[name] = strings.TrimSuffix(name, from) + to
		}
	}
	w.Rename(all)
}

// shorten leaves the first rows of the tables whose names end so.
func shorten(w *weights.Checkpoint, end string, rows int64) {
	for _, name := range named(w, func(name string) bool { return strings.HasSuffix(name, end) }) {
		w.Shorten(name, rows)
	}
}

func named(w *weights.Checkpoint, is func(name string) bool) (names []string) {
	for _, name := range w.Names() {
		if is(name) {
			names = append(names, name)
		}
	}
	return names
}
