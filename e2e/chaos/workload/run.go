package workload

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace/client"
)

// Clients are those of each transport ("http", "nats"); streams are spread over them.
type Clients map[string][]client.Client

// Close closes all.
func (c Clients) Close() {
	for _, some := range c {
		for _, one := range some {
			one.Close()
		}
	}
}

// Of returns the client of a transport for the i-th of something.
func (c Clients) Of(over string, i int) client.Client { return c[over][i%len(c[over])] }

// Run asks streams, many at a time.
type Run struct {
	Clients    Clients
	Streams    []*Stream
	Concurrent int           // streams at a time
	Patience   time.Duration // a stream that takes longer is lost
	Retry      bool          // a stream that is refused (429, 503) is asked again when the server says

	tokens atomic.Int64
	moved  chan struct{} // has a value after tokens changed
	once   sync.Once
}

// Result is one stream that was asked.
type Result struct {
	*Stream
	Answer  *Answer
	Refused int // times, with Run.Retry
}

// Ask runs every stream at least once, and goes on from the first until done is
// closed, so that there is load as long as something is done to the server. A
// nil done asks each stream once. It gives up after as many errors as there are
// streams.
func (r *Run) Ask(ctx context.Context, done <-chan struct{}) []Result {
	r.once.Do(r.init)
	var (
		mu      sync.Mutex
		next    int
		errs    int
		results []Result
		workers sync.WaitGroup
	)
	take := func() (*Stream, bool) {
		mu.Lock()
		defer mu.Unlock()
		if next >= len(r.Streams) && ended(done) || errs >= len(r.Streams) || ctx.Err() != nil {
			return nil, false
		}
		next++
		return r.Streams[(next-1)%len(r.Streams)], true
	}
	for range r.Concurrent {
		workers.Go(func() {
			for s, ok := take(); ok; s, ok = take() {
				result := r.ask(ctx, s)
				mu.Lock()
				results = append(results, result)
				if result.Answer.Err != nil {
					errs++
				}
				mu.Unlock()
			}
		})
	}
	workers.Wait()
	return results
}

func (r *Run) init() { r.moved = make(chan struct{}, 1) }

// ended: nil counts as closed.
func ended(done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	default:
		return done == nil
	}
}

func (r *Run) ask(ctx context.Context, s *Stream) Result {
	ctx, cancel := context.WithTimeoutCause(ctx, r.Patience, fmt.Errorf("no end after %s", r.Patience))
	defer cancel()
	result := Result{Stream: s}
	for {
		result.Answer = s.Ask(ctx, r.Clients.Of(s.Over, s.ID/2), r.moves)
		wait := Refusal(result.Answer.Err)
		if !r.Retry || wait == 0 || result.Answer.tokens() > 0 {
			break
		}
		result.Refused++
		select {
		case <-time.After(wait):
		case <-ctx.Done():
		}
	}
	if errors.Is(result.Answer.Err, context.DeadlineExceeded) {
		result.Answer.Err = context.Cause(ctx)
	}
	return result
}

// Refusal is how long the server asks to wait; 0 when the error is no refusal.
func Refusal(err error) time.Duration {
	var said *client.Error
	if errors.As(err, &said) && (said.Status == http.StatusTooManyRequests || said.Status == http.StatusServiceUnavailable) {
		return said.RetryAfter
	}
	return 0
}

// moves counts a chunk with tokens.
func (r *Run) moves() {
	r.tokens.Add(1)
	select {
	case r.moved <- struct{}{}:
	default:
	}
}

// WaitTokens returns when n more chunks of tokens have come, over all streams.
func (r *Run) WaitTokens(ctx context.Context, n int64) error {
	r.once.Do(r.init)
	for until := r.tokens.Load() + n; r.tokens.Load() < until; {
		select {
		case <-r.moved:
		case <-ctx.Done():
			return fmt.Errorf("%d of %d tokens to wait for never came: %w", until-r.tokens.Load(), n, ctx.Err())
		}
	}
	return nil
}

// Expected are the answers of an undisturbed run by stream; an error where a
// stream was lost even so.
func Expected(results []Result) (map[int]*Answer, error) {
	expected := map[int]*Answer{}
	for _, r := range results {
		if r.Answer.Err != nil {
			return nil, fmt.Errorf("undisturbed run: %s: %w", r.Stream, r.Answer.Err)
		}
		expected[r.ID] = r.Answer
	}
	return expected, nil
}

// Outcome counts the verdicts of a run.
type Outcome struct {
	Streams    int      `json:"streams"`
	Completed  int      `json:"completed"`
	Refused    int      `json:"refused"` // and asked again, where a scenario has overload
	Lost       int      `json:"lost"`
	Duplicated int      `json:"duplicated"`
	Missing    int      `json:"missing"`
	Differing  int      `json:"differing"`
	Tokens     int      `json:"tokens"`
	Wrong      []string `json:"wrong,omitempty"` // the first few faults that were found
}

// keepWrong bounds what is said about a run that goes wrong everywhere.
const keepWrong = 20

// Judge compares every answer with the expected one.
func Judge(expected map[int]*Answer, results []Result) Outcome {
	o := Outcome{Streams: len(results)}
	for _, r := range results {
		verdict, err := Compare(expected[r.ID], r.Answer)
		switch verdict {
		case Whole:
			o.Completed++
		case Lost:
			o.Lost++
		case Duplicated:
			o.Duplicated++
		case Missing:
			o.Missing++
		case Differing:
			o.Differing++
		}
		o.Tokens += r.Answer.tokens()
		o.Refused += r.Refused
		if err != nil && len(o.Wrong) < keepWrong {
			o.Wrong = append(o.Wrong, fmt.Sprintf("%s: %s: %v", r.Stream, verdict, err))
		}
	}
	return o
}

// Good: every stream is whole.
func (o *Outcome) Good() bool { return o.Completed == o.Streams }
