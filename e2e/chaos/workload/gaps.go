package workload

import (
	"math"
	"slices"
	"time"
)

// Gaps are times between two chunks of tokens of a stream, in milliseconds.
type Gaps struct {
	Count int     `json:"count"`
	P50   float64 `json:"p50_ms"`
	P99   float64 `json:"p99_ms"`
	Max   float64 `json:"max_ms"`
}

func gaps(all []time.Duration) Gaps {
	p50, p99, longest := Quantiles(all)
	return Gaps{Count: len(all), P50: p50, P99: p99, Max: longest}
}

// Quantiles sorts the times and returns their median, 99th percentile and maximum in
// milliseconds, by nearest rank; zeros of none.
func Quantiles(all []time.Duration) (p50, p99, longest float64) {
	if len(all) == 0 {
		return 0, 0, 0
	}
	slices.Sort(all)
	rank := func(q float64) float64 {
		return float64(all[int(math.Ceil(q*float64(len(all))))-1].Microseconds()) / 1000
	}
	return rank(0.5), rank(0.99), rank(1)
}

// AllGaps returns the gaps of all streams.
func AllGaps(results []Result) Gaps {
	var all []time.Duration
	for _, r := range results {
		at := r.Answer.Arrivals
		for i := 1; i < len(at); i++ {
			all = append(all, at[i].Sub(at[i-1]))
		}
	}
	return gaps(all)
}

// GapsAt returns, for each moment and each stream with tokens before and after
// it, the longest gap that overlaps the second after the moment. It includes
// streams that the fault did not affect.
func GapsAt(results []Result, moments []time.Time) Gaps {
	var all []time.Duration
	for _, r := range results {
		for _, t := range moments {
			if longest := longestGap(r.Answer.Arrivals, t, t.Add(time.Second)); longest > 0 {
				all = append(all, longest)
			}
		}
	}
	return gaps(all)
}

// Hits returns the number of moments at which at least one stream was running, and the number of
// running streams, summed over the moments.
func Hits(results []Result, moments []time.Time) (hits, streams int) {
	for _, t := range moments {
		before := streams
		for _, r := range results {
			if a := r.Answer; a.running(t) {
				streams++
			}
		}
		if streams > before {
			hits++
		}
	}
	return hits, streams
}

// running reports whether the stream has tokens before and after the moment.
func (a *Answer) running(t time.Time) bool {
	return len(a.Arrivals) > 0 && a.Arrivals[0].Before(t) && a.Arrivals[len(a.Arrivals)-1].After(t)
}

func longestGap(at []time.Time, from, to time.Time) (longest time.Duration) {
	if len(at) == 0 || at[0].After(from) {
		return 0
	}
	for i := 1; i < len(at); i++ {
		if at[i].After(from) && at[i-1].Before(to) {
			longest = max(longest, at[i].Sub(at[i-1]))
		}
	}
	return longest
}

// Gap is one gap of a stream.
type Gap struct {
	*Stream
	From, To time.Time
	Chunks   int // chunks before it
}

// Longest returns the longest gap of each of the n streams with the longest gaps, the longest first.
func Longest(results []Result, most int) []Gap {
	var all []Gap
	for _, r := range results {
		var longest Gap
		at := r.Answer.Arrivals
		for i := 1; i < len(at); i++ {
			if at[i].Sub(at[i-1]) > longest.To.Sub(longest.From) {
				longest = Gap{r.Stream, at[i-1], at[i], i}
			}
		}
		if longest.Stream != nil {
			all = append(all, longest)
		}
	}
	slices.SortFunc(all, func(a, b Gap) int { return int(b.To.Sub(b.From) - a.To.Sub(a.From)) })
	return all[:min(most, len(all))]
}
