package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"text/tabwriter"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"
	"golang.org/x/term"

	"github.com/millrace/millrace/cluster"
)

// watchInterval is the time between two tables of nodes --watch.
const watchInterval = time.Second

// watchNodes shows the nodes at each interval until ctx ends.
func watchNodes(ctx context.Context, conn *nats.Conn, o *nodesOptions, v *view, log zerolog.Logger) error {
	w, err := cluster.Watch(ctx, conn, log)
	if err != nil {
		return o.failed(err)
	}
	defer w.Close()
	for next := time.Now().Add(max(watchInterval, o.heartbeat)); ; next = next.Add(watchInterval) {
		nodes, err := w.Until(ctx, func() time.Time { return next })
		if errors.Is(err, context.Canceled) {
			return nil
		}
		if err != nil {
			return o.failed(err)
		}
		if err := v.show(time.Now(), &nodesReport{redacted(o.url), nodes}); err != nil {
			return err
		}
	}
}

// view prints one table after the other.
type view struct {
	out      io.Writer
	terminal bool // each table replaces the one before it
	asJSON   bool // print the reports instead
	last     map[string]generated
}

// generated is the number of tokens that a worker had generated at the time of a beat, and the rate before it.
type generated struct {
	at        time.Time
	tokens    uint64
	perSecond float64
}

func newView(out io.Writer, asJSON bool) *view {
	f, ok := out.(*os.File)
	return &view{out: out, terminal: ok && term.IsTerminal(int(f.Fd())), asJSON: asJSON}
}

// show prints a report of the given time.
func (v *view) show(now time.Time, r *nodesReport) error {
	if v.asJSON {
		return printJSON(v.out, r)
	}
	v.measure(now, r)
	var b bytes.Buffer
	if v.terminal {
		b.WriteString("\x1b[H\x1b[2J") // to the top left, clear the screen
	}
	fmt.Fprintf(&b, "%s  %s  %d processes\n", now.Format(time.TimeOnly), r.NATS, len(r.Nodes))
	if err := v.workers(&b, r); err != nil {
		return err
	}
	if !v.terminal {
		b.WriteByte('\n')
	}
	_, err := v.out.Write(b.Bytes())
	return err
}

// measure updates the rate of each worker. A beat's age, not the time of the table, says when it had generated its tokens.
func (v *view) measure(now time.Time, r *nodesReport) {
	all := make(map[string]generated)
	for i := range r.Nodes {
		n := &r.Nodes[i]
		if n.Worker == nil {
			continue
		}
		g := generated{at: now.Add(-n.BeatAge), tokens: n.Worker.Generated}
		if old, ok := v.last[n.Node]; ok {
			took := g.at.Sub(old.at)
			switch {
			case took < watchInterval/2: // no new beat
				g = old
			case g.tokens >= old.tokens:
				g.perSecond = float64(g.tokens-old.tokens) / took.Seconds()
			}
		}
		all[n.Node] = g
	}
	v.last = all
}

// workers prints the table.
func (v *view) workers(out io.Writer, r *nodesReport) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "NODE\tPROCESS\tMODEL\tRUNNING\tWAITING\tSLABS\tUSED\tPROMISED\tCACHED\tFREE\tHITS\tTOKENS/S\tSTATE\tBEAT")
	var sum cluster.Worker
	rate, workers := 0.0, 0
	for i := range r.Nodes {
		n := &r.Nodes[i]
		x := n.Worker
		if x == nil {
			continue
		}
		g := v.last[n.Node]
		fmt.Fprintf(w, "%s\t%s:%d\t%s\t%s\t%s\t%s\n", n.Node, n.Host, n.Process, n.Model, loadText(x, g.perSecond), stateText(&n.Member),
			n.BeatAge.Round(time.Millisecond))
		add(&sum, x)
		rate += g.perSecond
		workers++
	}
	if workers > 1 {
		fmt.Fprintf(w, "all\t\t\t%s\t\t\n", loadText(&sum, rate))
	}
	return w.Flush()
}

// loadText is the columns of a worker's load.
func loadText(x *cluster.Worker, perSecond float64) string {
	hits := "-"
	if x.PrefixTokens > 0 {
		hits = fmt.Sprintf("%.1f%%", 100*float64(x.PrefixHits)/float64(x.PrefixTokens))
	}
	return fmt.Sprintf("%d\t%d\t%d\t%d\t%d\t%d\t%d\t%s\t%.1f", x.Running, x.Waiting, x.Slabs, x.UsedSlabs, x.Promised, x.Cached,
		x.FreeSlabs,
		hits, perSecond)
}

// add adds a worker's load to a sum.
func add(sum, x *cluster.Worker) {
	sum.Running += x.Running
	sum.Waiting += x.Waiting
	sum.Slabs += x.Slabs
	sum.UsedSlabs += x.UsedSlabs
	sum.Promised += x.Promised
	sum.Cached += x.Cached
	sum.FreeSlabs += x.FreeSlabs
	sum.PrefixTokens += x.PrefixTokens
	sum.PrefixHits += x.PrefixHits
}
