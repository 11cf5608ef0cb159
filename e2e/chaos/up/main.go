// Command up runs the topology of docker-compose.yml as processes on the loopback
// interface: a NATS server and two Millrace processes of each role. It restarts a
// process that ends, so that one can kill some and watch. Ctrl-C ends all. It must not know what a
// process does.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/pflag"

	"github.com/millrace/millrace/e2e/chaos/cluster"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "up:", err)
		os.Exit(1)
	}
}

// endPatience is the longest wait for the end of all processes after Ctrl-C.
const endPatience = 45 * time.Second

func run(ctx context.Context, args []string, out io.Writer) (err error) {
	var (
		c    cluster.Config
		dir  string
		each int
	)
	f := pflag.NewFlagSet("up", pflag.ContinueOnError)
	f.StringVar(&c.Model, "model", "models/tiny-chat", "directory of the model")
	f.StringVar(&dir, "dir", "build/cluster", "directory for binaries, logs and data")
	f.IntVar(&each, "each", 2, "processes of each role")
	f.IntVar(&c.NATSServers, "nats-servers", 1, "NATS servers; 3 are a cluster")
	f.StringVar(&c.NATSListen, "nats-listen", "127.0.0.1:4222", "address of the first NATS server")
	f.StringSliceVar(&c.Listen, "listen", []string{"127.0.0.1:8080", "127.0.0.1:8081"}, "HTTP addresses of the gateways")
	f.StringArrayVar(&c.Args, "serve", []string{"--kv-memory=256MiB"}, "a flag for every millrace process (repeat)")
	if err := f.Parse(args); errors.Is(err, pflag.ErrHelp) {
		return nil
	} else if err != nil {
		return err
	}
	c.Members = cluster.Each(each)
	if c.Dir, err = filepath.Abs(dir); err != nil {
		return err
	}
	if c.Programs, err = cluster.Build(ctx, c.Dir); err != nil {
		return err
	}
	cl, err := cluster.Start(ctx, c)
	defer func() { err = errors.Join(err, cl.Close()) }()
	if err != nil {
		return err
	}
	show(out, cl, c.Dir)
	supervise(ctx, out, cl)
	fmt.Fprintln(out, "ending")
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), endPatience)
	defer cancel()
	return cl.Terminate(ending)
}

func show(out io.Writer, cl *cluster.Cluster, dir string) {
	for _, m := range cl.Members("") {
		fmt.Fprintf(out, "%-12s pid %-7d %s\n", m.Name, m.PID(), m.URL)
	}
	for _, p := range cl.NATS() {
		fmt.Fprintf(out, "%-12s pid %d\n", p.Name, p.PID())
	}
	fmt.Fprintf(out, "\nchat page  %s/\nHTTP       %s\nNATS       %s\nlogs       %s\nCtrl-C ends all\n",
		cl.Gateways()[0], strings.Join(cl.Gateways(), " "), cl.NATSURL(), dir)
}

// supervise restarts processes that end, until ctx ends.
func supervise(ctx context.Context, out io.Writer, cl *cluster.Cluster) {
	var all sync.WaitGroup
	for _, p := range cl.Processes() {
		all.Go(func() {
			for {
				select {
				case <-ctx.Done():
					return
				case <-p.Ended():
				}
				if ctx.Err() != nil {
					return
				}
				if err := p.Start(); err != nil {
					fmt.Fprintf(out, "%s ended and does not start again: %v\n", p.Name, err)
					return
				}
				fmt.Fprintf(out, "%s ended and was started again: pid %d\n", p.Name, p.PID())
				select { // a pause for a process that cannot run
				case <-ctx.Done():
				case <-time.After(time.Second):
				}
			}
		})
	}
	all.Wait()
}
