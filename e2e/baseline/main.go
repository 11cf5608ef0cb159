// Command baseline compares a program with records of an earlier one: the answers of the fault suite's streams, the
// HTTP and NATS interfaces, the names of metrics, the flags, and the lists of tests. The exit code is 0 when every
// difference is an allowed one. It must not know why a fact is as it is. See testdata/baseline/README.md.
//
//	go run ./e2e/baseline                                              # compare
//	go run ./e2e/baseline --record --program OLD/bin/millrace --source OLD
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
	"syscall"
	"time"

	"github.com/spf13/pflag"
)

// record is one file of the baseline.
type record struct {
	name    string
	serves  bool // the program has to serve
	mayGrow bool // what is found in addition is no difference
	take    func(context.Context, *subject) (facts, error)
}

// records lists all of them, in the order in which they are taken. Metrics follow the streams, which make them.
var records = []record{
	{name: "help", take: help},
	{name: "numerics", take: numerics},
	{name: "streams", serves: true, take: streams},
	{name: "openapi", serves: true, take: openAPI},
	{name: "nats", serves: true, take: natsInfo},
	{name: "metrics", serves: true, take: metrics},
	{name: "go-tests", mayGrow: true, take: goTests},
	{name: "kernel-tests", mayGrow: true, take: kernelTests},
}

// subject is what is compared.
type subject struct {
	program string // millrace
	source  string // root of the source that it was built from
	model   string
	server  *server // nil while no record needs it
}

type options struct {
	subject

	record bool
	dir    string
	only   []string
	limit  time.Duration
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "baseline:", err)
		os.Exit(1)
	}
}

func parse(args []string) (*options, error) {
	var names []string
	for _, r := range records {
		names = append(names, r.name)
	}
	o := &options{}
	f := pflag.NewFlagSet("baseline", pflag.ContinueOnError)
	f.BoolVar(&o.record, "record", false, "write the records instead of comparing with them")
	f.StringVar(&o.program, "program", "bin/millrace", "the millrace program to start")
	f.StringVar(&o.source, "source", ".", "root of the source that the program was built from, with its kernel tests in build/kernels")
	f.StringVar(&o.model, "model", "models/tiny-chat", "directory of the model")
	f.StringVar(&o.dir, "dir", "testdata/baseline", "directory of the records")
	f.StringSliceVar(&o.only, "only", names, "the records to take")
	f.DurationVar(&o.limit, "limit", 5*time.Minute, "time for everything")
	if err := f.Parse(args); err != nil {
		return nil, err
	}
	for _, name := range o.only {
		if !slices.Contains(names, name) {
			return nil, fmt.Errorf("--only: found %q, expected some of %q", name, names)
		}
	}
	var err error
	o.program, err = filepath.Abs(o.program)
	return o, err
}

func run(ctx context.Context, args []string, out io.Writer) (err error) {
	o, err := parse(args)
	if errors.Is(err, pflag.ErrHelp) {
		return nil
	}
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, o.limit, fmt.Errorf("--limit %s is over", o.limit))
	defer cancel()
	b, err := open(o.dir)
	if err != nil {
		return err
	}
	defer func() {
		if o.server != nil {
			err = errors.Join(err, o.server.Close(ctx))
		}
	}()
	differences := 0
	for i := range records {
		r := &records[i]
		if !slices.Contains(o.only, r.name) {
			continue
		}
		if r.serves && o.server == nil {
			if o.server, err = start(ctx, o.program, o.model); err != nil {
				return err
			}
		}
		n, err := o.one(ctx, b, r, out)
		if err != nil {
			return fmt.Errorf("%s: %w", r.name, err)
		}
		differences += n
	}
	if differences > 0 {
		return fmt.Errorf("%d differences from %s; one that is meant to be stands in %s with its reason", differences, o.dir, allowedFile)
	}
	return nil
}

// one takes a record and writes it, or counts its differences from the written one.
func (o *options) one(ctx context.Context, b *baseline, r *record, out io.Writer) (differences int, err error) {
	begin := time.Now()
	found, err := r.take(ctx, &o.subject)
	if err != nil {
		return 0, err
	}
	if o.record {
		fmt.Fprintf(out, "%s: %d recorded\n", r.name, len(found))
		return 0, os.WriteFile(b.file(r.name), found.write(), 0o644)
	}
	wrong, err := b.compare(r, found)
	if err != nil {
		return 0, err
	}
	for _, one := range wrong {
		fmt.Fprintf(out, "%s: %s\n", r.name, one)
	}
	fmt.Fprintf(out, "%s: %d compared, %d allowed patterns, %d differences, %.1f s\n",
		r.name, len(found), len(b.allowed[r.name]), len(wrong), time.Since(begin).Seconds())
	return len(wrong), nil
}
