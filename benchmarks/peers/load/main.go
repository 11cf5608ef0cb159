// Command load keeps a number of clients busy with completions of an OpenAI-style
// server and prints one JSON object. It is the same for every system. To cost little
// it parses only the last events of a stream. It must not know which system it measures.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

type options struct {
	url, model        string
	clients, requests int
	words, tokens     int
	seed              uint64
	deadline          time.Duration
}

// report is what load prints. Times are in seconds, gaps between two tokens of
// one stream.
type report struct {
	Requests     int     `json:"requests"`
	PromptTokens float64 `json:"prompt_tokens_mean"`
	Tokens       int     `json:"tokens"`
	Seconds      float64 `json:"seconds"`
	TPS          float64 `json:"tokens_per_second"`
	TTFT50       float64 `json:"ttft_p50"`
	TTFT99       float64 `json:"ttft_p99"`
	Gap50        float64 `json:"gap_p50"`
	Gap99        float64 `json:"gap_p99"`
}

func main() {
	var o options
	flag.StringVar(&o.url, "url", "", "the server, such as http://127.0.0.1:8080")
	flag.StringVar(&o.model, "model", "", "the model's name")
	flag.IntVar(&o.clients, "clients", 1, "requests at once")
	flag.IntVar(&o.requests, "requests", 1, "requests in all")
	flag.IntVar(&o.words, "words", 120, "words of a prompt")
	flag.IntVar(&o.tokens, "tokens", 64, "tokens to generate for each")
	flag.Uint64Var(&o.seed, "seed", 1, "seed of the prompts: another one makes prompts that no cache has seen")
	flag.DurationVar(&o.deadline, "deadline", 5*time.Minute, "time for all requests; the rest fail")
	flag.Parse()

	if err := load(&o); err != nil {
		fmt.Fprintln(os.Stderr, "load:", err)
		os.Exit(1)
	}
}

func load(o *options) error {
	ctx, cancel := context.WithTimeout(context.Background(), o.deadline)
	defer cancel()
	r, err := run(ctx, o)
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(r)
}

// run sends all requests; the first one that fails ends it.
func run(ctx context.Context, o *options) (*report, error) {
	if o.clients < 1 || o.requests < 1 || o.words < 1 || o.tokens < 1 {
		return nil, fmt.Errorf("--clients %d, --requests %d, --words %d, --tokens %d: expected at least 1", o.clients, o.requests, o.words, o.tokens)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: o.clients}}
	defer client.CloseIdleConnections()

	answers := make([]answer, o.requests)
	var next atomic.Int64
	var clients sync.WaitGroup
	start := time.Now()
	for range o.clients {
		clients.Go(func() {
			for i := next.Add(1) - 1; i < int64(o.requests) && ctx.Err() == nil; i = next.Add(1) - 1 {
				if err := answers[i].ask(ctx, client, o, uint64(i)); err != nil {
					cancel(fmt.Errorf("request %d: %w", i, err))
				}
			}
		})
	}
	clients.Wait()
	took := time.Since(start).Seconds()
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	return summarize(answers, took), nil
}

func summarize(answers []answer, took float64) *report {
	r := report{Requests: len(answers), Seconds: took}
	var first, gaps []float64
	for _, a := range answers {
		r.PromptTokens += float64(a.usage.Prompt) / float64(len(answers))
		r.Tokens += a.usage.Completion
		first = append(first, a.first.Seconds())
		for _, g := range a.gaps {
			gaps = append(gaps, g.Seconds())
		}
	}
	r.TPS = float64(r.Tokens) / took
	r.TTFT50, r.TTFT99 = percentile(first, 50), percentile(first, 99)
	r.Gap50, r.Gap99 = percentile(gaps, 50), percentile(gaps, 99)
	return &r
}

// percentile is the smallest value that p percent do not exceed; 0 of none.
func percentile(values []float64, p int) float64 {
	if len(values) == 0 {
		return 0
	}
	slices.Sort(values)
	return values[max((len(values)*p+99)/100-1, 0)]
}

type answer struct {
	first time.Duration
	gaps  []time.Duration
	usage struct {
		Prompt     int `json:"prompt_tokens"`
		Completion int `json:"completion_tokens"`
	}
}

var errTokens = errors.New("unexpected number of tokens")

// ask streams one completion.
func (a *answer) ask(ctx context.Context, client *http.Client, o *options, number uint64) error {
	body, err := json.Marshal(map[string]any{
		"model": o.model, "prompt": prompt(o.words, o.seed, number), "max_tokens": o.tokens,
		"temperature": 0, "ignore_eos": true, "stream": true, "stream_options": map[string]bool{"include_usage": true},
	})
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, o.url+"/v1/completions", bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	// Without a value it is not sent, but lets the transport repeat a request
	// that met a connection which the server was closing.
	req.Header["Idempotency-Key"] = nil
	start := time.Now()
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close() //nolint:errcheck // only read
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
		return fmt.Errorf("%s: %s", resp.Status, bytes.TrimSpace(text))
	}
	if err := a.read(resp.Body, start); err != nil {
		return err
	}
	if a.usage.Completion != o.tokens {
		return fmt.Errorf("%w: found %d, expected %d", errTokens, a.usage.Completion, o.tokens)
	}
	return nil
}

var (
	dataPrefix = []byte("data: ")
	done       = []byte("[DONE]")
)

// read takes the times of the events and the usage of the last one.
func (a *answer) read(body io.Reader, start time.Time) error {
	lines := bufio.NewScanner(body)
	lines.Buffer(nil, 1<<20)
	var last []byte
	at := start
	for lines.Scan() {
		data, ok := bytes.CutPrefix(lines.Bytes(), dataPrefix)
		if !ok {
			continue
		}
		if bytes.Equal(data, done) {
			var final struct{ Usage any }
			final.Usage = &a.usage
			return json.Unmarshal(last, &final)
		}
		now := time.Now()
		if at.Equal(start) {
			a.first = now.Sub(start)
		} else {
			a.gaps = append(a.gaps, now.Sub(at))
		}
		at, last = now, append(last[:0], data...)
	}
	if err := lines.Err(); err != nil {
		return err
	}
	return io.ErrUnexpectedEOF
}

var words = strings.Fields(`time year people way day man thing woman life child world school state family student group
country problem hand part place case week company system program question work government number night point home
water room mother area money story fact month lot right study book eye job word business issue side kind head house
service friend father power hour game line end member law car city community name president team minute idea`)

// prompt is count random words.
func prompt(count int, seed, number uint64) string {
	r := rand.New(rand.NewPCG(seed, number))
	chosen := make([]string, count)
	for i := range chosen {
		chosen[i] = words[r.IntN(len(words))]
	}
	return strings.Join(chosen, " ")
}
