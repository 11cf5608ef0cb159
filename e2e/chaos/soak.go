package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace/client"
	"github.com/millrace/millrace/e2e/chaos/workload"
	"github.com/millrace/millrace/e2e/wait"
)

const (
	rounds = 12 // rounds of a soak; after each the idle cluster is weighed
	burst  = 150
)

// soak runs streams, streams whose clients leave, bursts above the capacity, and kills of the second
// process of each role. Between rounds it weighs the first processes, which are never killed: their
// memory, open files and goroutines must not grow once they are warm. In the end JetStream must
// store nothing.
func soak(ctx context.Context, s *suite) (_ *report, err error) {
	begin := time.Now()
	c := s.config("soak")
	c.Args = append([]string{"--max-waiting=32"}, c.Args...) // so that a burst exceeds the queue
	t, stop, err := s.open(ctx, "soak", c)
	defer func() { err = errors.Join(err, stop()) }()
	if err != nil {
		return nil, err
	}
	t.run.Retry = true
	var (
		all     []workload.Result
		weights weights
		side    mischief
	)
	for round := range rounds {
		results, err := t.harmed(ctx, func(ctx context.Context, t *trial) error {
			return side.round(ctx, t, rand.New(rand.NewPCG(s.seed, uint64(round))), s.soak/rounds)
		})
		all = append(all, results...)
		if err := errors.Join(err, t.whole(ctx)); err != nil {
			r, unsaid := t.report(ctx, "soak", all)
			return r, errors.Join(err, unsaid)
		}
		w, err := t.weigh(ctx)
		if err != nil {
			r, unsaid := t.report(ctx, "soak", all)
			return r, errors.Join(err, unsaid)
		}
		weights = append(weights, w)
	}
	r, err := t.report(ctx, "soak", all)
	r.Seconds = time.Since(begin).Seconds()
	r.Notes = append(r.Notes, fmt.Sprintf("%d streams were left in the middle, %d of %d requests in bursts were refused",
		side.left.Load(), side.refused.Load(), side.burst.Load()))
	r.Table = weights.table()
	note, stored := t.empty(ctx)
	if stored == nil {
		r.Notes = append(r.Notes, note)
	}
	return r, errors.Join(err, side.err(), weights.flat(), stored)
}

// mischief is the load beside the streams: clients that leave, and bursts.
type mischief struct {
	left, burst, refused atomic.Int64

	mu   sync.Mutex
	errs []error
}

func (m *mischief) fault(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.errs) < 5 {
		m.errs = append(m.errs, err)
	}
}

func (m *mischief) err() error { return errors.Join(m.errs...) }

// round causes faults for d.
func (m *mischief) round(ctx context.Context, t *trial, random *rand.Rand, d time.Duration) error {
	round, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	var clients sync.WaitGroup
	clients.Go(func() { m.leave(round, t) })
	clients.Go(func() { m.bursts(round, t) })
	defer clients.Wait()
	for wait.For(round, time.Duration(2+random.IntN(4))*time.Second) == nil {
		role := t.victims[random.IntN(len(t.victims))]
		if err := t.killAndRestart(ctx, t.Members(role)[1], time.Second); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// anyone returns the i-th of the clients of all ways.
func (t *trial) anyone(i int) client.Client {
	return t.client(&workload.Stream{ID: i, Way: workload.Way{Over: []string{"http", "nats"}[i%2], Tenant: callers[i/2%len(callers)]}})
}

var endless = client.CompletionRequest{Prompt: "Once upon a time", MaxTokens: 1000, Sampling: client.Sampling{IgnoreEOS: true}}

// leave begins long streams and leaves them after a few tokens.
func (m *mischief) leave(ctx context.Context, t *trial) {
	for i := 0; ctx.Err() == nil; i++ {
		c := t.anyone(i)
		chunks := 0
		for _, err := range c.CompleteStream(ctx, endless) {
			if err != nil && ctx.Err() == nil && workload.Refusal(err) == 0 {
				m.fault(fmt.Errorf("a stream to be left: %w", err))
			}
			if chunks++; chunks == 10 {
				m.left.Add(1)
				break
			}
		}
		_ = wait.For(ctx, 100*time.Millisecond) // the loop checks ctx next
	}
}

// bursts sends more requests than the gateways accept from time to time. Each is answered or refused.
func (m *mischief) bursts(ctx context.Context, t *trial) {
	for wait.For(ctx, 5*time.Second) == nil {
		var all sync.WaitGroup
		for i := range burst {
			all.Go(func() {
				short := endless
				short.MaxTokens = 8
				_, err := t.anyone(i).Complete(ctx, short)
				m.burst.Add(1)
				switch {
				case workload.Refusal(err) > 0:
					m.refused.Add(1)
				case err != nil && ctx.Err() == nil:
					m.fault(fmt.Errorf("a request of a burst: %w", err))
				}
			})
		}
		all.Wait()
	}
}
