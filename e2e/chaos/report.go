package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/millrace/millrace/e2e/chaos/cluster"
	"github.com/millrace/millrace/e2e/chaos/workload"
)

// report is the result of a scenario.
type report struct {
	Scenario string         `json:"scenario"`
	Seconds  float64        `json:"seconds"`
	Faults   map[string]int `json:"faults"` // number of each kind
	workload.Outcome
	Gaps         workload.Gaps            `json:"gaps"`
	GapsAtFaults map[string]workload.Gaps `json:"gaps_at_faults"` // by kind of fault
	Hits         int                      `json:"hits"`           // faults during running streams
	HitStreams   int                      `json:"hit_streams"`    // streams that ran at a fault, summed over the faults
	// at least: those after the last scrape of a killed process are missing
	Migrations float64  `json:"migrations"`
	Takeovers  float64  `json:"takeovers"`          // calls that another gateway took over; at least, too
	SpyRefused int      `json:"spy_refused"`        // tries to read another tenant's stream
	SpyLeaked  int      `json:"spy_leaked"`         // tries that worked
	Distinct   int      `json:"distinct,omitempty"` // in a mixed pool: streams that the pools answer differently
	Least      least    `json:"least"`
	Notes      []string `json:"notes,omitempty"`
	Table      []string `json:"table,omitempty"` // Markdown
	Error      string   `json:"error,omitempty"`
	Pass       bool     `json:"pass"`
}

// least holds the least numbers of a scenario. Below them a pass has no meaning.
type least struct {
	Streams int `json:"streams"` // compared streams
	Hits    int `json:"hits"`    // faults during running streams
	Moves   int `json:"moves"`   // sequences that migrated, and calls that another gateway took over
	Refused int `json:"refused"` // tries of a tenant to read another's stream

	NoEqual  int `json:"no_equal,omitempty"` // in a mixed pool: streams that ended without an equal worker
	Distinct int `json:"distinct,omitempty"` // in a mixed pool: streams that the pools answer differently
}

// missed returns an error for each number below its least.
func (s *report) missed() error {
	var errs []error
	for _, n := range []struct {
		what         string
		found, least int
	}{
		{"streams", s.Streams, s.Least.Streams}, {"faults that met running streams", s.Hits, s.Least.Hits},
		{"migrations and takeovers", int(s.Migrations + s.Takeovers), s.Least.Moves},
		{"refused tries to read another tenant's stream", s.SpyRefused, s.Least.Refused},
		{"streams that ended without an equal worker", s.NoEqual, s.Least.NoEqual},
		{"streams that the pools answer differently", s.Distinct, s.Least.Distinct},
	} {
		if n.found < max(n.least, 0) {
			errs = append(errs, fmt.Errorf("%s: found %d, expected at least %d", n.what, n.found, n.least))
		}
	}
	if s.SpyLeaked > 0 {
		errs = append(errs, fmt.Errorf("%d streams were read with another tenant's key", s.SpyLeaked))
	}
	return errors.Join(errs...)
}

// moving are the roles whose loss migrates a part of a stream.
var moving = []string{cluster.RoleGateway, cluster.RoleCompute, cluster.RoleDetok}

// expectation returns the least numbers of a scenario with faults. All streams are compared, each fault
// comes during some of them, and each loss of a process with a part of a stream migrates at least one.
func (t *trial) expectation() (l least) {
	l = least{Streams: max(t.streams, 1), Hits: max(len(t.faults), 1), Refused: 1}
	for _, f := range t.faults {
		if slices.Contains(moving, f.role) {
			l.Moves++
		}
	}
	return l
}

func (t *trial) report(ctx context.Context, name string, results []workload.Result) (*report, error) {
	r := &report{
		Scenario: name, Faults: map[string]int{}, Least: t.expectation(),
		Gaps: workload.AllGaps(results), GapsAtFaults: map[string]workload.Gaps{},
		Migrations: t.watch.total("millrace_migrations_total"), Takeovers: t.watch.total("millrace_resume_takeovers_total"),
		SpyRefused: int(t.spy.refused.Load()), SpyLeaked: int(t.spy.leaked.Load()),
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
	r.Hits, r.HitStreams = workload.Hits(results, moments["all"])
	r.Notes = slices.Concat(t.notes, t.longest(results), []string{t.handedOver()})
	err := t.replay(ctx, t.pools, results)
	r.Outcome = workload.Judge(t.oracles, results)
	if len(t.pools) == 1 { // in a pool of two equals, one lives or is restarted
		r.Lost, r.NoEqual = r.Lost+r.NoEqual, 0
	}
	r.Wrong = append(r.Wrong, t.spy.leaks...)
	return r, err
}

// longest names the streams with the three longest gaps, and the fault just before
// each.
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

// results is the report of a run of the suite.
type results struct {
	Time      string    `json:"time"`
	Machine   string    `json:"machine"`
	Commit    string    `json:"commit"`
	Seed      uint64    `json:"seed"`
	Arguments []string  `json:"arguments"`
	Scenarios []*report `json:"scenarios"`
}

// write writes DIR/NAME.json and DIR/NAME.md.
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
		"| scenario | faults, of them among running streams | streams | whole | ended without an equal worker | lost | duplicated | missing | spliced | differing | gaps | gaps at faults | migrations, takeovers | seconds | |\n"+
		"|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n",
		r.Time, r.Machine, r.Commit, r.Seed, strings.Join(r.Arguments, " "))
	for _, s := range r.Scenarios {
		var faults []string
		for _, kind := range slices.Sorted(maps.Keys(s.Faults)) {
			faults = append(faults, fmt.Sprintf("%d x %s", s.Faults[kind], kind))
		}
		fmt.Fprintf(w, "| %s | %s; %d | %d | %s | %d | %d | %d | %d | %d | %d | %s | %s | %.0f, %.0f | %.0f | %s |\n", s.Scenario,
			strings.Join(faults, ", "), s.Hits,
			s.Streams, s.completed(), s.NoEqual, s.Lost, s.Duplicated, s.Missing, s.Spliced, s.Differing, short(s.Gaps),
			short(s.GapsAtFaults["all"]),
			s.Migrations, s.Takeovers, s.Seconds, verdict(s.Pass))
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

// completed returns the number of whole answers, by pool where there is more than one.
func (s *report) completed() string {
	text := fmt.Sprint(s.Completed)
	if len(s.ByKind) < 2 {
		return text
	}
	var kinds []string
	for _, kind := range slices.Sorted(maps.Keys(s.ByKind)) {
		kinds = append(kinds, fmt.Sprintf("%d of %s", s.ByKind[kind], kind))
	}
	return text + " (" + strings.Join(kinds, ", ") + ")"
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

// print prints the report of a scenario.
func (s *report) print(w io.Writer) {
	fmt.Fprintf(w,
		"  %s: %d streams, %s whole, %d ended without an equal worker, %d lost, %d duplicated, %d missing, %d spliced, %d differing, %d tokens, %.0f s\n",
		verdict(s.Pass), s.Streams, s.completed(), s.NoEqual, s.Lost, s.Duplicated, s.Missing, s.Spliced, s.Differing, s.Tokens, s.Seconds)
	fmt.Fprintf(w,
		"  %d faults met running streams, %d in all; %.0f migrations, %.0f takeovers; %d tries to read another tenant's stream, %d worked; %d streams without a seed not replayed\n",
		s.Hits, s.HitStreams, s.Migrations, s.Takeovers, s.SpyRefused+s.SpyLeaked, s.SpyLeaked, s.Unreplayed)
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
