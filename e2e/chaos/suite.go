package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"time"

	"github.com/millrace/millrace/client"
	"github.com/millrace/millrace/e2e/chaos/cluster"
	"github.com/millrace/millrace/e2e/chaos/load"
	"github.com/millrace/millrace/e2e/chaos/workload"
	"github.com/millrace/millrace/e2e/wait"
)

// suite holds the settings and the state that the scenarios share.
type suite struct {
	out        io.Writer
	dir        string // folder of logs and data, one for each scenario
	builds     string // folder of programs
	programs   cluster.Programs
	previous   string // commit to update from
	model      string
	accounts   string        // nats-server configuration; "": NATS accepts everybody
	resume     time.Duration // in a mixed pool: how long a request waits for an equal worker
	args       []string      // for every Millrace process
	nice       int           // of compute processes
	seed       uint64
	streams    int      // number of different streams
	kinds      []string // of streams
	tokens     int      // mean tokens per stream
	concurrent int      // concurrent streams
	kills      int
	victims    []string // roles
	soak       time.Duration
	bounds     load.Bounds
	split      bool

	lines          int // of a batch
	tenantRequests int // requests of the measured tenant

	oracles map[string]*workload.Oracle // by the pool's name; made at first use
	runs    int                         // of oracles
}

func (s *suite) workload(p pool) []*workload.Stream {
	kinds := p.kinds
	if len(kinds) == 0 {
		kinds = s.kinds
	}
	return workload.Streams(s.streams, s.tokens, s.seed, callers, kinds...)
}

const (
	// startPatience bounds the start of a cluster or a process, on a slow machine.
	startPatience = 2 * time.Minute
	// streamPatience bounds one stream. A later answer counts as lost.
	streamPatience = 3 * time.Minute
)

// trial is a scenario that runs.
type trial struct {
	*suite
	*cluster.Cluster

	random  *rand.Rand
	run     *workload.Run
	watch   *watch
	keys    map[string]string // by tenant
	spy     *spy
	pools   []pool // pools whose answers are accepted
	oracles []*workload.Oracle
	all     []workload.Result // results of the phases, if the scenario has phases
	wrong   []string          // promises that a phase broke
	notes   []string          // of the scenario, for its report

	mu      sync.Mutex
	clients []workload.Clients // the last ones are for new streams
	faults  []fault
}

// fault is a fault that the suite caused.
type fault struct {
	kind string // such as "kill compute"
	role string
	at   time.Time
}

// struck records a fault that begins now.
func (t *trial) struck(kind, role, name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.faults = append(t.faults, fault{kind + " " + role, role, time.Now()})
	fmt.Fprintf(t.out, "  %s %s: %s\n", kind, role, name)
}

// client returns the clients for a stream that begins now.
func (t *trial) client(s *workload.Stream) client.Client {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.clients[len(t.clients)-1].Of(s.Way, s.ID/2)
}

// use makes clients that know some gateways. Streams that begin from now on use them.
func (t *trial) use(gateways []string) error {
	clients, err := dial(t.Cluster, gateways, t.keys)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.clients = append(t.clients, clients)
	return err
}

// config returns the configuration of a cluster of two processes of each role. It never refuses a stream
// that waits, which would count as lost.
func (s *suite) config(name string) cluster.Config {
	return cluster.Config{
		Dir: filepath.Join(s.dir, name), Programs: s.programs, Model: s.model, Accounts: s.accounts,
		Members: cluster.Each(2), NATSServers: 1, Args: append([]string{"--max-queue-wait=0"}, s.args...), Nice: s.nice,
	}
}

// open starts a cluster with clients, and computes the oracles of the pools in it. The caller calls
// close even after an error.
func (s *suite) open(ctx context.Context, name string, c cluster.Config, pools ...pool) (*trial, func() error, error) {
	stop := func() error { return nil }
	if len(pools) == 0 {
		pools = []pool{poolA}
	}
	t := &trial{suite: s, random: rand.New(rand.NewPCG(s.seed, uint64(len(name)))), pools: pools}
	for _, p := range pools {
		o, err := s.oracle(ctx, p)
		if err != nil {
			return nil, stop, err
		}
		t.oracles = append(t.oracles, o)
	}
	keys, args, err := makeKeys(c.Dir, callers)
	if err != nil {
		return nil, stop, err
	}
	t.keys, c.Args = keys, append(args, c.Args...)
	started, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	t.Cluster, err = cluster.Start(started, c)
	stop = func() error {
		for _, c := range t.clients {
			c.Close()
		}
		return t.Close()
	}
	if err != nil {
		return nil, stop, err
	}
	t.watch = newWatch(t.Cluster)
	t.spy = &spy{gateways: t.Gateways, keys: keys}
	t.run = &workload.Run{Clients: t.client, Streams: s.workload(pools[0]), Concurrent: s.concurrent, Patience: streamPatience}
	t.run.Begun = func(stream *workload.Stream, id string) { t.spy.begun(ctx, stream, id) }
	return t, stop, t.use(t.Gateways())
}

// disturbed runs the streams at a cluster while harm is done to it, and judges
// the answers. harm returns when the last fault is over. Without pools, the cluster is of poolA.
func (s *suite) disturbed(ctx context.Context, name string, c cluster.Config, harm func(context.Context, *trial) error,
	pools ...pool) (_ *report, err error) {
	begin := time.Now()
	t, stop, err := s.open(ctx, name, c, pools...)
	defer func() { err = errors.Join(err, stop()) }()
	if err != nil {
		return nil, err
	}
	results, harmed := t.harmed(ctx, harm)
	r, err := t.report(ctx, name, results)
	r.Seconds = time.Since(begin).Seconds()
	return r, errors.Join(harmed, err, t.whole(ctx))
}

// harmed runs the streams until harm is over and every stream has ended.
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
	t.spy.tries.Wait()
	return results, err
}

// whole returns an error unless every process runs and is ready, none ended by itself, and no request
// is left.
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
			if pauseErr := wait.For(ctx, 100*time.Millisecond); pauseErr != nil {
				return fmt.Errorf("%s still has %g requests after the last stream ended: %w", m.Name, running, errors.Join(pauseErr, err))
			}
		}
	}
	return nil
}

// between returns a random duration of a range.
func (t *trial) between(least, most time.Duration) time.Duration {
	return least + time.Duration(t.random.Int64N(int64(most-least)))
}
