// Package workload asks many different streams of a server, as clients do, and
// compares the answers with those of an undisturbed run.
package workload

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/millrace/millrace/client"
)

// Stream is one request of the workload. Everything that its answer depends on is
// in it: the same stream has the same answer in every run.
type Stream struct {
	ID      int
	Kind    string
	Over    string // "http", "nats"
	chat    *client.ChatRequest
	plain   *client.CompletionRequest
	choices int
}

// The kinds of streams, in turn.
var kinds = []string{"greedy", "sampled", "penalties", "stop", "n=2", "logprobs", "chat", "long prompt"}

var (
	openings = []string{
		"Once upon a time", "The capital of France is", "Count from one to twenty:", "My favourite colour is",
		"In the morning the old man", "Water boils at", "The days of the week are", "A story about a bear:",
	}
	questions = []string{
		"What is the capital of the US?", "Count from one to ten.", "Tell me a story about a fox.",
		"What are the days of the week?", "Who are you?",
	}
	stops = []string{" and", " the", " said", " day"}
)

// Streams makes n streams, tokens long on average, alternately over HTTP and
// NATS, in all kinds.
func Streams(n, tokens int, seed uint64) []*Stream {
	random := rand.New(rand.NewPCG(seed, 0))
	streams := make([]*Stream, n)
	for i := range streams {
		s := &Stream{ID: i, Kind: kinds[i/2%len(kinds)], Over: []string{"http", "nats"}[i%2], choices: 1}
		s.fill(random, tokens/2+random.IntN(tokens)+1)
		streams[i] = s
	}
	return streams
}

func (s *Stream) fill(random *rand.Rand, tokens int) {
	opening := fmt.Sprintf("%d. %s", random.IntN(1000), openings[random.IntN(len(openings))])
	sampling := client.Sampling{IgnoreEOS: true, TokenIDs: true, Temperature: new(float64)}
	sampled := func(temperature, topP float64) {
		seed := random.Int64()
		sampling.Seed, sampling.Temperature, sampling.TopP = &seed, &temperature, &topP
	}
	var logprobs *int
	switch s.Kind {
	case "sampled":
		sampled(1, 0.95)
	case "penalties":
		sampled(0.8, 1)
		sampling.RepetitionPenalty, sampling.PresencePenalty, sampling.FrequencyPenalty = 1.2, 0.5, 0.3
	case "stop":
		sampled(0.9, 0.9)
		sampling.Stop = []string{stops[random.IntN(len(stops))], "never said"}
	case "n=2":
		sampled(1, 1)
		sampling.N, s.choices = 2, 2
	case "logprobs":
		two := 2
		sampled(0.7, 1)
		logprobs = &two
	case "long prompt":
		more := make([]string, 20+random.IntN(20))
		for i := range more {
			more[i] = openings[random.IntN(len(openings))]
		}
		opening += " " + strings.Join(more, ". ")
	case "chat":
		sampled(0.5, 1)
		s.chat = &client.ChatRequest{
			Messages: []client.Message{{Role: "user", Content: questions[random.IntN(len(questions))]}},
			Logprobs: true, MaxCompletionTokens: tokens, Sampling: sampling,
		}
		return
	}
	s.plain = &client.CompletionRequest{Prompt: opening, MaxTokens: tokens, Logprobs: logprobs, Sampling: sampling}
}

func (s *Stream) String() string { return fmt.Sprintf("stream %d (%s over %s)", s.ID, s.Kind, s.Over) }

// Choice is what a client has of one choice.
type Choice struct {
	Text     string
	Tokens   []int32
	Logprobs map[string][]json.RawMessage // each field's arrays, joined
	Finish   string
}

// Answer is what a client has at the end of a stream.
type Answer struct {
	Choices  []Choice
	Usage    client.Usage
	Err      error
	Arrivals []time.Time // of chunks with tokens
}

// Ask runs a stream to its end. token is called at each chunk with tokens.
func (s *Stream) Ask(ctx context.Context, c client.Client, token func()) *Answer {
	a := &Answer{Choices: make([]Choice, s.choices)}
	for chunk, err := range s.open(ctx, c) {
		if err == nil {
			err = a.add(&chunk)
		}
		if err != nil {
			a.Err = err
			return a
		}
		if len(chunk.Choices) > 0 && len(chunk.Choices[0].TokenIDs) > 0 {
			a.Arrivals = append(a.Arrivals, time.Now())
			token()
		}
	}
	for i, c := range a.Choices {
		if c.Finish == "" {
			a.Err = fmt.Errorf("choice %d has no finish_reason: %w", i, client.ErrCut)
		}
	}
	return a
}

func (s *Stream) open(ctx context.Context, c client.Client) iter.Seq2[client.Chunk, error] {
	if s.chat != nil {
		return c.ChatStream(ctx, *s.chat)
	}
	return c.CompleteStream(ctx, *s.plain)
}

// add appends a chunk.
func (a *Answer) add(chunk *client.Chunk) error {
	if chunk.Usage != nil {
		a.Usage = *chunk.Usage
	}
	for i := range chunk.Choices {
		part := &chunk.Choices[i]
		if part.Index < 0 || part.Index >= len(a.Choices) {
			return fmt.Errorf("found choice %d, expected %d choices", part.Index, len(a.Choices))
		}
		if err := a.Choices[part.Index].add(part); err != nil {
			return err
		}
	}
	return nil
}

func (c *Choice) add(part *client.ChunkChoice) error {
	if c.Finish != "" && (part.Content() != "" || len(part.TokenIDs) > 0) {
		return fmt.Errorf("found %q after the choice's end", part.Content())
	}
	c.Text += part.Content()
	c.Tokens = append(c.Tokens, part.TokenIDs...)
	if part.FinishReason != "" {
		c.Finish = part.FinishReason
	}
	if len(part.Logprobs) == 0 {
		return nil
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(part.Logprobs, &fields); err != nil {
		return fmt.Errorf("logprobs: %w", err)
	}
	for name, field := range fields {
		var list []json.RawMessage
		if err := json.Unmarshal(field, &list); err != nil {
			return fmt.Errorf("logprobs: %s: %w", name, err)
		}
		if c.Logprobs == nil {
			c.Logprobs = map[string][]json.RawMessage{}
		}
		c.Logprobs[name] = append(c.Logprobs[name], list...)
	}
	return nil
}
