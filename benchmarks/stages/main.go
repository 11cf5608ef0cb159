// Command stages sends requests to a server of Millrace, some numbers of them at once, and prints how its stages divide their time: a table
// in Markdown, and a picture. All times come from the server's /metrics and /debug/pipeline. It must not know how the stages work.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/millrace/millrace/client"
	"github.com/millrace/millrace/lab/curve"
	"github.com/millrace/millrace/lab/load"
)

// poll is the time between two requests of the last steps, of which a server keeps some.
const poll = 100 * time.Millisecond

type options struct {
	url, clients, svg string
	rounds            int
	load              load.Options
}

func main() {
	var o options
	flag.StringVar(&o.url, "url", "http://127.0.0.1:8080", "the server, which serves nobody else")
	flag.StringVar(&o.load.Model, "model", "", "the model's name")
	flag.StringVar(&o.clients, "clients", "1,8,64", "requests at once, a row for each number")
	flag.IntVar(&o.rounds, "rounds", 4, "times that all of them are sent, each when all before have ended")
	flag.IntVar(&o.load.Prompt, "prompt", 120, "words of a prompt, in the mean")
	flag.IntVar(&o.load.Gen, "gen", 64, "tokens of an answer")
	flag.StringVar(&o.svg, "svg", "", "picture to write")
	flag.Parse()
	if err := run(context.Background(), os.Stdout, &o); err != nil {
		fmt.Fprintln(os.Stderr, "stages:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out io.Writer, o *options) error {
	c, err := client.NewHTTP(o.url)
	if err != nil {
		return err
	}
	defer c.Close()
	if _, err := measure(ctx, c, o, 1, 1); err != nil { // pages, caches and connections
		return err
	}
	picture := curve.Picture{Title: fmt.Sprintf("Time of the stages beside compute, %d words in, %d tokens out", o.load.Prompt, o.load.Gen),
		X: "requests at once", Y: "% of the time of all stages"}
	for _, s := range stages[1:] {
		picture.Series = append(picture.Series, curve.Series{Name: s})
	}
	fmt.Fprintln(out,
		"| requests at once | tokens/s | compute | tokenize | sample | detokenize | steps of prompts, of answers, of both | a request, ms | queue | prefill | decode | to and from the client |")
	fmt.Fprintln(out, "|"+strings.Repeat("---|", 12))
	for field := range strings.SplitSeq(o.clients, ",") {
		n, err := strconv.Atoi(field)
		if err != nil || n < 1 {
			return fmt.Errorf("--clients: found %q, expected numbers of at least 1", o.clients)
		}
		r, err := measure(ctx, c, o, n, o.rounds)
		if err != nil {
			return err
		}
		fmt.Fprintln(out, r.row(n))
		for i := range picture.Series {
			picture.Series[i].Points = append(picture.Series[i].Points, curve.Point{X: float64(n), Y: 100 * r.share(stages[i+1])})
		}
	}
	if o.svg == "" {
		return nil
	}
	return picture.WriteFile(o.svg)
}

// stages are the shares that a row has, and what follows compute in the picture.
var stages = []string{"compute", "tokenize", "sample", "detokenize"}

// result is what the server did under a load.
type result struct {
	spent     map[string]float64 // seconds of each stage, and of each part of a request, in all
	kinds     [3]time.Duration   // of the steps that were seen: with rows of prompts, of answers, of both
	requests  float64
	tokenRate float64
	latency   float64 // seconds of a request, as the client sees it, in the mean
}

func measure(ctx context.Context, c client.Client, o *options, clients, rounds int) (*result, error) {
	before, err := scrape(ctx, o.url)
	if err != nil {
		return nil, err
	}
	done, steps := make(chan struct{}), make(chan map[uint64]step, 1)
	stop := sync.OnceFunc(func() { close(done) })
	defer stop()
	go func() { steps <- watch(ctx, o.url, done) }()
	r := &result{spent: map[string]float64{}}
	for i := range rounds {
		l := o.load
		l.Requests, l.Seed = clients, uint64(time.Now().UnixNano())
		report, err := load.Run(ctx, c, l)
		if err == nil && report.Failed > 0 {
			err = fmt.Errorf("%d of %d requests failed: %s", report.Failed, clients, strings.Join(report.Errors, "; "))
		}
		if err != nil {
			return nil, err
		}
		r.tokenRate += (report.TokenRate - r.tokenRate) / float64(i+1)
		r.latency += (report.Latency.Mean - r.latency) / float64(i+1)
	}
	stop()
	r.count(<-steps)
	after, err := scrape(ctx, o.url)
	if err != nil {
		return nil, err
	}
	for name, value := range after {
		r.spent[name] = value - before[name]
	}
	r.spent["compute"] -= r.spent["sample"]
	r.requests = float64(clients * rounds)
	return r, nil
}

// share is that of a stage of the time of all.
func (r *result) share(stage string) float64 {
	sum := 0.0
	for _, s := range stages {
		sum += r.spent[s]
	}
	return r.spent[stage] / sum
}

func (r *result) row(clients int) string {
	cells := []string{strconv.Itoa(clients), fmt.Sprintf("%.0f", r.tokenRate)}
	for _, s := range stages {
		cells = append(cells, fmt.Sprintf("%.2f%%", 100*r.share(s)))
	}
	steps := max(r.kinds[0]+r.kinds[1]+r.kinds[2], 1)
	part := func(seconds float64) string { return fmt.Sprintf("%.1f%%", 100*seconds/r.latency) }
	each := func(name string) float64 { return r.spent[name] / r.requests }
	cells = append(cells, fmt.Sprintf("%.0f%%, %.0f%%, %.0f%%", 100*float64(r.kinds[0])/float64(steps),
		100*float64(r.kinds[1])/float64(steps),
		100*float64(r.kinds[2])/float64(steps)), fmt.Sprintf("%.1f", 1e3*r.latency))
	for _, s := range []string{"queue", "prefill", "decode"} {
		cells = append(cells, part(each(s)))
	}
	return "| " + strings.Join(append(cells, part(r.latency-each("request"))), " | ") + " |"
}

// count adds up the steps by kind.
func (r *result) count(steps map[uint64]step) {
	for _, s := range steps {
		switch {
		case s.Decode == 0:
			r.kinds[0] += s.Took
		case s.Prompt == 0:
			r.kinds[1] += s.Took
		default:
			r.kinds[2] += s.Took
		}
	}
}

// sums are histograms whose sums are the time of a stage, or of a part of requests.
var sums = map[string]string{
	"millrace_step_seconds": "compute", "millrace_sampling_seconds": "sample",
	"millrace_request_queue_time_seconds": "queue", "millrace_request_prefill_time_seconds": "prefill",
	"millrace_request_decode_time_seconds": "decode", "millrace_e2e_request_latency_seconds": "request",
}

// scrape returns the sums of a server.
func scrape(ctx context.Context, url string) (map[string]float64, error) {
	r, err := get(ctx, url+"/metrics")
	if err != nil {
		return nil, err
	}
	defer r.Body.Close() //nolint:errcheck // it was read only
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(r.Body)
	if err != nil {
		return nil, fmt.Errorf("%s/metrics: %w", url, err)
	}
	spent := map[string]float64{}
	for series, name := range sums {
		for _, m := range families[series].GetMetric() {
			spent[name] += m.GetHistogram().GetSampleSum()
		}
	}
	for _, m := range families["millrace_stage_service_seconds"].GetMetric() {
		for _, label := range m.Label {
			switch label.GetValue() {
			case "tokenize":
				spent["tokenize"] += m.GetHistogram().GetSampleSum()
			case "detok":
				spent["detokenize"] += m.GetHistogram().GetSampleSum()
			}
		}
	}
	return spent, nil
}

// step is one of /debug/pipeline.
type step struct {
	Number uint64        `json:"number"`
	At     time.Time     `json:"at"`
	Took   time.Duration `json:"took"`
	Decode int           `json:"decode_rows"`
	Prompt int           `json:"prompt_rows"`
}

// watch returns steps that ran until done is closed, by number.
func watch(ctx context.Context, url string, done <-chan struct{}) map[uint64]step {
	begin, seen := time.Now(), map[uint64]step{}
	for last := false; ; {
		for _, s := range lastSteps(ctx, url) {
			if s.At.After(begin) {
				seen[s.Number] = s
			}
		}
		if last {
			return seen
		}
		select {
		case <-done:
			last = true
		case <-time.After(poll):
		}
	}
}

// lastSteps returns none of a server that does not answer: the requests fail then.
func lastSteps(ctx context.Context, url string) []step {
	r, err := get(ctx, url+"/debug/pipeline")
	if err != nil {
		return nil
	}
	defer r.Body.Close() //nolint:errcheck // it was read only
	var state struct {
		Steps []step `json:"steps"`
	}
	_ = json.NewDecoder(r.Body).Decode(&state) // as above
	return state.Steps
}

func get(ctx context.Context, url string) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return nil, err
	}
	r, err := http.DefaultClient.Do(request)
	if err == nil && r.StatusCode != http.StatusOK {
		_ = r.Body.Close() // it is not read
		err = fmt.Errorf("%s: found status %s, expected 200", url, r.Status)
	}
	return r, err
}
