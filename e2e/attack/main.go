// Command attack starts servers on the loopback interface and attacks them over HTTP and NATS, with and without
// keys, and by hostile model files. Each attack must be refused or bounded, and normal requests must succeed
// during it. Some time after the last attack, the servers must be as fast and as small as servers that got
// normal requests only. The exit code is 0 if all of it holds, and 1 otherwise. It must not know the actors: it
// sees processes, connections and answers.
//
//	go run ./e2e/attack                       # everything, about six minutes
//	go run ./e2e/attack --only slow           # the attacks whose name contains "slow"
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/pflag"

	"github.com/millrace/millrace/e2e/chaos/cluster"
	"github.com/millrace/millrace/e2e/wait"
)

// attack is one attack on a target.
type attack struct {
	name   string
	target string // name of the target, see targets
	// run attacks the target. It returns a line for the report, and an error if the attack was not stopped.
	run func(ctx context.Context, s *suite, t *target) (seen string, err error)
}

// attacks returns all attacks in the order in which they run.
func attacks() []attack {
	return slices.Concat(natsAttacks, httpAttacks, tenantAttacks, storageAttacks, shareAttacks, costAttacks, fileAttacks, startAttacks)
}

// suite holds the settings and the servers of a run.
type suite struct {
	out      io.Writer
	dir      string // folder of logs and data
	model    string
	programs cluster.Programs
	only     string
	slow     int           // number of slow connections
	settle   time.Duration // between the last attack and the comparison
	limit    time.Duration
	results  string

	targets  map[string]*target
	controls map[string]*target // control servers by the target's name: they get normal requests only
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "attack:", err)
		os.Exit(1)
	}
}

func parse(args []string, out io.Writer) (*suite, error) {
	s := &suite{out: out, targets: map[string]*target{}, controls: map[string]*target{}}
	f := pflag.NewFlagSet("attack", pflag.ContinueOnError)
	f.StringVar(&s.only, "only", "", "run the attacks whose name contains this text (default: all)")
	f.IntVar(&s.slow, "slow", 5000, "slow connections of each kind")
	f.DurationVar(&s.settle, "settle", time.Minute,
		"time between the last attack and the comparison with the control servers (0: no comparison)")
	f.DurationVar(&s.limit, "limit", 15*time.Minute, "time for everything; an attack that has not ended then fails")
	f.StringVar(&s.model, "model", "models/tiny-chat", "directory of the model")
	f.StringVar(&s.dir, "dir", "build/attack", "directory for binaries, logs and data")
	f.StringVar(&s.results, "results", "", "directory for the report as JSON and Markdown (default: not written)")
	return s, f.Parse(args)
}

func run(ctx context.Context, args []string, out io.Writer) error {
	s, err := parse(args, out)
	if errors.Is(err, pflag.ErrHelp) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := raiseFileLimit(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, s.limit, fmt.Errorf("--limit %s is over", s.limit))
	defer cancel()
	begin := time.Now()
	if s.dir, err = filepath.Abs(s.dir); err != nil {
		return err
	}
	if s.programs, err = cluster.Build(ctx, s.dir); err != nil {
		return err
	}
	s.dir = filepath.Join(s.dir, begin.Format("150405"))
	fmt.Fprintf(out, "logs in %s\n", s.dir)
	r := newReport(ctx, begin, args)
	defer s.close()
	if err := s.all(ctx, r); err != nil {
		return err
	}
	r.Seconds = time.Since(begin).Seconds()
	if err := r.write(s.results); err != nil {
		return err
	}
	if !r.Pass {
		return errors.New("FAIL: " + strings.Join(r.failed(), ", "))
	}
	fmt.Fprintln(out, "PASS")
	return nil
}

// all runs the attacks and then compares every target with its control server.
func (s *suite) all(ctx context.Context, r *report) error {
	for _, a := range attacks() {
		if !strings.Contains(a.name, s.only) {
			continue
		}
		one, err := s.one(ctx, a)
		if err != nil {
			return err
		}
		r.add(s.out, one)
	}
	if s.settle == 0 {
		r.judge()
		return nil
	}
	fmt.Fprintf(s.out, "%s pass\n", s.settle)
	if err := wait.For(ctx, s.settle); err != nil {
		return err
	}
	for name, t := range s.targets {
		c, err := compare(ctx, name, t, s.controls[name])
		if err != nil {
			return err
		}
		r.compared(s.out, c)
	}
	r.judge()
	return nil
}

// attackMost bounds an attack, so that a server that hangs does not hang the suite.
const attackMost = slowMost + 30*time.Second

// one runs an attack beside normal requests.
func (s *suite) one(ctx context.Context, a attack) (outcome, error) {
	t, err := s.target(ctx, a.target)
	if err != nil {
		return outcome{}, err
	}
	begin := time.Now()
	n := beside(ctx, t, s.controls[a.target])
	limited, cancel := context.WithTimeoutCause(ctx, attackMost, fmt.Errorf("the attack had not ended after %s", attackMost))
	defer cancel()
	seen, failed := a.run(limited, s, t)
	normal := n.end()
	if failed == nil {
		failed = t.ended()
	}
	o := outcome{Name: a.name, Target: a.target, Seen: seen, Normal: normal, Seconds: time.Since(begin).Seconds()}
	if err := errors.Join(failed, normal.verdict()); err != nil {
		o.Error = err.Error()
	}
	return o, ctx.Err()
}

func (s *suite) close() {
	for _, servers := range []map[string]*target{s.targets, s.controls} {
		for _, t := range servers {
			t.close()
		}
	}
}
