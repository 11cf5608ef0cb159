package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/millrace/millrace/client"
	"github.com/millrace/millrace/e2e/chaos/cluster"
	"github.com/millrace/millrace/e2e/chaos/load"
	"github.com/millrace/millrace/e2e/chaos/workload"
)

// suite is what the scenarios share.
type suite struct {
	out        io.Writer
	dir        string // logs and data, a folder for each scenario
	programs   cluster.Programs
	model      string
	args       []string // for every Millrace process
	seed       uint64
	streams    int // different streams
	tokens     int // per stream, about
	concurrent int // streams at a time
	kills      int
	victims    []string // roles
	soak       time.Duration
	bounds     load.Bounds
	split      bool

	tenantRequests int // of the tenant that is watched

	expected map[int]*workload.Answer // of an undisturbed run; made by the first scenario
}

const (
	// startPatience bounds the start of a cluster or a process, on a slow machine.
	startPatience = 2 * time.Minute
	// streamPatience bounds one stream; an answer that is later counts as lost.
	streamPatience = 3 * time.Minute
)

// trial is one scenario at work.
type trial struct {
	*suite
	*cluster.Cluster

	random *rand.Rand
	run    *workload.Run
	watch  *watch

	mu     sync.Mutex
	faults []fault
}

// fault is something that was done to the cluster.
type fault struct {
	kind string // "kill compute"
	at   time.Time
}

// struck records a fault that begins now.
func (t *trial) struck(kind, name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.faults = append(t.faults, fault{kind, time.Now()})
	fmt.Fprintf(t.out, "  %s: %s\n", kind, name)
}

// config is a cluster of two processes of each role. However long a stream waits, it is not
// refused: it would count as lost.
func (s *suite) config(name string) cluster.Config {
	return cluster.Config{
		Dir: filepath.Join(s.dir, name), Programs: s.programs, Model: s.model,
		Members: cluster.Each(2), NATSServers: 1, Args: append([]string{"--max-queue-wait=0"}, s.args...),
	}
}

// open starts a cluster with clients. The suite's first one answers every stream
// undisturbed: those are the answers that all scenarios expect. close is due even
// after an error.
func (s *suite) open(ctx context.Context, name string, c cluster.Config) (t *trial, stop func() error, err error) {
	started, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	cl, err := cluster.Start(started, c)
	if err != nil {
		return nil, cl.Close, err
	}
	clients, err := dial(cl)
	if err != nil {
		return nil, cl.Close, err
	}
	t = &trial{suite: s, Cluster: cl, random: rand.New(rand.NewPCG(s.seed, uint64(len(name)))), watch: newWatch(cl)}
	t.run = &workload.Run{Clients: clients, Streams: workload.Streams(s.streams, s.tokens, s.seed),
		Concurrent: s.concurrent, Patience: streamPatience}
	if s.expected == nil {
		begin := time.Now()
		s.expected, err = workload.Expected(t.run.Ask(ctx, nil))
		fmt.Fprintf(s.out, "  %d streams undisturbed: %.1f s\n", s.streams, time.Since(begin).Seconds())
	}
	return t, func() error { clients.Close(); return cl.Close() }, err
}

// disturbed asks the streams of a cluster while harm is done to it, and judges
// the answers. harm returns when the last fault is over.
func (s *suite) disturbed(ctx context.Context, name string, c cluster.Config, harm func(context.Context, *trial) error) (_ *report, err error) {
	begin := time.Now()
	t, stop, err := s.open(ctx, name, c)
	defer func() { err = errors.Join(err, stop()) }()
	if err != nil {
		return nil, err
	}
	results, harmed := t.harmed(ctx, harm)
	r := t.report(name, results)
	r.Seconds = time.Since(begin).Seconds()
	return r, errors.Join(harmed, t.whole(ctx))
}

// harmed asks the streams until harm is over and every stream has ended.
func (t *trial) harmed(ctx context.Context, harm func(context.Context, *trial) error) ([]workload.Result, error) {
	var (
		side sync.WaitGroup
		err  error
		over = make(chan struct{})
	)
	watching, stop := context.WithCancel(ctx)
	defer stop()
	side.Go(func() { t.watch.run(watching) })
	harming := make(chan struct{})
	go func() {
		defer close(harming)
		defer close(over)
		err = harm(ctx, t)
	}()
	results := t.run.Ask(ctx, over)
	<-harming
	t.watch.look(ctx)
	stop()
	side.Wait()
	return results, err
}

// whole: every process is there and ready, none ended by itself, and nothing is
// left running.
func (t *trial) whole(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	if err := t.EndedByItself(); err != nil {
		return err
	}
	for _, m := range t.Members("") {
		if err := m.WaitReady(ctx); err != nil {
			return err
		}
	}
	return t.idle(ctx)
}

// idle waits until no process has a request.
func (t *trial) idle(ctx context.Context) error {
	for _, m := range t.Members("") {
		for running := -1.0; running != 0; {
			metrics, err := m.Metrics(ctx)
			if err == nil {
				running = metrics["millrace_num_requests_running"] + metrics["millrace_num_requests_waiting"]
			}
			if running == 0 {
				break
			}
			if pauseErr := pause(ctx, 100*time.Millisecond); pauseErr != nil {
				return fmt.Errorf("%s still has %g requests after the last stream ended: %w", m.Name, running, errors.Join(pauseErr, err))
			}
		}
	}
	return nil
}

// dial makes the clients, as a user would: each knows every gateway, and starts
// with another one.
func dial(cl *cluster.Cluster) (workload.Clients, error) {
	clients := workload.Clients{}
	gateways := cl.Gateways()
	for i, first := range gateways {
		others := slices.Concat(gateways[i+1:], gateways[:i])
		overHTTP, err := client.NewHTTP(first, client.WithServers(others...))
		if err != nil {
			return nil, err
		}
		clients["http"] = append(clients["http"], overHTTP)
	}
	overNATS, err := client.DialNATS(cl.NATSURL())
	if err != nil {
		return nil, err
	}
	clients["nats"] = []client.Client{overNATS}
	return clients, nil
}

// pause waits for d.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// between draws a time from a range.
func (t *trial) between(least, most time.Duration) time.Duration {
	return least + time.Duration(t.random.Int64N(int64(most-least)))
}
