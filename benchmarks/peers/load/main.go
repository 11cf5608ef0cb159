// Command load keeps a number of clients busy with completions of an OpenAI-style
// server and prints one JSON object. It is the same for every system. To cost little
// it parses only the last events of a stream, or all of them where the text is needed for the next turn.
// It must not know which system it measures.
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
	turns             int
	seed              uint64
	deadline          time.Duration
}

// report is what load prints. Times are in seconds, gaps between two tokens of
// one stream. LaterTTFT50 is of the turns after the first, 0 with one turn.
type report struct {
	Requests     int     `json:"requests"`
	PromptTokens float64 `json:"prompt_tokens_mean"`
	Tokens       int     `json:"tokens"`
	Seconds      float64 `json:"seconds"`
	TPS          float64 `json:"tokens_per_second"`
	TTFT50       float64 `json:"ttft_p50"`
	TTFT99       float64 `json:"ttft_p99"`
	LaterTTFT50  float64 `json:"later_ttft_p50"`
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
	flag.IntVar(&o.turns, "turns", 1,
		"requests of a conversation: each repeats the text of the one before, its answer, and adds some words")
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
	if min(o.clients, o.requests, o.words, o.tokens, o.turns) < 1 {
		return nil, fmt.Errorf("--clients %d, --requests %d, --words %d, --tokens %d, --turns %d: expected at least 1",
			o.clients, o.requests, o.words, o.tokens, o.turns)
	}
	if o.requests%o.turns != 0 {
		return nil, fmt.Errorf("--requests %d, --turns %d: expected whole conversations", o.requests, o.turns)
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
			conversations := int64(o.requests / o.turns)
			for i := next.Add(1) - 1; i < conversations && ctx.Err() == nil; i = next.Add(1) - 1 {
				turns := answers[i*int64(o.turns):][:o.turns]
				if err := converse(ctx, client, o, uint64(i), turns); err != nil {
					cancel(fmt.Errorf("conversation %d: %w", i, err))
				}
			}
		})
	}
	clients.Wait()
	took := time.Since(start).Seconds()
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	return summarize(answers, o.turns, took), nil
}

func summarize(answers []answer, turns int, took float64) *report {
	r := report{Requests: len(answers), Seconds: took}
	var first, later, gaps []float64
	for i, a := range answers {
		r.PromptTokens += float64(a.usage.Prompt) / float64(len(answers))
		r.Tokens += a.usage.Completion
		first = append(first, a.first.Seconds())
		if i%turns > 0 {
			later = append(later, a.first.Seconds())
		}
		for _, g := range a.gaps {
			gaps = append(gaps, g.Seconds())
		}
	}
	r.TPS = float64(r.Tokens) / took
	r.TTFT50, r.TTFT99 = percentile(first, 50), percentile(first, 99)
	r.LaterTTFT50 = percentile(later, 50)
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
	text  strings.Builder // of all events, where there is a next turn
	usage struct {
		Prompt     int `json:"prompt_tokens"`
		Completion int `json:"completion_tokens"`
	}
}

var errTokens = errors.New("unexpected number of tokens")

// turnWords are the words that a turn adds to those before it.
const turnWords = 12

// converse requests one answer per turn. The prompt of a turn is the one before it, its answer, and new words.
func converse(ctx context.Context, client *http.Client, o *options, number uint64, turns []answer) error {
	var text strings.Builder
	text.WriteString(prompt(o.words, o.seed, number))
	for i := range turns {
		if i > 0 {
			text.WriteString(turns[i-1].text.String() + " " + prompt(turnWords, o.seed+uint64(i), number))
		}
		if err := turns[i].ask(ctx, client, o, text.String()); err != nil {
			return fmt.Errorf("turn %d: %w", i, err)
		}
	}
	return nil
}

// ask streams one completion.
func (a *answer) ask(ctx context.Context, client *http.Client, o *options, text string) error {
	body, err := json.Marshal(map[string]any{
		"model": o.model, "prompt": text, "max_tokens": o.tokens,
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
	if err := a.read(resp.Body, start, o.turns > 1); err != nil {
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

// read takes the times of the events, the usage of the last one, and the text where it is wanted.
func (a *answer) read(body io.Reader, start time.Time, wantText bool) error {
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
		if wantText {
			if err := a.addText(data); err != nil {
				return err
			}
		}
	}
	if err := lines.Err(); err != nil {
		return err
	}
	return io.ErrUnexpectedEOF
}

func (a *answer) addText(event []byte) error {
	var e struct {
		Choices []struct{ Text string }
	}
	if err := json.Unmarshal(event, &e); err != nil {
		return err
	}
	for _, c := range e.Choices {
		a.text.WriteString(c.Text)
	}
	return nil
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
