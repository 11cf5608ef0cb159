package simulate

import "fmt"

// Bound is the condition of a rate: a quantile of each latency is within the SLO, and no request is
// refused.
type Bound struct {
	SLO
	Quantile string // p50, p95 or p99
}

// Validate names what is wrong.
func (b Bound) Validate() error {
	if b.TTFT <= 0 && b.TPOT <= 0 {
		return fmt.Errorf("%w: a search needs a bound of TTFT or TPOT", ErrConfig)
	}
	if b.Quantile != "p50" && b.Quantile != "p95" && b.Quantile != "p99" {
		return fmt.Errorf("%w: quantile %q, expected p50, p95 or p99", ErrConfig, b.Quantile)
	}
	return nil
}

func (b Bound) of(q Quantiles) float64 {
	switch b.Quantile {
	case "p50":
		return q.P50
	case "p95":
		return q.P95
	}
	return q.P99
}

// Holds says whether a report is within the bound.
func (b Bound) Holds(r *Report) bool {
	return r.RefusedSum() == 0 &&
		(b.TTFT == 0 || b.of(r.TTFT) <= b.TTFT.Seconds()) && (b.TPOT == 0 || b.of(r.TPOT) <= b.TPOT.Seconds())
}

// Found is the result of FindQPS, with its trials in order.
type Found struct {
	QPS    float64 `json:"qps"` // 0: not even the least rate holds the bound
	Best   *Report `json:"best,omitempty"`
	Trials []Trial `json:"trials"`
}

// Trial is a rate that was tried.
type Trial struct {
	QPS   float64 `json:"qps"`
	Holds bool    `json:"holds"`
	*Report
}

// precision is the largest factor between the result of FindQPS and a rate that fails. widest is
// the range of the search, as a factor of the first rate.
const (
	precision = 1.02
	widest    = 1 << 20
)

// FindQPS searches the largest rate that holds the bound. It starts at first and doubles or halves
// the rate until one holds and its double does not, then it bisects. run simulates the workload at
// a rate.
func FindQPS(first float64, b Bound, run func(qps float64) (*Report, error)) (*Found, error) {
	if err := b.Validate(); err != nil {
		return nil, err
	}
	f := &Found{}
	try := func(qps float64) (bool, error) {
		r, err := run(qps)
		if err != nil {
			return false, err
		}
		t := Trial{QPS: qps, Holds: b.Holds(r), Report: r}
		f.Trials = append(f.Trials, t)
		if t.Holds && qps > f.QPS {
			f.QPS, f.Best = qps, r
		}
		return t.Holds, nil
	}
	low, high, err := bracket(first, try)
	if err != nil || f.QPS == 0 || high == 0 {
		return f, err
	}
	for high/low > precision {
		middle := (low + high) / 2
		holds, err := try(middle)
		if err != nil {
			return nil, err
		}
		if holds {
			low = middle
		} else {
			high = middle
		}
	}
	return f, nil
}

// bracket finds two rates, one twice the other, of which only the lower holds. high is 0 if every
// rate holds.
func bracket(first float64, try func(float64) (bool, error)) (low, high float64, err error) {
	holds, err := try(first)
	if err != nil {
		return 0, 0, err
	}
	for rate := first; rate > first/widest && rate < first*widest; {
		next := rate * 2
		if !holds {
			next = rate / 2
		}
		now, err := try(next)
		if err != nil {
			return 0, 0, err
		}
		if now != holds {
			return min(rate, next), max(rate, next), nil
		}
		rate = next
	}
	return first, 0, nil
}
