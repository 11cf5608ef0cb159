package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/millrace/millrace/e2e/chaos/load"
)

const (
	tenantRounds = 2
	ownLoad      = 0.2  // load of the measured tenant, as a share of the capacity
	loudLoad     = 0.7  // first load of its neighbor, which keeps the server well used
	mostMoved    = 1.25 // largest growth of the p99 of its time to the first token
)

// neighbors are the loads of the neighbor, in multiples of loudLoad.
var neighbors = []float64{0, 1, 10}

// tenants measures one tenant's steady small load three times: alone, beside a neighbor on a well used
// server, and beside the neighbor with ten times that load, which is seven times the capacity. The
// tenant is never refused, and the neighbor's excess does not change its time to the first token. Its
// requests and their times are the same each time, and each load has --tenant-requests of them.
func tenants(ctx context.Context, s *suite) (_ *report, err error) {
	begin := time.Now()
	v, stop, err := s.serve(ctx, "tenants", "loud", "small")
	defer func() { err = errors.Join(err, stop()) }()
	if err != nil {
		return nil, err
	}
	own, other := make([][][]load.Outcome, len(neighbors)), make([][][]load.Outcome, len(neighbors))
	used := make([]shares, len(neighbors))
	for round := range tenantRounds {
		for i, n := range neighbors {
			now, err := v.during(ctx, func() error {
				small, loud, err := v.beside(ctx, n, uint64(2*round))
				own[i], other[i] = append(own[i], small), append(other[i], loud)
				return err
			})
			if err != nil {
				return nil, err
			}
			used[i] = used[i].add(now)
		}
	}
	r := &report{Scenario: "tenants", Faults: map[string]int{}, Least: least{Streams: v.tenantRequests}}
	r.Notes = append(r.Notes,
		fmt.Sprintf("capacity %.1f requests/s, the tenant's own load %.1f/s, its neighbor's %.1f/s, %d x %.0f s each; the load runs on the server's cores",
			v.capacity, ownLoad*v.capacity, loudLoad*v.capacity, tenantRounds, v.tenantTime().Seconds()))
	r.Table = []string{"| neighbor's load | requests | refused | TTFT p50, p99, max | TPOT p50, p99 | sent late p99 | good tokens/s | neighbor: answered, refused | its TTFT, TPOT p50 | its good tokens/s | cores: server, load, others |",
		"|---|---|---|---|---|---|---|---|---|---|---|"}
	span := load.Span{To: v.tenantTime()}
	p99 := make([]float64, len(neighbors))
	for i, n := range neighbors {
		a, b := load.Summarize(own[i], span, s.bounds), load.Summarize(other[i], span, s.bounds)
		p99[i] = a.TTFT.P99
		r.Streams += a.Requests + b.Requests
		r.Completed += a.Answered + b.Answered + b.Refused
		r.Refused += a.Refused + b.Refused
		r.Lost += a.Failed + b.Failed
		for _, e := range []string{a.FirstErr, b.FirstErr} {
			if e != "" {
				r.Wrong = append(r.Wrong, e)
			}
		}
		r.Table = append(r.Table,
			fmt.Sprintf("| %g x | %d | %d | %.1f, %.1f, %.1f ms | %.1f, %.1f ms | %.1f ms | %.0f | %d, %d | %.0f, %.1f ms | %.0f | %s |",
				n, a.Requests, a.Refused, a.TTFT.P50, a.TTFT.P99, a.TTFT.Max, a.TPOT.P50, a.TPOT.P99, a.Late.P99, a.Tokens,
				b.Answered, b.Refused, b.TTFT.P50, b.TPOT.P50, b.Tokens, used[i]))
		if a.Refused > 0 {
			err = errors.Join(err, fmt.Errorf("%d requests of the small tenant were refused beside %g x the neighbor's load", a.Refused, n))
		}
	}
	last := len(neighbors) - 1
	r.Notes = append(r.Notes, fmt.Sprintf("p99 of TTFT beside %g x the neighbor's load: %.2f x that beside %g x, %.2f x that alone",
		neighbors[last], p99[last]/p99[last-1], neighbors[last-1], p99[last]/p99[0]))
	r.Seconds = time.Since(begin).Seconds()
	var broken error
	if p99[last] > mostMoved*p99[last-1] {
		broken = fmt.Errorf("ten times the neighbor's load moves the p99 of the time to the first token from %.1f to %.1f ms, expected at most %.1f ms",
			p99[last-1], p99[last], mostMoved*p99[last-1])
	}
	return r, errors.Join(err, r.judge(broken, used))
}

// beside sends the tenant's load, the same each time, and n times loudLoad for the neighbor.
func (v *server) beside(ctx context.Context, n float64, seed uint64) (small, loud []load.Outcome, err error) {
	var (
		wg      sync.WaitGroup
		loudErr error
	)
	if n > 0 {
		wg.Go(func() { loud, loudErr = v.offer(ctx, "loud", n*loudLoad*v.capacity, v.tenantTime(), seed+1) })
	}
	small, err = v.offer(ctx, "small", ownLoad*v.capacity, v.tenantTime(), seed)
	wg.Wait()
	return small, loud, errors.Join(err, loudErr)
}

// tenantTime returns how long a load lasts in a round.
func (v *server) tenantTime() time.Duration {
	return time.Duration(float64(v.tenantRequests) / tenantRounds / (ownLoad * v.capacity) * float64(time.Second))
}
