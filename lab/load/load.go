// Package load measures a server of OpenAI's API: requests arrive at random moments at a mean rate, whether earlier ones have ended or
// not, and their times are those of the client. It must not know how a server works.
package load

import (
	"context"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/millrace/millrace/client"
)

// Options are the load and what counts as good.
type Options struct {
	Model    string
	Rate     float64 // requests per second, in the mean; 0: all at once
	Requests int
	Prompt   int // words of a prompt, in the mean
	Gen      int // tokens of an answer at most
	Seed     uint64
	TTFT     time.Duration // of a good answer, at most
	TPOT     time.Duration // of a good answer, at most
}

// Arrivals returns the moments of the requests, from 0: those of a Poisson process.
func (o *Options) Arrivals() []time.Duration {
	r := rand.New(rand.NewPCG(o.Seed, 1))
	at := make([]time.Duration, o.Requests)
	var now float64
	for i := range at {
		if o.Rate > 0 {
			now += r.ExpFloat64() / o.Rate
		}
		at[i] = time.Duration(now * float64(time.Second))
	}
	return at
}

// words are common ones, which most tokenizers have as one token.
var words = strings.Fields("the of and to in a is that for it as was with be by on not he his but at are this have from or had an they which one you were all her she there would their we him been has when who will no more if out so up said what its about than into them can only other time new some could these two may first then do any like my now over such our man me even most made after also well")

// Prompts returns the prompts of the requests. No two begin alike, so that no cache of prefixes has them.
func (o *Options) Prompts() []string {
	r := rand.New(rand.NewPCG(o.Seed, 2))
	list := make([]string, o.Requests)
	for i := range list {
		n := max(1, int(math.Round(float64(o.Prompt)*(0.5+r.Float64())))) // from half to one and a half times the mean
		var b strings.Builder
		fmt.Fprintf(&b, "%d.", r.Uint32())
		for range n {
			b.WriteByte(' ')
			b.WriteString(words[r.IntN(len(words))])
		}
		list[i] = b.String()
	}
	return list
}

// Answer is what a client saw of one request. Times are from its beginning.
type Answer struct {
	Prompt, Tokens int // by the server's usage
	Chunks         []time.Duration
	End            time.Duration
	Err            error
}

// ttft returns the time to the first token.
func (a *Answer) ttft() time.Duration { return a.Chunks[0] }

// tpot returns the mean time of a token after the first one.
func (a *Answer) tpot() time.Duration {
	if a.Tokens < 2 {
		return 0
	}
	return (a.Chunks[len(a.Chunks)-1] - a.Chunks[0]) / time.Duration(a.Tokens-1)
}

// Distribution is a set of times, in seconds.
type Distribution struct {
	Mean float64 `json:"mean"`
	P50  float64 `json:"p50"`
	P90  float64 `json:"p90"`
	P99  float64 `json:"p99"`
	Max  float64 `json:"max"`
}

// distribution sorts values.
func distribution(values []time.Duration) (d Distribution) {
	if len(values) == 0 {
		return d
	}
	slices.Sort(values)
	at := func(q float64) float64 { return values[max(0, int(math.Ceil(q*float64(len(values))))-1)].Seconds() }
	var sum time.Duration
	for _, v := range values {
		sum += v
	}
	return Distribution{(sum / time.Duration(len(values))).Seconds(), at(.5), at(.9), at(.99), at(1)}
}

// Report is the result of a run.
type Report struct {
	Requests     int          `json:"requests"`
	Failed       int          `json:"failed"`
	Errors       []string     `json:"errors,omitempty"` // distinct ones, with their number
	Seconds      float64      `json:"seconds"`
	PromptTokens float64      `json:"prompt_tokens"` // of an answered request, in the mean
	Tokens       float64      `json:"tokens"`        // as PromptTokens
	TokenRate    float64      `json:"tokens_per_second"`
	RequestRate  float64      `json:"requests_per_second"`
	Goodput      float64      `json:"goodput_requests_per_second"` // those within the limits
	GoodShare    float64      `json:"good_share"`
	TTFT         Distribution `json:"ttft_seconds"`
	ITL          Distribution `json:"itl_seconds"` // between two chunks
	TPOT         Distribution `json:"tpot_seconds"`
	Latency      Distribution `json:"latency_seconds"`

	options Options
	ttfts   []time.Duration // sorted
}

