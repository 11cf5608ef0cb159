package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/millrace/millrace/e2e/chaos/cluster"
	"github.com/millrace/millrace/e2e/chaos/load"
)

const (
	capacityTime = 8 * time.Second
	loadTime     = 13 * time.Second
	loadRounds   = 3               // rounds of each load, in turn with the others
	loadWarm     = 3 * time.Second // part of each load before rates are counted
	loadDraws    = 512             // different requests
	loadPatience = 30 * time.Second
)

// Limits, and the share of the cores that other programs may use while a limit on timing is an
// error.
const (
	leastGoodput = 0.95 // goodput at ten times the capacity, as a share of the best
	mostRefusal  = 50   // ms, p99
	quiet        = 0.1
)

// multiples are the offered loads, in multiples of the capacity.
var multiples = []float64{1, 2, 10}

// steady is the part of each load whose rates are judged.
var steady = load.Span{From: loadWarm, To: loadTime}

// server is the server that gets the load.
type server struct {
	*suite
	*cluster.Cluster

	keys     map[string]string // by tenant
	requests [][]byte          // bodies
	capacity float64           // requests per second
}

// serve starts a server and measures its capacity. Each tenant has a key. The caller
// calls stop even after an error.
func (s *suite) serve(ctx context.Context, name string, tenants ...string) (v *server, stop func() error, err error) {
	c := s.config(name)
	c.Args = append([]string{"--max-queue-wait=1s"}, s.args...) // half of the bound on the time to the first token
	if !s.split {
		c.Members = map[string]int{cluster.RoleServer: 1}
	}
	v = &server{suite: s, keys: map[string]string{}, requests: load.Requests(loadDraws, s.seed)}
	if len(tenants) > 0 {
		keys, args, err := makeKeys(c.Dir, tenants)
		if err != nil {
			return nil, func() error { return nil }, err
		}
		v.keys = keys
		c.Args = append(args, c.Args...)
	}
	started, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	v.Cluster, err = cluster.Start(started, c)
	if err == nil {
		err = v.findCapacity(ctx, append(tenants, "")[0])
	}
	return v, v.Close, err
}

// client returns the client of a tenant.
func (v *server) client(tenant string) (*load.Client, error) {
	return load.NewClient(v.Gateways()[0], v.keys[tenant])
}

// findCapacity measures the rate of answers with --concurrent requests in flight.
func (v *server) findCapacity(ctx context.Context, tenant string) error {
	api, err := v.client(tenant)
	if err != nil {
		return err
	}
	defer api.Close()
	s := load.Summarize([][]load.Outcome{load.Keep(ctx, api, v.concurrent, capacityTime, v.requests, loadPatience)},
		load.Span{From: loadWarm, To: capacityTime}, v.bounds)
	v.capacity = s.Served
	fmt.Fprintf(v.out, "  %d requests at a time: %.1f/s, TPOT p50 %.1f ms\n", v.concurrent, s.Served, s.TPOT.P50)
	if s.Failed > 0 || s.Served == 0 {
		return fmt.Errorf("%d of %d requests failed: %s", s.Failed, s.Requests, s.FirstErr)
	}
	return v.idle(ctx)
}

// idle waits until the server has no request. A request that hangs is an error.
func (v *server) idle(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	return (&trial{Cluster: v.Cluster}).idle(ctx)
}

// offer sends the load of a tenant.
func (v *server) offer(ctx context.Context, tenant string, rate float64, over time.Duration, seed uint64) ([]load.Outcome, error) {
	api, err := v.client(tenant)
	if err != nil {
		return nil, err
	}
	defer api.Close()
	return load.Offer(ctx, api, load.Arrivals(rate, over, v.seed+seed), v.requests, loadPatience), nil
}

