// Package load offers requests at random times, independent of the answers to earlier
// ones (an open loop, as people do who do not know each other), and summarizes the
// answers. It must not know what a server is made of.
package load

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/millrace/millrace/client"
	"github.com/millrace/millrace/e2e/chaos/workload"
)

// Arrivals returns the arrivals of a Poisson process with a rate per second, over a time.
func Arrivals(rate float64, over time.Duration, seed uint64) (at []time.Duration) {
	random := rand.New(rand.NewPCG(seed, 0))
	for t := 0.0; ; {
		t += random.ExpFloat64() / rate
		due := time.Duration(t * float64(time.Second))
		if due >= over {
			return at
		}
		at = append(at, due)
	}
}

// Lengths are the bounds of prompts and answers, in tokens. All lengths between them are equally likely.
const (
	leastPrompt, mostPrompt = 40, 160
	leastAnswer, mostAnswer = 24, 104
)

var words = strings.Fields("the old man went down to river and saw a bear that was drinking water in morning light while his dog ran home")

// Requests returns the bodies of n random requests.
func Requests(n int, seed uint64) [][]byte {
	random := rand.New(rand.NewPCG(seed, 1))
	requests := make([][]byte, n)
	for i := range requests {
		prompt := make([]string, leastPrompt+random.IntN(mostPrompt-leastPrompt+1))
		for j := range prompt {
			prompt[j] = words[random.IntN(len(words))]
		}
		requests[i] = fmt.Appendf(nil,
			`{"prompt":%q,"max_tokens":%d,"ignore_eos":true,"temperature":0,"stream":true,"stream_options":{"include_usage":true}}`,
			strings.Join(prompt, " "), leastAnswer+random.IntN(mostAnswer-leastAnswer+1))
	}
	return requests
}

// Outcome is the result of a request. Times are since the begin of the load.
type Outcome struct {
	Due, Sent  time.Duration
	First, End time.Duration // times of the first token and of the end
	Tokens     int
	Refused    bool
	RetryAfter time.Duration // Retry-After of a refusal; 0 for none
	Err        error         // an error other than a refusal
}

// Bounds are the limits of a good request.
type Bounds struct {
	TTFT time.Duration // time to the first token, from the moment at which the request was due
	TPOT time.Duration // mean time of each further token
}

// Good reports whether a request was answered within the bounds.
func (o *Outcome) Good(b Bounds) bool {
	return o.Served() && o.First-o.Due <= b.TTFT && o.End-o.First <= b.TPOT*time.Duration(max(o.Tokens-1, 0))
}

// Served reports whether a request was answered.
func (o *Outcome) Served() bool { return o.Err == nil && !o.Refused }

// Offer sends each request when it is due, and returns when all have ended. A request
// fails at patience after it was due.
func Offer(ctx context.Context, api *Client, arrivals []time.Duration, requests [][]byte, patience time.Duration) []Outcome {
	outcomes := make([]Outcome, len(arrivals))
	begin := time.Now()
	var all sync.WaitGroup
	for i, due := range arrivals {
		select {
		case <-time.After(due - time.Since(begin)):
		case <-ctx.Done():
		}
		o := &outcomes[i]
		o.Due = due
		all.Go(func() {
			o.ask(api, requests[i%len(requests)], begin, patience)
		})
	}
	all.Wait()
	return outcomes
}

// Keep runs `at` requests at once, each followed by the next, until a time has passed. Requests
// that are running then end.
func Keep(ctx context.Context, api *Client, at int, over time.Duration, requests [][]byte, patience time.Duration) []Outcome {
	var (
		mu       sync.Mutex
		outcomes []Outcome
		all      sync.WaitGroup
		begin    = time.Now()
	)
	for c := range at {
		all.Go(func() {
			for i := c; time.Since(begin) < over && ctx.Err() == nil; i += at {
				o := Outcome{Due: time.Since(begin)}
				o.ask(api, requests[i%len(requests)], begin, patience)
				mu.Lock()
				outcomes = append(outcomes, o)
				mu.Unlock()
			}
		})
	}
	all.Wait()
	return outcomes
}