// Run sends the requests and waits for their answers.
func Run(ctx context.Context, c client.Client, o Options) (*Report, error) {
	answers := make([]Answer, o.Requests)
	prompts := o.Prompts()
	begin := time.Now()
	var wg sync.WaitGroup
	for i, at := range o.Arrivals() {
		select {
		case <-time.After(time.Until(begin.Add(at))):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		wg.Go(func() { answers[i] = send(ctx, c, &o, prompts[i]) })
	}
	wg.Wait()
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	return Summarize(o, answers, time.Since(begin)), nil
}

func send(ctx context.Context, c client.Client, o *Options, prompt string) (a Answer) {
	begin := time.Now()
	zero := 0.0
	r := client.ChatRequest{Model: o.Model, Messages: []client.Message{{Role: "user", Content: prompt}}, MaxCompletionTokens: o.Gen}
	r.Temperature, r.IgnoreEOS = &zero, true
	for chunk, err := range c.ChatStream(ctx, r) {
		if err != nil {
			a.Err = err
			break
		}
		if u := chunk.Usage; u != nil {
			a.Prompt, a.Tokens = u.PromptTokens, u.CompletionTokens
		}
		if slices.ContainsFunc(chunk.Choices, func(c client.ChunkChoice) bool { return c.Content() != "" || c.Delta.Reasoning != "" }) {
			a.Chunks = append(a.Chunks, time.Since(begin))
		}
	}
	a.End = time.Since(begin)
	if a.Err == nil && len(a.Chunks) == 0 {
		a.Err = fmt.Errorf("the answer has no text")
	}
	return a
}

// Summarize makes the report of answers that came within some time.
func Summarize(o Options, answers []Answer, took time.Duration) *Report {
	r := &Report{Requests: len(answers), Seconds: took.Seconds(), options: o}
	var itl, tpot, latency []time.Duration
	failures := map[string]int{}
	good, prompt, tokens := 0, 0, 0
	for i := range answers {
		a := &answers[i]
		if a.Err != nil {
			r.Failed++
			failures[a.Err.Error()]++
			continue
		}
		r.ttfts = append(r.ttfts, a.ttft())
		for k := 1; k < len(a.Chunks); k++ {
			itl = append(itl, a.Chunks[k]-a.Chunks[k-1])
		}
		tpot, latency = append(tpot, a.tpot()), append(latency, a.End)
		prompt, tokens = prompt+a.Prompt, tokens+a.Tokens
		if a.ttft() <= o.TTFT && a.tpot() <= o.TPOT {
			good++
		}
	}
	for text, n := range failures {
		r.Errors = append(r.Errors, fmt.Sprintf("%d x %s", n, text))
	}
	slices.Sort(r.Errors)
	if answered := float64(len(r.ttfts)); answered > 0 {
		r.PromptTokens, r.Tokens, r.GoodShare = float64(prompt)/answered, float64(tokens)/answered, float64(good)/float64(len(answers))
		r.TokenRate, r.RequestRate, r.Goodput = float64(tokens)/r.Seconds, answered/r.Seconds, float64(good)/r.Seconds
	}
	r.TTFT, r.ITL, r.TPOT, r.Latency = distribution(r.ttfts), distribution(itl), distribution(tpot), distribution(latency)
	return r
}

// Print writes the report for people, with a histogram of the times to the first token.
func (r *Report) Print(out io.Writer) error {
	o := &r.options
	fmt.Fprintf(out, "%d requests in %.1f s, %d failed; prompts of %.0f tokens, answers of %.0f tokens in the mean\n", r.Requests,
		r.Seconds, r.Failed, r.PromptTokens, r.Tokens)
	for _, e := range r.Errors {
		fmt.Fprintf(out, "  %s\n", e)
	}
	fmt.Fprintf(out, "%.2f requests/s, %.0f tokens/s, goodput %.2f requests/s (%.0f%%: first token within %v, then %v for each)\n\n",
		r.RequestRate, r.TokenRate, r.Goodput, 100*r.GoodShare, o.TTFT, o.TPOT)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "ms\tmean\tp50\tp90\tp99\tmax\t")
	for _, row := range []struct {
		name string
		d    Distribution
	}{{"time to first token", r.TTFT}, {"between two chunks", r.ITL}, {"per token after the first", r.TPOT}, {"whole answer", r.Latency}} {
		fmt.Fprintf(w, "%s\t%.1f\t%.1f\t%.1f\t%.1f\t%.1f\t\n", row.name, 1e3*row.d.Mean, 1e3*row.d.P50, 1e3*row.d.P90, 1e3*row.d.P99,
			1e3*row.d.Max)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	_, err := io.WriteString(out, histogram(r.ttfts))
	return err
}

// histogram draws sorted times in classes that double.
func histogram(sorted []time.Duration) string {
	if len(sorted) == 0 {
		return ""
	}
	var b strings.Builder
	b.WriteString("\ntime to first token\n")
	const width = 50
	limit := time.Millisecond
	for limit < sorted[0] {
		limit *= 2
	}
	type class struct {
		limit time.Duration
		n     int
	}
	var classes []class
	most := 0
	for rest := sorted; len(rest) > 0; limit *= 2 {
		n, _ := slices.BinarySearch(rest, limit+1)
		classes = append(classes, class{limit, n})
		rest, most = rest[n:], max(most, n)
	}
	for _, c := range classes {
		fmt.Fprintf(&b, "  up to %7v %s %d\n", c.limit, strings.Repeat("#", (c.n*width+most-1)/most), c.n)
	}
	return b.String()
}
