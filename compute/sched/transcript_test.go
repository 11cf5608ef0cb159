package sched

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "rewrite the expected plans in testdata")

// TestTranscripts plays testdata/*.txt. A file is a list of commands, each
//
//	config key=value ...  |  step [now=5s]  |  hold [now=5s]  |  snapshot
//	event
//	...
//	----
//	what is expected, up to the next empty line
//
// A step that is held is taken again at once, as when the answer is late; hold leaves that to the
// next command, which has the answer. Lines that start with # before a command are kept as they are.
func TestTranscripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no transcripts: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := play(t, string(want))
			if *update {
				if err := os.WriteFile(file, got, 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if !bytes.Equal(got, want) {
				t.Errorf("%s differs (-update rewrites it):\n%s", file, firstDifference(string(got), string(want)))
			}
		})
	}
}

// play runs the commands of a transcript and returns it with the actual output.
func play(t *testing.T, text string) []byte {
	t.Helper()
	var out bytes.Buffer
	var s *Scheduler
	cfg := testConfig()
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	for i := 0; i < len(lines); {
		if lines[i] == "" || strings.HasPrefix(lines[i], "#") {
			fmt.Fprintln(&out, lines[i])
			i++
			continue
		}
		from := i
		for i < len(lines) && lines[i] != "----" {
			fmt.Fprintln(&out, lines[i])
			i++
		}
		if i == len(lines) {
			t.Fatalf("line %d: a command without ----", from+1)
		}
		command := lines[from:i]
		for i < len(lines) && lines[i] != "" {
			i++
		}
		fmt.Fprintln(&out, "----")
		words := strings.Fields(command[0])
		switch words[0] {
		case "config":
			configure(t, &cfg, words[1:])
			var err error
			if s, err = New(cfg); err != nil {
				t.Fatal(err)
			}
			fmt.Fprintln(&out, "ok")
		case "step":
			if step(t, &out, s, words[1:], command[1:]).Hold {
				step(t, &out, s, words[1:], nil)
			}
		case "hold":
			if !step(t, &out, s, words[1:], command[1:]).Hold {
				t.Errorf("line %d: the step was not held", from+1)
			}
		case "snapshot":
			fmt.Fprintf(&out, "running %d, waiting %d, idle %t\n", s.Running(), s.Waiting(), s.Idle())
			for _, q := range s.Snapshot() {
				fmt.Fprintf(&out, "  %d %v: computed %d of %d+%d, generated %d, leased %d\n",
					q.ID, q.State, q.Computed, q.Prompt, q.MaxNew, q.Generated, q.Leased)
			}
		default:
			t.Fatalf("line %d: unknown command %q", from+1, words[0])
		}
	}
	return out.Bytes()
}

func configure(t *testing.T, c *Config, args []string) {
	t.Helper()
	fields := map[string]*int{
		"batch-tokens": &c.MaxBatchTokens, "chunk-tokens": &c.ChunkTokens, "batch-size": &c.MaxBatchSize,
		"max-waiting": &c.MaxWaiting, "sequence-tokens": &c.MaxSequenceTokens,
		"slab": &c.KV.SlabTokens, "draft-rows": &c.DraftRows, "lease-ahead": &c.LeaseAheadTokens,
	}
	for _, a := range args {
		key, value, _ := strings.Cut(a, "=")
		if key == "ratio" {
			f, err := strconv.ParseFloat(value, 64)
			if err != nil {
				t.Fatal(err)
			}
			c.WaitingServedRatio = f
			continue
		}
		if fields[key] == nil {
			t.Fatalf("unknown setting %q", key)
		}
		*fields[key] = number(t, value)
	}
}

func step(t *testing.T, out *bytes.Buffer, s *Scheduler, args, lines []string) *Plan {
	t.Helper()
	var now time.Duration
	for _, a := range args {
		now = duration(t, strings.TrimPrefix(a, "now="))
	}
	var events []Event
	for _, line := range lines {
		events = append(events, parseEvents(t, strings.Fields(line))...)
	}
	plan, err := s.Step(now, events)
	if err != nil {
		fmt.Fprintf(out, "error: %s\n", strings.ReplaceAll(err.Error(), "\n", "\nerror: "))
	}
	printPlan(out, plan)
	if err := s.Check(); err != nil {
		t.Errorf("step %d: %v", plan.Step, err)
	}
	return plan
}

