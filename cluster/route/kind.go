package route

import "slices"

// Bond is a digest that a process must have to continue a sequence. The zero value binds nothing. A
// bound empty digest equals only an empty one.
type Bond struct {
	Bound  bool
	Digest string
}

// To returns a Bond to a digest.
func To(digest string) Bond { return Bond{true, digest} }

// Holds says whether a process with the given digest satisfies the bond.
func (b Bond) Holds(digest string) bool { return !b.Bound || b.Digest == digest }

// kind counts workers of the same digests: each can continue the sequences of the others.
type kind struct {
	numerics, text string
	workers        int
}

// prefer keeps only the usable workers that have an equal, if one of them has room: a sequence that
// begins there survives the loss of its worker.
func (r *Router) prefer(q *Query, workers []Worker) {
	r.count(workers)
	if len(r.kinds) < 2 {
		return
	}
	found := slices.ContainsFunc(r.usable, func(i int) bool { return r.paired(&workers[i]) && hasRoom(&workers[i], q) })
	if found {
		r.usable = slices.DeleteFunc(r.usable, func(i int) bool { return !r.paired(&workers[i]) })
	}
}

// count counts the kinds of the usable workers.
func (r *Router) count(workers []Worker) {
	r.kinds = r.kinds[:0]
	for _, i := range r.usable {
		w := &workers[i]
		if k := r.kind(w); k != nil {
			k.workers++
		} else {
			r.kinds = append(r.kinds, kind{w.Numerics, w.Text, 1})
		}
	}
}

func (r *Router) kind(w *Worker) *kind {
	for k := range r.kinds {
		if r.kinds[k].numerics == w.Numerics && r.kinds[k].text == w.Text {
			return &r.kinds[k]
		}
	}
	return nil
}

func (r *Router) paired(w *Worker) bool { return r.kind(w).workers > 1 }

// hasRoom says that a sequence would not wait for others.
func hasRoom(w *Worker, q *Query) bool { return w.Load() < 1 && w.fits(q.Slabs) }

// Whole returns the workers that have a pool of the same text digest in each stage, so that a
// request can be served to its end. It changes the list.
func Whole(workers []Worker, stages ...[]Stage) []Worker {
	return slices.DeleteFunc(workers, func(w Worker) bool { return !staged(w.Text, stages) })
}

// staged says whether each stage has a pool of a text digest.
func staged(text string, stages [][]Stage) bool {
	for _, pools := range stages {
		if !slices.ContainsFunc(pools, func(s Stage) bool { return s.Text == text }) {
			return false
		}
	}
	return true
}
