package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/millrace/millrace/e2e/chaos/cluster"
)

// outcome is the result of an attack.
type outcome struct {
	Name    string  `json:"name"`
	Target  string  `json:"target"`
	Seen    string  `json:"seen"`
	Error   string  `json:"error,omitempty"` // why the attack was not stopped; "": it was
	Normal  *normal `json:"normal"`
	Seconds float64 `json:"seconds"`
}

type report struct {
	Time        string        `json:"time"`
	Machine     string        `json:"machine"`
	Commit      string        `json:"commit"`
	Arguments   []string      `json:"arguments,omitempty"`
	Pass        bool          `json:"pass"`
	Seconds     float64       `json:"seconds"`
	Attacks     []outcome     `json:"attacks"`
	Comparisons []*comparison `json:"comparisons"`
}

func newReport(ctx context.Context, begin time.Time, args []string) *report {
	return &report{Time: begin.UTC().Format("2006-01-02T1504"), Machine: cluster.Machine(), Commit: cluster.Commit(ctx), Arguments: args}
}

func word(good bool) string {
	if good {
		return "PASS"
	}
	return "FAIL"
}

func (r *report) add(out io.Writer, o outcome) {
	r.Attacks = append(r.Attacks, o)
	fmt.Fprintf(out, "%s %s: %s; %d normal requests, slowest %.2f s (%.1f s)\n", word(o.Error == ""), o.Name, o.Seen, o.Normal.Good,
		o.Normal.Slowest, o.Seconds)
	if o.Error != "" {
		fmt.Fprintf(out, "     %s\n", strings.ReplaceAll(o.Error, "\n", "\n     "))
	}
}

func (r *report) compared(out io.Writer, c *comparison) {
	r.Comparisons = append(r.Comparisons, c)
	fmt.Fprintf(out, "%s %s after the attacks: p50 %.1f ms (%.2f x), resident %d MiB (%.2f x)\n", word(c.good()), c.Target,
		1e3*c.P50, c.P50/c.Control, c.Resident>>20, float64(c.Resident)/float64(c.Expected))
}

// judge sets the verdict. A report with a failed part fails, and so does one without attacks.
func (r *report) judge() { r.Pass = len(r.Attacks) > 0 && len(r.failed()) == 0 }

func (r *report) failed() (names []string) {
	for _, o := range r.Attacks {
		if o.Error != "" {
			names = append(names, o.Name)
		}
	}
	for _, c := range r.Comparisons {
		if !c.good() {
			names = append(names, c.Target+" after the attacks")
		}
	}
	return names
}

// write writes the report as JSON and as a table into dir, or nowhere for "".
func (r *report) write(dir string) error {
	if dir == "" {
		return nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	path := filepath.Join(dir, r.Time+"-attack")
	if err := os.WriteFile(path+".json", append(text, '\n'), 0o644); err != nil {
		return err
	}
	return os.WriteFile(path+".md", []byte(r.table()), 0o644)
}

func (r *report) table() string {
	var b strings.Builder
	fmt.Fprintf(&b, "# Attacks: %s\n\n%s, commit %s, %s UTC\n\n", word(r.Pass), r.Machine, r.Commit, r.Time)
	b.WriteString("| attack | | observed | normal requests | slowest |\n|---|---|---|---|---|\n")
	for _, o := range r.Attacks {
		fmt.Fprintf(&b, "| %s | %s | %s | %d of %d | %.2f s |\n", o.Name, word(o.Error == ""), strings.ReplaceAll(o.Seen, "|", "/"),
			o.Normal.Good, o.Normal.Good+o.Normal.Bad, o.Normal.Slowest)
	}
	b.WriteString("\n| server after the attacks | | p50 | ratio to the control server | resident | ratio |\n|---|---|---|---|---|---|\n")
	for _, c := range r.Comparisons {
		fmt.Fprintf(&b, "| %s | %s | %.1f ms | %.2f | %d MiB | %.2f |\n", c.Target, word(c.good()), 1e3*c.P50, c.P50/c.Control,
			c.Resident>>20, float64(c.Resident)/float64(c.Expected))
	}
	return b.String()
}
