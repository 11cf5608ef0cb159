package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/millrace/millrace/client"
	"github.com/millrace/millrace/e2e/chaos/cluster"
	"github.com/millrace/millrace/e2e/chaos/load"
	"github.com/millrace/millrace/e2e/chaos/workload"
)

// The load of the scenario divided: streams that run, one after the other, while long prompts arrive at random times.
const (
	dividedStreams = 8
	dividedTokens  = 400 // of each stream
	dividedPrompt  = 1500
	dividedRate    = 2 // long prompts per second
	dividedTime    = 8 * time.Second
	dividedRounds  = 3
)

// division is two workers, and the latencies with them in each round.
type division struct {
	name   string
	groups []cluster.Group
	gaps   []workload.Gaps // between two chunks of a running stream
	ttft   []workload.Gaps // of the long prompts
	moved  float64         // tokens that were handed over, in all rounds
}

// divided measures the gaps of running streams while long prompts arrive, with two compute workers and with a prefill and a
// decode worker, in turn.
func divided(ctx context.Context, s *suite) (*report, error) {
	begin := time.Now()
	divisions := []*division{
		{name: "two compute workers", groups: []cluster.Group{{Role: cluster.RoleCompute, Count: 2}}},
		{name: "a prefill and a decode worker", groups: []cluster.Group{{Role: cluster.RolePrefill, Count: 1},
			{Role: cluster.RoleDecode, Count: 1}}},
	}
	r := &report{Scenario: "divided", Faults: map[string]int{}, Least: least{Streams: 2 * dividedRounds * dividedStreams}}
	for round := range dividedRounds {
		for i, d := range divisions {
			n, err := s.round(ctx, d, fmt.Sprintf("divided-%d-%d", i+1, round+1), uint64(round))
			if err != nil {
				return r, fmt.Errorf("%s: %w", d.name, err)
			}
			r.Streams += n
			r.Completed += n
		}
	}
	r.Table = []string{"| workers | gap p50, p99, longest | TTFT of long prompts p50, p99 | tokens handed over |", "|---|---|---|---|"}
	for _, d := range divisions {
		gap, ttft := median(d.gaps), median(d.ttft)
		r.Table = append(r.Table, fmt.Sprintf("| %s | %.1f, %.1f, %.1f ms | %.0f, %.0f ms | %.0f |", d.name, gap.P50, gap.P99, gap.Max,
			ttft.P50, ttft.P99, d.moved))
	}
	for _, line := range r.Table {
		fmt.Fprintf(s.out, "  %s\n", line)
	}
	r.Seconds = time.Since(begin).Seconds()
	if divisions[1].moved == 0 {
		return r, errors.New("no sequence went from the prefill to the decode worker")
	}
	return r, nil
}

func spread(all []time.Duration) workload.Gaps {
	p50, p99, longest := workload.Quantiles(all)
	return workload.Gaps{Count: len(all), P50: p50, P99: p99, Max: longest}
}

// median returns the medians of rounds, of each figure.
func median(rounds []workload.Gaps) (m workload.Gaps) {
	of := func(figure func(workload.Gaps) float64) float64 {
		var all []float64
		for _, g := range rounds {
			all = append(all, figure(g))
		}
		slices.Sort(all)
		return all[len(all)/2]
	}
	m.P50 = of(func(g workload.Gaps) float64 { return g.P50 })
	m.P99 = of(func(g workload.Gaps) float64 { return g.P99 })
	m.Max = of(func(g workload.Gaps) float64 { return g.Max })
	return m
}

// round measures a division once, and returns the number of answers.
func (s *suite) round(ctx context.Context, d *division, name string, seed uint64) (answers int, err error) {
	c := s.config(name)
	c.Accounts = "" // it has no user for these roles
	c.Members = map[string]int{cluster.RoleGateway: 1, cluster.RoleTokenize: 1, cluster.RoleDetok: 1}
	c.Groups = d.groups
	started, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	cl, err := cluster.Start(started, c)
	defer func() { err = errors.Join(err, cl.Close()) }()
	if err != nil {
		return 0, err
	}
	api, err := client.NewHTTP(cl.Gateways()[0], client.WithHTTPResume(0))
	if err != nil {
		return 0, err
	}
	defer api.Close()
	l := dividedLoad{api: api}
	l.stream(ctx, time.Now()) // warm
	l.gaps = nil
	var all sync.WaitGroup
	until := time.Now().Add(dividedTime)
	for range dividedStreams {
		all.Go(func() {
			for time.Now().Before(until) && ctx.Err() == nil {
				l.stream(ctx, until)
			}
		})
	}
	from := time.Now()
	for _, due := range load.Arrivals(dividedRate, dividedTime, s.seed+seed) {
		select {
		case <-time.After(time.Until(from.Add(due))):
		case <-ctx.Done():
		}
		all.Go(func() { l.prompt(ctx, due) })
	}
	all.Wait()
	for _, m := range cl.Members(cluster.RoleDecode) {
		metrics, err := m.Metrics(ctx)
		if err != nil {
			return 0, err
		}
		d.moved += metrics["millrace_handover_tokens_total"]
	}
	d.gaps, d.ttft = append(d.gaps, spread(l.gaps)), append(d.ttft, spread(l.ttft))
	return l.answers, errors.Join(l.failed...)
}

// dividedLoad is what clients saw.
type dividedLoad struct {
	api client.Client

	mu         sync.Mutex
	gaps, ttft []time.Duration
	answers    int
	failed     []error
}

// stream runs a stream with a short prompt and notes its gaps that begin before a moment.
func (l *dividedLoad) stream(ctx context.Context, until time.Time) {
	var gaps []time.Duration
	var last time.Time
	err := l.ask(ctx, "Once upon a time there was a", dividedTokens, func(now time.Time) {
		if !last.IsZero() && last.Before(until) {
			gaps = append(gaps, now.Sub(last))
		}
		last = now
	})
	l.note(err, func() { l.gaps = append(l.gaps, gaps...) })
}

// prompt sends a long prompt, different from all others, and notes the time to its first token.
func (l *dividedLoad) prompt(ctx context.Context, due time.Duration) {
	begin, first := time.Now(), time.Time{}
	err := l.ask(ctx, due.String()+strings.Repeat(" the", dividedPrompt), 2, func(now time.Time) {
		if first.IsZero() {
			first = now
		}
	})
	l.note(err, func() { l.ttft = append(l.ttft, first.Sub(begin)) })
}

func (l *dividedLoad) ask(ctx context.Context, prompt string, tokens int, chunk func(now time.Time)) error {
	greedy := 0.0
	r := client.CompletionRequest{Prompt: prompt, MaxTokens: tokens, Sampling: client.Sampling{Temperature: &greedy, IgnoreEOS: true}}
	for c, err := range l.api.CompleteStream(ctx, r) {
		if err != nil {
			return err
		}
		if len(c.Choices) > 0 && c.Choices[0].Content() != "" {
			chunk(time.Now())
		}
	}
	return nil
}

func (l *dividedLoad) note(err error, answered func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		l.failed = append(l.failed, err)
		return
	}
	l.answers++
	answered()
}