// parseEvents reads one line: a verb, ids, and key=value arguments for them all.
func parseEvents(t *testing.T, words []string) []Event {
	t.Helper()
	var ids []ID
	arg := map[string]string{}
	for _, w := range words[1:] {
		if key, value, ok := strings.Cut(w, "="); ok {
			arg[key] = value
			continue
		}
		ids = append(ids, ID(number(t, w)))
	}
	num := func(key string) int {
		if arg[key] == "" {
			return 0
		}
		return number(t, arg[key])
	}
	var events []Event
	for _, id := range ids {
		switch words[0] {
		case "submit":
			events = append(events, Submit(&Sequence{
				ID: id, PromptTokens: num("prompt"), MaxNewTokens: num("new"), Beams: num("beams"), Priority: num("priority"),
				Tenant: arg["tenant"], Weight: num("weight"), Migrated: num("migrated") > 0,
				Arrival: duration(t, arg["arrival"]), Deadline: duration(t, arg["deadline"]),
			}))
		case "cancel":
			events = append(events, Cancel(id))
		case "granted":
			events = append(events, GrantedPrefix(id, num("tokens"), num("computed")))
		case "parked":
			events = append(events, Parked(id, ID(num("by"))))
		case "ready":
			events = append(events, Ready(id))
		case "freed":
			events = append(events, Freed())
		case "denied":
			events = append(events, Denied(id, num("need"), num("free")))
		case "no-memory":
			events = append(events, NoMemory(id, num("need"), num("free")))
		case "never-fits":
			events = append(events, NeverFits(id, num("need"), num("pool")))
		case "sampled":
			events = append(events, Forced(id, max(1, num("tokens")), num("drafts"), num("forced")))
		case "stop":
			events = append(events, Finished(id, ReasonStop))
		case "failed":
			events = append(events, Finished(id, ReasonError))
		default:
			t.Fatalf("unknown event %q", words[0])
		}
	}
	return events
}

func printPlan(out *bytes.Buffer, p *Plan) {
	if p.Hold {
		fmt.Fprintln(out, "hold")
	} else {
		printRows(out, p)
	}
	for _, id := range p.Release {
		fmt.Fprintf(out, "release %d\n", id)
	}
	for _, e := range p.Spill {
		fmt.Fprintf(out, "spill %d tokens=%d\n", e.ID, e.Tokens)
	}
	for _, r := range p.Restore {
		fmt.Fprintf(out, "restore %d tokens=%d promise=%d lease=%d\n", r.ID, r.Tokens, r.Promise, r.Lease)
	}
	for _, r := range p.Reserve {
		fmt.Fprintf(out, "reserve %d tokens=%d lease=%d", r.ID, r.Tokens, r.Lease)
		if r.Beams > 0 {
			fmt.Fprintf(out, " prompt=%d beams=%d", r.Prompt, r.Beams)
		}
		fmt.Fprintln(out)
	}
	for _, l := range p.Lease {
		fmt.Fprintf(out, "lease %d up to %d", l.ID, l.UpTo)
		if p.Step > 0 && l.Promise < l.UpTo {
			fmt.Fprintf(out, " promise=%d", l.Promise)
		}
		fmt.Fprintln(out)
	}
	for _, e := range p.Ended {
		fmt.Fprintf(out, "ended %d %v after %d tokens\n", e.ID, e.Reason, e.Generated)
	}
	for _, n := range []struct {
		name  string
		count int
	}{{"stalled", p.Stalled}, {"held", p.Held}, {"awaiting", p.Awaiting}, {"yielded", p.Yielded}, {"deferred", p.Deferred},
		{"idle", p.Idle}} {
		if n.count > 0 {
			fmt.Fprintf(out, "%s %d\n", n.name, n.count)
		}
	}
	if p.Wake != 0 {
		fmt.Fprintf(out, "wake %v\n", p.Wake)
	}
}

func printRows(out *bytes.Buffer, p *Plan) {
	fmt.Fprintf(out, "rows %d = %d decode + %d prompt, outputs %d\n", p.Rows, p.DecodeRows, p.PromptRows, p.Outputs)
	for _, c := range p.Chunks {
		if c.Beams > 0 {
			fmt.Fprintf(out, "  row %d: sequence %d, %d beams at token %d", c.Row, c.ID, c.Beams, c.Start)
		} else {
			fmt.Fprintf(out, "  row %d: sequence %d, tokens %d-%d", c.Row, c.ID, c.Start, c.Start+c.Rows-1)
		}
		if c.Output {
			fmt.Fprint(out, ", output")
		}
		if c.Drafts > 0 {
			fmt.Fprintf(out, " of %d draft tokens", c.Drafts)
		}
		if c.Forced > 0 {
			fmt.Fprintf(out, ", %d forced", c.Forced)
		}
		fmt.Fprintln(out)
	}
}

func number(t *testing.T, s string) int {
	t.Helper()
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func duration(t *testing.T, s string) time.Duration {
	t.Helper()
	if s == "" {
		return 0
	}
	d, err := time.ParseDuration(s)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func firstDifference(got, want string) string {
	g, w := strings.Split(got, "\n"), strings.Split(want, "\n")
	for i := range min(len(g), len(w)) {
		if g[i] != w[i] {
			return fmt.Sprintf("line %d:\n got %s\nwant %s", i+1, g[i], w[i])
		}
	}
	return fmt.Sprintf("got %d lines, want %d", len(g), len(w))
}