// overload sends requests at random times at the capacity and at multiples of it. Goodput is the
// rate of answers within the bounds. It stays near its best under any load, and
// excess requests are refused at once with Retry-After.
func overload(ctx context.Context, s *suite) (_ *report, err error) {
	begin := time.Now()
	v, stop, err := s.serve(ctx, "overload")
	defer func() { err = errors.Join(err, stop()) }()
	if err != nil {
		return nil, err
	}
	loads := make([][][]load.Outcome, len(multiples))
	shares := make([]shares, len(multiples))
	for round := range loadRounds {
		for i, m := range multiples {
			used, err := v.during(ctx, func() error {
				outcomes, err := v.offer(ctx, "", m*v.capacity, loadTime, uint64(round*len(multiples)+i))
				loads[i] = append(loads[i], outcomes)
				return err
			})
			if err != nil {
				return nil, err
			}
			shares[i] = shares[i].add(used)
		}
	}
	r := &report{Scenario: "overload", Faults: map[string]int{}, Least: least{Streams: loadRounds * v.concurrent}}
	r.Notes = append(r.Notes,
		fmt.Sprintf("capacity %.1f requests/s; good: first token within %v, further ones within %v each; the load runs on the server's cores",
			v.capacity, s.bounds.TTFT, s.bounds.TPOT))
	r.Table = []string{"| offered/s | served/s | good/s | good tokens/s | refused | without Retry-After | failed | TTFT p50, p99 | TPOT p50, p99 | refusal p50, p99, max | sent late p99 | cores: server, load, others |",
		"|---|---|---|---|---|---|---|---|---|---|---|---|"}
	var last load.Summary
	for i := range multiples {
		sum := load.Summarize(loads[i], steady, s.bounds)
		r.Streams += sum.Requests
		r.Completed += sum.Answered + sum.Refused
		r.Lost += sum.Failed
		r.Refused += sum.Refused
		if sum.Failed > 0 {
			r.Wrong = append(r.Wrong, sum.FirstErr)
		}
		r.Table = append(r.Table,
			fmt.Sprintf("| %.0f | %.1f | %.1f | %.0f | %d of %d | %d | %d | %.0f, %.0f ms | %.1f, %.1f ms | %.1f, %.1f, %.1f ms | %.1f ms | %s |",
				sum.Offered, sum.Served, sum.Good, sum.Tokens, sum.Refused, sum.Requests, sum.Unsaid, sum.Failed, sum.TTFT.P50,
				sum.TTFT.P99,
				sum.TPOT.P50, sum.TPOT.P99, sum.Refusals.P50, sum.Refusals.P99, sum.Refusals.Max, sum.Late.P99, shares[i]))
		last = sum
		if sum.Unsaid > 0 {
			err = errors.Join(err, fmt.Errorf("found %d refusals without Retry-After, expected none", sum.Unsaid))
		}
	}
	ratios := ofBest(loads, s.bounds)
	ratio := ratios[len(ratios)/2]
	r.Notes = append(r.Notes,
		fmt.Sprintf("goodput at %g times the capacity: %.1f%% of the best, the median of rounds with %.1f to %.1f%%; refusals: p99 %.1f ms",
			multiples[len(multiples)-1], 100*ratio, 100*ratios[0], 100*ratios[len(ratios)-1], last.Refusals.P99))
	r.Seconds = time.Since(begin).Seconds()
	var broken error
	if ratio < leastGoodput {
		broken = fmt.Errorf("goodput falls to %.1f%% of the best, expected at least %.0f%%", 100*ratio, 100*leastGoodput)
	}
	if last.Refused == 0 {
		err = errors.Join(err, fmt.Errorf("found no refusal at %g times the capacity, expected some", multiples[len(multiples)-1]))
	}
	if last.Refusals.P99 >= mostRefusal {
		broken = errors.Join(broken, fmt.Errorf("refusals take up to %.1f ms (p99), expected less than %d ms", last.Refusals.P99,
			mostRefusal))
	}
	return r, errors.Join(err, r.judge(broken, shares))
}

// ofBest returns the goodput of the last load as a share of the best load's, in ascending order. It compares
// within each round, since the speed of the machine varies between rounds.
func ofBest(loads [][][]load.Outcome, bounds load.Bounds) []float64 {
	ratios := make([]float64, loadRounds)
	for round := range ratios {
		best, last := 0.0, 0.0
		for i := range loads {
			last = load.Summarize(loads[i][round:round+1], steady, bounds).Good
			best = max(best, last)
		}
		if best > 0 { // 0: no good answer
			ratios[round] = last / best
		}
	}
	slices.Sort(ratios)
	return ratios
}

// judge returns the error of a broken limit on timing. While other programs used the machine, it makes
// a note of it instead.
func (s *report) judge(broken error, all []shares) error {
	if broken == nil {
		return nil
	}
	for _, used := range all {
		if used.others > quiet*used.cores() {
			s.Notes = append(s.Notes, "not judged, since other programs used the processors: "+broken.Error())
			return nil
		}
	}
	return broken
}
