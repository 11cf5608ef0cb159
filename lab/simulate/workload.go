package simulate

import (
	"fmt"
	"math"
	"math/rand/v2"
	"time"
)

// LogNormal is a distribution of lengths in tokens: exp(N(mu, Sigma)) with the
// given mean (mu = ln(Mean) - Sigma^2/2), rounded, and cut to 1..Max, which
// lowers the mean by what lies beyond. Sigma 0: every length is Mean.
type LogNormal struct {
	Mean  float64 `json:"mean"`
	Sigma float64 `json:"sigma"`
	Max   int     `json:"max"`
}

func (l LogNormal) validate(name string) error {
	if !(l.Mean >= 1 && l.Mean <= 1e9 && l.Sigma >= 0 && l.Sigma <= 5) || l.Max < 1 {
		return fmt.Errorf("%w: %s: found a mean of %g, a sigma of %g, %d at most; expected 1 to 1e9, 0 to 5, at least 1", ErrConfig, name,
			l.Mean, l.Sigma, l.Max)
	}
	return nil
}

func (l LogNormal) draw(random *rand.Rand) int {
	x := l.Mean * math.Exp(l.Sigma*random.NormFloat64()-l.Sigma*l.Sigma/2)
	return int(min(max(math.Round(x), 1), float64(l.Max)))
}

// Workload is a random workload: independent requests that arrive at random times.
type Workload struct {
	Requests  int       `json:"requests"`
	QPS       float64   `json:"qps"`            // mean rate of arrivals per second; at the end of a ramp
	From      float64   `json:"from,omitempty"` // mean rate at the beginning; 0: QPS
	Prompt    LogNormal `json:"prompt"`
	Output    LogNormal `json:"output"`
	MaxTokens int       `json:"max_tokens"` // limit that each client sets; 0: the length of its answer
	Seed      uint64    `json:"seed"`
}

// Source draws the workload, the same each time. Lengths do not depend on the rate.
func (w Workload) Source() (Source, error) {
	if w.Requests < 1 || !(w.QPS > 0 && w.QPS <= 1e9) || !(w.From >= 0 && w.From <= 1e9) || w.MaxTokens < 0 {
		return nil,
			fmt.Errorf("%w: %d requests at %g/s, from %g/s, of %d tokens at most: expected at least 1, above 0, at least 0, at least 0",
				ErrConfig, w.Requests, w.QPS, w.From, w.MaxTokens)
	}
	if err := w.Prompt.validate("prompt"); err != nil {
		return nil, err
	}
	if err := w.Output.validate("output"); err != nil {
		return nil, err
	}
	if w.From == 0 {
		w.From = w.QPS
	}
	return &drawn{
		Workload: w,
		arrivals: rand.New(rand.NewPCG(w.Seed, 1)), lengths: rand.New(rand.NewPCG(w.Seed, 2)),
	}, nil
}

// drawn is a Poisson process whose rate grows evenly from From to QPS. Its
// integral over time is drawn as a process of rate 1, and inverted.
type drawn struct {
	Workload
	arrivals, lengths *rand.Rand
	count             int
	integral          float64
}

func (d *drawn) Len() int { return d.Requests }

func (d *drawn) Next() (Request, bool) {
	if d.count == d.Requests {
		return Request{}, false
	}
	d.count++
	d.integral += d.arrivals.ExpFloat64()
	at := d.integral / d.QPS
	if d.From != d.QPS {
		length := 2 * float64(d.Requests) / (d.From + d.QPS) // seconds
		slope := (d.QPS - d.From) / length
		// After the end of the ramp a falling rate keeps its last value.
		root := math.Sqrt(max(d.From*d.From+2*slope*d.integral, d.QPS*d.QPS*1e-6))
		at = (root - d.From) / slope
	}
	r := Request{
		At:     time.Duration(at * float64(time.Second)),
		Prompt: d.Prompt.draw(d.lengths), Output: d.Output.draw(d.lengths),
	}
	r.MaxTokens = max(r.Output, d.MaxTokens)
	return r, true
}

// Trace is a workload that is given.
type Trace []Request

// Source gives the requests of the trace.
func (t Trace) Source() Source { return &given{t, len(t)} }

type given struct {
	rest Trace
	all  int
}

func (g *given) Len() int { return g.all }

func (g *given) Next() (Request, bool) {
	if len(g.rest) == 0 {
		return Request{}, false
	}
	r := g.rest[0]
	g.rest = g.rest[1:]
	return r, true
}