func (o *Outcome) ask(api *Client, request []byte, begin time.Time, patience time.Duration) {
	now := time.Now()
	o.Sent = now.Sub(begin)
	if err := api.stream(request, now.Add(patience), func(data []byte) error { return o.message(data, begin) }); err != nil {
		o.failed(err)
	}
	o.End = time.Since(begin)
	if o.First == 0 { // no token of the answer had text
		o.First = o.End
	}
}

func (o *Outcome) failed(err error) {
	var said *client.Error
	if errors.As(err, &said) && (said.Status == http.StatusTooManyRequests || said.Status == http.StatusServiceUnavailable) {
		o.Refused, o.RetryAfter = true, said.RetryAfter
		return
	}
	o.Err = err
}

// Summary summarizes a load. Rates are those between From and To, without the beginning, when no
// request waited, and without the end, when no more arrived. An answer counts with the part of its
// time from its first token to its end that lies between them, since in a few seconds the number of
// answers that end there varies more than the rates that are compared. Everything else covers all
// requests.
type Summary struct {
	Offered   float64 `json:"offered_per_s"`
	Served    float64 `json:"served_per_s"`
	Good      float64 `json:"good_per_s"`
	Tokens    float64 `json:"good_tokens_per_s"`
	Requests  int     `json:"requests"`
	Answered  int     `json:"answered"`
	Refused   int     `json:"refused"`
	Unsaid    int     `json:"refused_without_retry_after"`
	Failed    int     `json:"failed"`
	FirstErr  string  `json:"first_error,omitempty"`
	TTFT      Spread  `json:"ttft_ms"` // of answered requests
	TPOT      Spread  `json:"tpot_ms"`
	Refusals  Spread  `json:"refusal_ms"` // time from the request to its refusal
	Late      Spread  `json:"late_ms"`    // time from when a request was due until it was sent, on a busy machine
	Intervals float64 `json:"seconds"`    // sum of the times from From to To
}

// Spread holds quantiles by nearest rank, in milliseconds.
type Spread struct {
	P50 float64 `json:"p50"`
	P99 float64 `json:"p99"`
	Max float64 `json:"max"`
}

func spread(all []time.Duration) Spread {
	p50, p99, longest := workload.Quantiles(all)
	return Spread{p50, p99, longest}
}

// Span is the part of a load in which its rates are measured.
type Span struct{ From, To time.Duration }

// part returns the share of the time from first to end that lies in the span. It is 0 or 1 for a moment.
func (s Span) part(first, end time.Duration) float64 {
	if first == end {
		if s.From <= end && end < s.To {
			return 1
		}
		return 0
	}
	within := min(end, s.To) - max(first, s.From)
	return max(0, float64(within)/float64(end-first))
}

// Summarize summarizes loads of one kind together.
func Summarize(loads [][]Outcome, span Span, b Bounds) (s Summary) {
	var ttft, tpot, refusals, late []time.Duration
	var offered, served, good, tokens float64
	for _, outcomes := range loads {
		for i := range outcomes {
			o := &outcomes[i]
			late = append(late, o.Sent-o.Due)
			if o.Due >= span.From && o.Due < span.To {
				offered++
			}
			switch {
			case o.Refused:
				s.Refused++
				refusals = append(refusals, o.End-o.Sent)
				if o.RetryAfter <= 0 {
					s.Unsaid++
				}
				continue
			case o.Err != nil:
				if s.Failed++; s.FirstErr == "" {
					s.FirstErr = o.Err.Error()
				}
				continue
			}
			s.Answered++
			ttft = append(ttft, o.First-o.Due)
			if o.Tokens > 1 {
				tpot = append(tpot, (o.End-o.First)/time.Duration(o.Tokens-1))
			}
			part := span.part(o.First, o.End)
			served += part
			if o.Good(b) {
				good += part
				tokens += part * float64(o.Tokens)
			}
		}
		s.Requests += len(outcomes)
	}
	s.Intervals = float64(len(loads)) * (span.To - span.From).Seconds()
	s.Offered, s.Served, s.Good, s.Tokens = offered/s.Intervals, served/s.Intervals, good/s.Intervals, tokens/s.Intervals
	s.TTFT, s.TPOT, s.Refusals, s.Late = spread(ttft), spread(tpot), spread(refusals), spread(late)
	return s
}
