package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/millrace/millrace/client"
	"github.com/millrace/millrace/e2e/chaos/cluster"
	"github.com/millrace/millrace/e2e/chaos/workload"
)

// pool is a set of processes that give the same answers: one program, model and set of flags.
type pool struct {
	name    string
	program string   // "": the suite's
	model   string   // "": the suite's
	args    []string // added to the suite's
	kinds   []string // kinds of its streams; none: all
}

// poolA is the pool of the suite's program and model.
var poolA = pool{name: "A"}

// Flags of a process that computes one sequence at a time, without a batch and without draft tokens. A
// beam search is a batch by itself.
func lone(beams int) []string {
	return []string{"--draft-rows=0", "--tokenizers=1", "--detokenizers=1", fmt.Sprintf("--max-batch-size=%d", max(beams, 1))}
}

// mostReplays bounds the streams without a seed that run again after a scenario.
const mostReplays = 24

// oracle returns the answers of a pool without faults. A process of its own computes them, one request
// at a time: the answers of a cluster, whose batches and failovers are never the same, are compared
// with those of single sequences.
func (s *suite) oracle(ctx context.Context, p pool) (*workload.Oracle, error) {
	if o := s.oracles[p.name]; o != nil {
		return o, nil
	}
	begin := time.Now()
	streams := s.workload(p)
	results, err := s.undisturbed(ctx, p, func(beams int) []workload.Result {
		var some []workload.Result
		for _, stream := range streams {
			if stream.Beams() == beams {
				some = append(some, workload.First(stream))
			}
		}
		return some
	})
	if err != nil {
		return nil, err
	}
	o, err := workload.Expect(p.name, results)
	if err != nil {
		return nil, err
	}
	s.oracles[p.name] = o
	fmt.Fprintf(s.out, "  %d streams undisturbed, one at a time, of %s: %.1f s\n", len(o.Answers), p.name, time.Since(begin).Seconds())
	return o, nil
}

// replay runs streams without a seed again, the same ones at every pool, under their old ids: the
// seed follows from the id. Earlier scenarios may have run some of them at some pools.
func (s *suite) replay(ctx context.Context, pools []pool, results []workload.Result) error {
	lacks := func(p pool, r *workload.Result) bool { return s.oracles[p.name].Replayed[r.RequestID] == nil }
	var chosen []workload.Result
	for _, r := range results {
		if r.Unseeded() && len(chosen) < mostReplays && slices.ContainsFunc(pools, func(p pool) bool { return lacks(p, &r) }) {
			chosen = append(chosen, r)
		}
	}
	for _, p := range pools {
		var again []workload.Result
		for _, r := range chosen {
			if lacks(p, &r) {
				again = append(again, r)
			}
		}
		if len(again) == 0 {
			continue
		}
		answers, err := s.undisturbed(ctx, p, func(beams int) []workload.Result {
			if beams == 0 {
				return again
			}
			return nil
		})
		if err != nil {
			return err
		}
		for _, r := range answers {
			if r.Answer.Err != nil {
				return fmt.Errorf("replay by %s: %s: %w", p.name, r.Stream, r.Answer.Err)
			}
			s.oracles[p.name].Replayed[r.RequestID] = r.Answer
		}
	}
	return nil
}

// undisturbed runs streams at a process of its own, one at a time. ask returns the streams that need
// the given number of sequences at once; 0: one.
func (s *suite) undisturbed(ctx context.Context, p pool, ask func(beams int) []workload.Result) (all []workload.Result, err error) {
	for _, beams := range []int{0, workload.Beams} {
		streams := ask(beams)
		if len(streams) == 0 {
			continue
		}
		results, err := s.alone(ctx, p, lone(beams), streams)
		if err != nil {
			return nil, fmt.Errorf("undisturbed run of %s: %w", p.name, err)
		}
		all = append(all, results...)
	}
	return all, nil
}

func (s *suite) alone(ctx context.Context, p pool, args []string, streams []workload.Result) (_ []workload.Result, err error) {
	s.runs++
	c := cluster.Config{
		Dir: filepath.Join(s.dir, fmt.Sprintf("oracle-%s-%d", strings.ReplaceAll(p.name, " ", "-"), s.runs)), Programs: s.programs,
		Model: cmp.Or(p.model, s.model), Groups: []cluster.Group{{Role: cluster.RoleServer, Count: 1, Program: p.program}}, NATSServers: 1,
		Args: slices.Concat(s.args, p.args, args),
	}
	started, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	cl, err := cluster.Start(started, c)
	defer func() { err = errors.Join(err, cl.Close()) }()
	if err != nil {
		return nil, err
	}
	api, err := client.NewHTTP(cl.Gateways()[0])
	if err != nil {
		return nil, err
	}
	defer api.Close()
	run := &workload.Run{Clients: func(*workload.Stream) client.Client { return api }, Patience: streamPatience}
	return run.Again(ctx, streams), nil
}
