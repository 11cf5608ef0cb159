package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/cluster"
	"github.com/millrace/millrace/config"
)

type nodesOptions struct {
	url       string
	heartbeat time.Duration
	config.NATSClient
}

// nodesReport is what nodes prints with --json. Durations are in nanoseconds.
type nodesReport struct {
	NATS  string             `json:"nats"`
	Nodes []cluster.Observed `json:"nodes"`
}

func newNodes(a *app) *cobra.Command {
	var o nodesOptions
	var asJSON, watch bool
	cmd := &cobra.Command{
		Use:   "nodes",
		Short: "List the processes that serve together on a NATS server",
		Long: `List the processes of "serve --nats": it listens to their heartbeats for a little over two intervals and
sends nothing. It ignores a heartbeat that its node did not sign. A user of the NATS server needs the
permission to subscribe to ` + cluster.BeatSubject + `, no other.

NUMERICS is the digest of what a worker's bits depend on, with the class of its kernels. TEXT is the digest
of the tokenizer and the chat template. An answer continues only where both are equal; the last lines name the
models with several digests. LOAD is the number of sequences that run and wait, of those that fit a step. IN
STEP is the time since a worker with work made progress. BEAT is the time since the last heartbeat.

With --watch it prints the workers once a second until it is interrupted, on a terminal each time in the same place: the
sequences that run and wait, the slabs of the KV cache by state, the hit ratio of the prefix cache since the worker's start,
and the generated tokens per second.`,
		Example: `  millrace nodes
  millrace nodes --nats nats://127.0.0.1:4222 --json
  millrace nodes --watch`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			conn, err := connectToBeats(&o)
			if err != nil {
				return err
			}
			defer conn.Close()
			if watch {
				return watchNodes(cmd.Context(), conn, &o, newView(cmd.OutOrStdout(), asJSON), a.log)
			}
			nodes, err := cluster.Listen(cmd.Context(), conn, o.heartbeat, a.log)
			if err != nil {
				return o.failed(err)
			}
			report := &nodesReport{redacted(o.url), nodes}
			if asJSON {
				return printJSON(cmd.OutOrStdout(), report)
			}
			return printNodes(cmd.OutOrStdout(), report)
		},
	}
	cmd.Flags().StringVar(&o.url, "nats", nats.DefaultURL, "URL of the NATS server")
	cmd.Flags().DurationVar(&o.heartbeat, "heartbeat", cluster.DefaultBeat, "time between two heartbeats of a process")
	cmd.Flags().BoolVar(&watch, "watch", false, "print the workers once a second until interrupted")
	o.Register(cmd.Flags())
	jsonFlag(cmd, &asJSON)
	return cmd
}

// connectToBeats connects to the NATS server as cluster.Watch needs it.
func connectToBeats(o *nodesOptions) (*nats.Conn, error) {
	if o.heartbeat <= 0 {
		return nil, config.Usagef("--heartbeat: found %s, expected more than 0s", o.heartbeat)
	}
	if err := o.Validate(); err != nil {
		return nil, err
	}
	options, err := natsOptions(&o.NATSClient)
	if err != nil {
		return nil, err
	}
	conn, err := nats.Connect(o.url, append(options, nats.Name("millrace nodes"), nats.NoReconnect(), nats.PermissionErrOnSubscribe(true),
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))...) // what fails ends the listening
	if err != nil {
		return nil, o.failed(err)
	}
	return conn, nil
}

// failed adds the server to an error of the connection.
func (o *nodesOptions) failed(err error) error {
	return fmt.Errorf("NATS at %s: %w", redacted(o.url), loginHint(err))
}

func printNodes(out io.Writer, r *nodesReport) error {
	if len(r.Nodes) == 0 {
		_, err := fmt.Fprintf(out, "no process found at %s: check --nats, and that --heartbeat is not shorter than theirs\n", r.NATS)
		return err
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "NODE\tPROCESS\tROLES\tMODEL\tWEIGHTS\tNUMERICS\tTEXT\tLOAD\tFREE SLABS\tIN STEP\tSTATE\tBEAT")
	for i := range r.Nodes {
		n := &r.Nodes[i]
		weights, numerics, load, slabs, inStep := "-", "-", "-", "-", "-"
		if x := n.Worker; x != nil {
			weights, inStep = x.Backend+"/"+x.Weights, x.InStep.Round(time.Millisecond).String()
			numerics = digestText(x.Numerics)
			if x.Class != "" {
				numerics += " (" + x.Class + ")"
			}
			load = fmt.Sprintf("%d+%d of %d", x.Running, x.Waiting, x.Capacity)
			slabs = fmt.Sprintf("%d of %d", x.FreeSlabs, x.Slabs)
		}
		model := n.Model
		if model == "" {
			model = "-"
		}
		fmt.Fprintf(w, "%s\t%s:%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", n.Node, n.Host, n.Process, rolesText(n.Roles), model,
			weights, numerics, digestText(n.Text), load, slabs, inStep, stateText(&n.Member), n.BeatAge.Round(time.Millisecond))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	return warnOfMixedPools(out, r)
}

// warnOfMixedPools says which models have processes of several kinds.
func warnOfMixedPools(out io.Writer, r *nodesReport) error {
	members := make([]*cluster.Member, len(r.Nodes))
	for i := range r.Nodes {
		members[i] = &r.Nodes[i].Member
	}
	models := cluster.KindsOf(members)
	for _, model := range slices.Sorted(maps.Keys(models)) {
		k := models[model]
		for _, mixed := range []struct {
			what, found string
			digests     int
		}{{"numerics", k.Workers(), len(k.Numerics)}, {"text", k.Texts(), len(k.Text)}} {
			if mixed.digests < 2 {
				continue
			}
			if _, err := fmt.Fprintf(out, "mixed pool: model %q has several %s digests, %s; an answer continues at its own only\n", model,
				mixed.what, mixed.found); err != nil {
				return err
			}
		}
	}
	return nil
}

func digestText(digest string) string {
	if digest == "" {
		return "-"
	}
	return api.ShortDigest(digest)
}

func rolesText(roles []cluster.Role) string {
	names := make([]string, len(roles))
	for i, r := range roles {
		names[i] = string(r)
	}
	return strings.Join(names, ",")
}

func stateText(m *cluster.Member) string {
	switch {
	case m.Worker != nil && m.Worker.Down != "":
		return "down: " + m.Worker.Down
	case m.Draining:
		return "draining"
	}
	return "serving"
}
