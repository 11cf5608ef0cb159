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

// Way is how a client reaches the server.
type Way struct {
	Over   string // "http", "nats"
	Tenant string // tenant whose key it has; "": none
	Plain  bool   // it does not resume lost answers
}

// Clients holds the clients of each way. The streams are spread over them.
type Clients map[Way][]client.Client

// Close closes all clients.
func (c Clients) Close() {
	for _, some := range c {
		for _, one := range some {
			one.Close()
		}
	}
}

// Of returns the client of a way for the i-th stream.
func (c Clients) Of(way Way, i int) client.Client { return c[way][i%len(c[way])] }

// Run runs streams, many at a time.
type Run struct {
	Clients    func(*Stream) client.Client
	Streams    []*Stream
	Concurrent int           // most streams at a time
	Patience   time.Duration // a stream that takes longer is lost
	Retry      bool          // a stream that is refused (429, 503) is sent again when the server says

	OwnIDs bool // tenants do not share request ids, which an earlier version refuses

	// Begun is called at the first chunk of a stream, with the server's id. It may be nil.
	Begun func(s *Stream, id string)

	tokens atomic.Int64
	moved  chan struct{} // receives a value after tokens has changed
	once   sync.Once
	rounds atomic.Int64 // of Ask, so far
}

// Result is one stream that has run.
type Result struct {
	*Stream
	RequestID string
	Answer    *Answer
	Refused   int // refusals, with Run.Retry
}

// Ask runs every stream at least once, and again from the first until done is
// closed, so that there is load during every fault. With a nil done it runs each
// stream once. It gives up after as many errors as there are
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
	ask := r.rounds.Add(1)
	take := func() (s *Stream, id string, ok bool) {
		mu.Lock()
		defer mu.Unlock()
		if next >= len(r.Streams) && ended(done) || errs >= len(r.Streams) || ctx.Err() != nil {
			return nil, "", false
		}
		s = r.Streams[next%len(r.Streams)]
		if id = s.requestID(int(ask), next/len(r.Streams)); r.OwnIDs {
			id = fmt.Sprintf("%s-%d", id, s.ID)
		}
		next++
		return s, id, true
	}
	for range r.Concurrent {
		workers.Go(func() {
			for s, id, ok := take(); ok; s, id, ok = take() {
				result := r.ask(ctx, s, id)
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

// Again runs streams one at a time under their old request ids.
func (r *Run) Again(ctx context.Context, streams []Result) []Result {
	r.once.Do(r.init)
	results := make([]Result, len(streams))
	for i := range streams {
		results[i] = r.ask(ctx, streams[i].Stream, streams[i].RequestID)
	}
	return results
}

func (r *Run) init() { r.moved = make(chan struct{}, 1) }

// ended reports whether done is closed or nil.
func ended(done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	default:
		return done == nil
	}
}

// sameID is the number of neighboring streams with the same request id. They are of different
// tenants, each of which has ids of its own.
const sameID = 4

// requestID returns the request id of a stream in a call of Ask and a round of that call. That of an
// unseeded stream is its own, since the answer follows from it.
func (s *Stream) requestID(ask, round int) string {
	if s.Unseeded() {
		return fmt.Sprintf("unseeded-%d-%d-%d", ask, round, s.ID)
	}
	return fmt.Sprintf("order-%d-%d-%d", ask, round, s.ID/sameID)
}

// First returns the result to run again in an undisturbed run. An unseeded stream has the id of its first
// round. The answers of the others do not depend on their ids.
func First(s *Stream) Result {
	r := Result{Stream: s}
	if s.Unseeded() {
		r.RequestID = s.requestID(1, 0)
	}
	return r
}

func (r *Run) ask(ctx context.Context, s *Stream, id string) Result {
	ctx, cancel := context.WithTimeoutCause(ctx, r.Patience, fmt.Errorf("no end after %s", r.Patience))
	defer cancel()
	begun := func(id string) {
		if r.Begun != nil {
			r.Begun(s, id)
		}
	}
	result := Result{Stream: s, RequestID: id}
	for {
		result.Answer = s.Ask(ctx, r.Clients(s), id, begun, r.moves)
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

// Refusal returns how long a refusal says to wait; 0 if the error is no refusal.
func Refusal(err error) time.Duration {
	var said *client.Error
	if errors.As(err, &said) && (said.Status == http.StatusTooManyRequests || said.Status == http.StatusServiceUnavailable) {
		return said.RetryAfter
	}
	return 0
}

// moves adds a chunk with tokens.
func (r *Run) moves() {
	r.tokens.Add(1)
	select {
	case r.moved <- struct{}{}:
	default:
	}
}

// WaitTokens waits for n more chunks of tokens over all streams.
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
