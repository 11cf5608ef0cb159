// Command chaos is the fault suite. It runs many streams through a cluster of Millrace
// processes on the loopback interface, and kills, suspends and partitions processes.
// Every answer must be that of an undisturbed run, token by token. The exit code is
// 0 if all are, and 1 otherwise. It must not know the actors: it sees processes, networks and answers.
//
//	go run ./e2e/chaos                                # everything, up to 40 minutes
//	go run ./e2e/chaos --scenario kills --seed 7      # one scenario, as in an earlier run
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/pflag"

	"github.com/millrace/millrace/e2e/chaos/cluster"
	"github.com/millrace/millrace/e2e/chaos/workload"
)

// scenario causes one kind of fault.
type scenario struct {
	name string
	run  func(context.Context, *suite) (*report, error)
}

var scenarios = slices.Concat([]scenario{
	{"kills", killEach},
	{"guided", killGuided},
	{"stalls", stalls},
	{"cuts", cuts},
	{"nats", natsRestarts},
	{"nats-cluster", natsCluster},
	{"nats-gateway", natsGateway},
	{"rolling", rolling},
	{"handover", handover},
	{"disks", disks},
	{"batch", batch},
	{"rolling-checkpoint", rollingCheckpoint},
	{"rolling-binary", rollingBinary},
	{"scaling", scaling},
	{"soak", soak},
	{"gaps", gapFigures},
	{"divided", divided},
	{"overload", overload},
	{"tenants", tenants},
}, mixedScenarios())

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "chaos:", err)
		os.Exit(1)
	}
}

type options struct {
	suite

	scenarios []string
	results   string
	limit     time.Duration
}

func parse(args []string, out io.Writer) (*options, error) {
	var names, usual []string
	for _, s := range scenarios {
		names = append(names, s.name)
		if s.name != "gaps" && s.name != "divided" { // they take long and only measure
			usual = append(usual, s.name)
		}
	}
	o := &options{suite: suite{out: out, oracles: map[string]*workload.Oracle{}}}
	f := pflag.NewFlagSet("chaos", pflag.ContinueOnError)
	f.StringSliceVar(&o.scenarios, "scenario", usual,
		"what to run; gaps measures gaps at kills, three times with 64 and with 200 streams; divided measures gaps while long prompts arrive")
	f.Uint64Var(&o.seed, "seed", rand.Uint64()>>32, "of every draw: streams, moments, victims")
	f.IntVar(&o.streams, "streams", 200, "different streams")
	f.StringSliceVar(&o.kinds, "kinds", workload.Kinds(), "kinds of streams; a model whose layers keep a state has no beams")
	f.IntVar(&o.tokens, "tokens", 120, "tokens per stream, about")
	f.IntVar(&o.concurrent, "concurrent", 64, "streams at a time")
	f.IntVar(&o.kills, "kills", 20, "kills of the scenario kills")
	f.StringSliceVar(&o.victims, "victims", cluster.Roles, "roles that are harmed, in turn")
	f.DurationVar(&o.soak, "soak", 2*time.Minute, "length of the scenario soak")
	f.DurationVar(&o.resume, "mixed-timeout", 8*time.Second,
		"of mixed pools: --failover-timeout, longer than a killed process takes to come back")
	f.DurationVar(&o.bounds.TTFT, "ttft", 2*time.Second, "of overload: a good answer's first token comes within this time")
	f.DurationVar(&o.bounds.TPOT, "tpot", 100*time.Millisecond, "of overload: and the further ones within this time each, in the mean")
	f.BoolVar(&o.split, "split", false, "overload and tenants: a cluster of two processes of each role, instead of one process with all")
	f.IntVar(&o.lines, "lines", 2000, "lines of the scenario batch, of 16 tokens each")
	f.IntVar(&o.tenantRequests, "tenant-requests", 250, "of tenants: requests of the watched tenant beside each load, about")
	f.DurationVar(&o.limit, "limit", 50*time.Minute, "for everything; what has not ended then fails")
	f.StringVar(&o.previous, "previous", "c87a60bd", "commit whose program rolling-binary updates from")
	f.StringVar(&o.accounts, "accounts", "deploy/nats/millrace.conf",
		"nats-server configuration with a user for each role (none: NATS trusts everybody)")
	f.StringVar(&o.model, "model", "models/tiny-chat", "directory of the model")
	f.StringArrayVar(&o.args, "serve", []string{"--kv-memory=128MiB", "--threads=1"}, "a flag for every millrace process (repeat)")
	f.IntVar(&o.nice, "nice", 0, "added to the nice value of compute processes: other roles of the host get a core first")
	f.StringVar(&o.results, "results", "", "directory for the result as JSON and Markdown (none: not written)")
	f.StringVar(&o.dir, "dir", "build/chaos", "directory for binaries, logs and data")
	if err := f.Parse(args); err != nil {
		return nil, err
	}
	for _, name := range o.scenarios {
		if !slices.Contains(names, name) {
			return nil, fmt.Errorf("--scenario: found %q, expected %s", name, strings.Join(names, ", "))
		}
	}
	for _, kind := range o.kinds {
		if all := workload.Kinds(); !slices.Contains(all, kind) {
			return nil, fmt.Errorf("--kinds: found %q, expected %s", kind, strings.Join(all, ", "))
		}
	}
	return o, nil
}

