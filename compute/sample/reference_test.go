package sample

import (
	"math"
	"sort"
)

// referenceFilter is the package's promise written down plainly: full sorts,
// no shortcuts. It returns the probability of every token, 0 for those cut.
func referenceFilter(logits []float32, p Params) []float64 {
	top := math.Inf(-1)
	for _, v := range logits {
		top = math.Max(top, float64(v))
	}
	distance := make([]float64, len(logits)) // nats below the likeliest
	probs := make([]float64, len(logits))
	for i, v := range logits {
		distance[i] = float64((float32(top) - v) / p.Temperature)
		probs[i] = math.Exp(-distance[i])
	}
	if p.TopK > 0 && p.TopK < len(logits) {
		kth := sortedBy(logits, func(i int) float64 { return -float64(logits[i]) })[p.TopK-1]
		for i, v := range logits {
			if v < logits[kth] {
				probs[i] = 0
			}
		}
	}
	if p.TopP > 0 && p.TopP < 1 {
		order := sortedBy(probs, func(i int) float64 { return distance[i] })
		keepPrefix(probs, order, p.TopP, nil)
	}
	if p.MinP > 0 {
		for i := range probs {
			if probs[i] < float64(p.MinP) { // of 1, the likeliest token's
				probs[i] = 0
			}
		}
	}
	if p.TypicalP > 0 && p.TypicalP < 1 {
		total, entropy := sumOf(probs), 0.0
		for _, w := range probs {
			if w > 0 {
				entropy -= w / total * math.Log(w/total)
			}
		}
		surprise := make([]float64, len(probs))
		for i, w := range probs {
			surprise[i] = math.Inf(1)
			if w > 0 {
				surprise[i] = math.Abs(distance[i] + math.Log(total) - entropy)
			}
		}
		order := sortedBy(probs, func(i int) float64 { return surprise[i] })
		keepPrefix(probs, order, p.TypicalP, surprise)
	}
	total := sumOf(probs)
	for i := range probs {
		probs[i] /= total
	}
	return probs
}

// keepPrefix zeroes what follows the shortest prefix of order with the share
// of the mass, sparing equal keys when given.
func keepPrefix(probs []float64, order []int, share float32, keys []float64) {
	want, sum, last := float64(share)*sumOf(probs), 0.0, -1
	for n, i := range order {
		if last >= 0 && (keys == nil || keys[i] > keys[order[last]]+1e-6) {
			probs[i] = 0
			continue
		}
		if last < 0 {
			if sum += probs[i]; sum >= want {
				last = n
			}
		}
	}
}

// sortedBy lists the indices of v by key, equal keys by index.
func sortedBy[T any](v []T, key func(int) float64) []int {
	order := make([]int, len(v))
	for i := range order {
		order[i] = i
	}
	sort.SliceStable(order, func(a, b int) bool { return key(order[a]) < key(order[b]) })
	return order
}

func sumOf(v []float64) float64 {
	sum := 0.0
	for _, x := range v {
		sum += x
	}
	return sum
}

// filtered runs the package's own edit and filter, as probabilities.
func filtered(s *Sampler, logits []float32, ws *Scratch) ([]float64, error) {
	work := append([]float32(nil), logits...)
	s.edit(work)
	best, err := argmax(work)
	if err != nil {
		return nil, err
	}
	set := s.filter(work, work[best], ws)
	total := 0.0
	for _, c := range set {
		total += float64(c.weight)
	}
	probs := make([]float64, len(logits))
	for _, c := range set {
		probs[c.id] = float64(c.weight) / total
	}
	return probs, nil
}
