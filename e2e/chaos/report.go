package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/millrace/millrace/e2e/chaos/workload"
)

// report is what a scenario found.
type report struct {
	Scenario string         `json:"scenario"`
	Seconds  float64        `json:"seconds"`
	Faults   map[string]int `json:"faults"` // how often each kind struck
	workload.Outcome
	Gaps         workload.Gaps            `json:"gaps"`
	GapsAtFaults map[string]workload.Gaps `json:"gaps_at_faults"` // by kind of fault
	Migrations   float64                  `json:"migrations"`     // at least: what a killed process had not shown is not in it
	Notes        []string                 `json:"notes,omitempty"`
	Table        []string                 `json:"table,omitempty"` // Markdown
	Error        string                   `json:"error,omitempty"`
	Pass         bool                     `json:"pass"`
}

func (t *trial) report(name string, results []workload.Result) *report {
	r := &report{
		Scenario: name, Faults: map[string]int{}, Outcome: workload.Judge(t.expected, results),
		Gaps: workload.AllGaps(results), GapsAtFaults: map[string]workload.Gaps{},
		Migrations: t.watch.total("millrace_migrations_total"),
	}
	moments := map[string][]time.Time{}
	for _, f := range t.faults {
		r.Faults[f.kind]++
		moments[f.kind] = append(moments[f.kind], f.at)
		moments["all"] = append(moments["all"], f.at)
	}
	for kind, at := range moments {
		r.GapsAtFaults[kind] = workload.GapsAt(results, at)
	}
	r.Notes = append(r.Notes, t.longest(results)...)
	return r
}

// longest names the streams with the three longest gaps, and what was done just
// before each.
func (t *trial) longest(results []workload.Result) (lines []string) {
	for _, g := range workload.Longest(results, 3) {
		last := "nothing"
		for _, f := range t.faults {
			if f.at.Before(g.To) {
				last = fmt.Sprintf("%s, %d ms before the gap began", f.kind, g.From.Sub(f.at).Milliseconds())
			}
		}
		lines = append(lines, fmt.Sprintf("gap of %d ms in %s after %d chunks; the last fault until its end: %s",
			g.To.Sub(g.From).Milliseconds(), g.Stream, g.Chunks, last))
	}
	return lines
}

// results are a run of the suite.
type results struct {
	Time      string    `json:"time"`
	Machine   string    `json:"machine"`
	Commit    string    `json:"commit"`
	Seed      uint64    `json:"seed"`
	Arguments []string  `json:"arguments"`
	Scenarios []*report `json:"scenarios"`
}

// write puts DIR/NAME.json and DIR/NAME.md.
func (r *results) write(dir, name string) error {
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, name+".json"), append(data, '\n'), 0o644); err != nil {
		return err
	}
	var b strings.Builder
	r.table(&b)
	return os.WriteFile(filepath.Join(dir, name+".md"), []byte(b.String()), 0o644)
}

// table writes Markdown.
func (r *results) table(w io.Writer) {
	fmt.Fprintf(w, "# Fault suite, %s\n\n%s, commit %s, seed %d, `chaos %s`. Gaps are between two chunks of tokens at the client, in ms:\n"+
		"p50 / p99 / longest; at a fault, for each stream that was running, the longest that overlaps the second after it.\n\n"+
		"| scenario | faults | streams | whole | lost | duplicated | missing | differing | gaps | gaps at faults | migrations | seconds | |\n"+
		"|---|---|---|---|---|---|---|---|---|---|---|---|---|\n",
		r.Time, r.Machine, r.Commit, r.Seed, strings.Join(r.Arguments, " "))
	for _, s := range r.Scenarios {
		var faults []string
		for _, kind := range slices.Sorted(maps.Keys(s.Faults)) {
			faults = append(faults, fmt.Sprintf("%d x %s", s.Faults[kind], kind))
		}
		fmt.Fprintf(w, "| %s | %s | %d | %d | %d | %d | %d | %d | %s | %s | %.0f | %.0f | %s |\n", s.Scenario, strings.Join(faults, ", "),
			s.Streams, s.Completed, s.Lost, s.Duplicated, s.Missing, s.Differing, short(s.Gaps), short(s.GapsAtFaults["all"]),
			s.Migrations, s.Seconds, verdict(s.Pass))
	}
	for _, s := range r.Scenarios {
		for _, note := range s.Notes {
			fmt.Fprintf(w, "\n%s: %s\n", s.Scenario, note)
		}
		if len(s.Table) > 0 {
			fmt.Fprintf(w, "\n%s\n", strings.Join(s.Table, "\n"))
		}
	}
}

func short(g workload.Gaps) string {
	if g.Count == 0 {
		return "-"
	}
	return fmt.Sprintf("%.0f / %.0f / %.0f", g.P50, g.P99, g.Max)
}

func verdict(pass bool) string {
	if pass {
		return "pass"
	}
	return "**FAIL**"
}

// print says what a scenario found.
func (s *report) print(w io.Writer) {
	fmt.Fprintf(w, "  %s: %d streams, %d whole, %d lost, %d duplicated, %d missing, %d differing, %d tokens, %.0f migrations, %.0f s\n",
		verdict(s.Pass), s.Streams, s.Completed, s.Lost, s.Duplicated, s.Missing, s.Differing, s.Tokens, s.Migrations, s.Seconds)
	fmt.Fprintf(w, "  token gaps p50 / p99 / max: %s ms\n", short(s.Gaps))
	for _, kind := range slices.Sorted(maps.Keys(s.GapsAtFaults)) {
		fmt.Fprintf(w, "  at %s: %s ms\n", kind, short(s.GapsAtFaults[kind]))
	}
	for _, line := range slices.Concat(s.Notes, s.Table, s.Wrong) {
		fmt.Fprintf(w, "  %s\n", line)
	}
	if s.Error != "" {
		fmt.Fprintf(w, "  error: %s\n", s.Error)
	}
}
