package route

import "slices"

// Duty is which sequences a worker should have. It is a preference: no sequence is lost for it.
type Duty int

// Duties of workers.
const (
	Both    Duty = iota
	Prefill      // new sequences
	Decode       // those that another worker began
)

// distance says how far a sequence is from where it belongs at a worker with this duty: 0 is best. A new one belongs at any worker that
// does prefill. One that has begun disturbs least at a decode worker, and at a prefill worker it is disturbed most.
func (d Duty) distance(begun bool) int {
	switch {
	case begun && d == Decode, !begun && d != Decode:
		return 0
	case begun && d == Prefill:
		return 2
	}
	return 1
}

// belongs keeps the workers of a list whose duty fits a sequence best.
func belongs(q *Query, usable []int, workers []Worker) []int {
	best := slices.MinFunc(usable, func(a, b int) int {
		return workers[a].Duty.distance(q.Begun) - workers[b].Duty.distance(q.Begun)
	})
	least := workers[best].Duty.distance(q.Begun)
	return slices.DeleteFunc(usable, func(i int) bool { return workers[i].Duty.distance(q.Begun) > least })
}

// Moves says whether a sequence should leave a worker after its first token: for an equal decode worker that can take it.
func (c Config) Moves(now Time, from string, workers []Worker) bool {
	i := slices.IndexFunc(workers, func(w Worker) bool { return w.Node == from })
	if i < 0 || workers[i].Duty != Prefill {
		return false
	}
	q := Query{Model: workers[i].Model, Numerics: To(workers[i].Numerics)}
	return slices.ContainsFunc(workers, func(w Worker) bool { return w.Duty == Decode && c.Usable(now, &q, &w) })
}
