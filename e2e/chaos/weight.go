package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/millrace/millrace/e2e/chaos/cluster"
	"github.com/millrace/millrace/e2e/wait"
)

// quantity is a resource that must not grow without bound. From the second to the last third of
// the rounds its median may grow by a share of itself and an amount.
type quantity struct {
	name          string
	share, amount float64
}

var quantities = []quantity{
	{"resident MiB", 0.15, 16},
	{"open files", 0, 8},
	{"goroutines", 0.05, 10},
}

// weight is the use of each quantity in an idle cluster, by holder.
type weight map[string]map[string]float64

// weights are the weights of all rounds.
type weights []weight

// weigh measures the first process of each role, and the NATS servers.
func (t *trial) weigh(ctx context.Context) (weight, error) {
	w := weight{}
	hold := func(p *cluster.Process) error {
		usage, err := p.Usage()
		w[p.Name] = map[string]float64{"resident MiB": float64(usage.Resident) / (1 << 20), "open files": float64(usage.Files)}
		return err
	}
	for _, role := range cluster.Roles {
		m := t.Members(role)[0]
		if err := hold(m.Process); err != nil {
			return w, err
		}
		metrics, err := m.Metrics(ctx)
		if err != nil {
			return w, err
		}
		w[m.Name]["goroutines"] = metrics["go_goroutines"]
	}
	for _, p := range t.NATS() {
		if err := hold(p); err != nil {
			return w, err
		}
	}
	return w, nil
}

// logsExpire is the time after which a cluster without requests must store no log. A gateway removes
// the log of a call that has ended 30 s later. The log of a gateway that was killed stays until its
// records are two minutes old. A soak is shorter: during it the stored bytes grow with each kill of a
// gateway, so that only their end can be judged.
const logsExpire = 2*time.Minute + 30*time.Second

// empty waits until JetStream stores nothing. The note has what it stored before, and the time waited.
func (t *trial) empty(ctx context.Context) (note string, err error) {
	first, err := t.Storage(ctx)
	if err != nil {
		return "", err
	}
	now, begin := first, time.Now()
	for now.Memory+now.File > 0 {
		if time.Since(begin) > logsExpire {
			return "", fmt.Errorf("JetStream stores %d bytes %s after the last stream, expected 0; it stored %d at first",
				now.Memory+now.File, logsExpire, first.Memory+first.File)
		}
		if err := wait.For(ctx, time.Second); err != nil {
			return "", err
		}
		if now, err = t.Storage(ctx); err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("JetStream stored %.1f MiB after the last stream, and nothing %s later",
		float64(first.Memory+first.File)/(1<<20), time.Since(begin).Round(time.Second)), nil
}

// medians returns the medians of the first, the second and the last third of the rounds.
func (all weights) medians(holder, quantity string) (m [3]float64) {
	for i := range m {
		var values []float64
		for _, w := range all[i*len(all)/3 : (i+1)*len(all)/3] {
			values = append(values, w[holder][quantity])
		}
		slices.Sort(values)
		m[i] = (values[(len(values)-1)/2] + values[len(values)/2]) / 2
	}
	return m
}

// flat returns an error for each holder and quantity that has grown.
func (all weights) flat() error {
	var errs []error
	for _, holder := range slices.Sorted(maps.Keys(all[0])) {
		for _, q := range quantities {
			m := all.medians(holder, q.name)
			if most := m[1]*(1+q.share) + q.amount; m[2] > most {
				errs = append(errs,
					fmt.Errorf("%s: %s grew from %.1f in the second third of the rounds to %.1f in the last, expected at most %.1f",
						holder, q.name, m[1], m[2], most))
			}
		}
	}
	return errors.Join(errs...)
}

// table returns the weights as a Markdown table.
func (all weights) table() []string {
	head, line := "| median of each third of the rounds |", "|---|"
	for _, q := range quantities {
		head += fmt.Sprintf(" %s (+%.0f%% + %.0f) |", q.name, 100*q.share, q.amount)
		line += "---|"
	}
	lines := []string{head, line}
	for _, holder := range slices.Sorted(maps.Keys(all[0])) {
		var b strings.Builder
		fmt.Fprintf(&b, "| %s |", holder)
		for _, q := range quantities {
			if _, weighed := all[0][holder][q.name]; !weighed {
				b.WriteString(" |")
				continue
			}
			m := all.medians(holder, q.name)
			fmt.Fprintf(&b, " %.1f, %.1f, %.1f |", m[0], m[1], m[2])
		}
		lines = append(lines, b.String())
	}
	return lines
}