func run(ctx context.Context, args []string, out io.Writer) error {
	o, err := parse(args, out)
	if errors.Is(err, pflag.ErrHelp) {
		return nil
	}
	if err != nil {
		return err
	}
	begin := time.Now()
	ctx, cancel := context.WithTimeoutCause(ctx, o.limit, fmt.Errorf("--limit %s is over", o.limit))
	defer cancel()
	if o.dir, err = filepath.Abs(o.dir); err != nil {
		return err
	}
	if o.programs, err = cluster.Build(ctx, o.dir); err != nil {
		return err
	}
	o.builds = o.dir
	o.dir = filepath.Join(o.dir, begin.Format("150405"))
	fmt.Fprintf(out, "seed %d, logs in %s\n", o.seed, o.dir)
	if o.results != "" {
		if err := os.MkdirAll(o.results, 0o755); err != nil { // an error comes now, not after ten minutes
			return err
		}
	}
	all := &results{Time: begin.UTC().Format("2006-01-02T1504"), Machine: cluster.Machine(), Commit: cluster.Commit(ctx), Seed: o.seed,
		Arguments: args}
	for _, s := range scenarios {
		if !slices.Contains(o.scenarios, s.name) {
			continue
		}
		all.Scenarios = append(all.Scenarios, o.one(ctx, s))
		if o.results == "" {
			continue
		}
		if err := all.write(o.results, all.Time+"-chaos"); err != nil { // each time: a later scenario may fail badly
			return err
		}
	}
	if failed := all.failed(); len(failed) > 0 {
		return fmt.Errorf("seed %d: failed: %s", o.seed, strings.Join(failed, ", "))
	}
	return nil
}

// one runs a scenario and prints its report.
func (s *suite) one(ctx context.Context, sc scenario) *report {
	fmt.Fprintf(s.out, "%s\n", sc.name)
	r, err := sc.run(ctx, s)
	if r == nil {
		r = &report{Scenario: sc.name}
	}
	r.finish(ctx, err)
	r.print(s.out)
	return r
}

// finish sets the verdict. err is the error of the scenario.
func (s *report) finish(ctx context.Context, err error) {
	if err = errors.Join(err, s.missed()); err != nil {
		s.Error = errors.Join(err, context.Cause(ctx)).Error()
	}
	s.Pass = err == nil && s.Good()
}

func (r *results) failed() (names []string) {
	for _, s := range r.Scenarios {
		if !s.Pass {
			names = append(names, s.Scenario)
		}
	}
	return names
}
