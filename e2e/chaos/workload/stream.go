// Package workload runs many different streams at a server, as clients do, and
// compares the answers with those of an undisturbed run. It must not know the faults.
package workload

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/millrace/millrace/client"
)

// Stream is one request of the workload. Its answer depends on nothing else, and is
// the same in every run. The server derives the seed of an unseeded stream from the
// request's id.
type Stream struct {
	ID      int
	Kind    string
	Way     Way
	chat    *client.ChatRequest
	plain   *client.CompletionRequest
	choices int
}

// The kinds of streams, in turn.
const (
	kindWhole = "whole answer" // in one piece, by a client that does not resume
	kindBeams = "beams"

	KindChat     = "chat" // with log probabilities; the only one with a chat template
	KindUnseeded = "unseeded"
	KindLong     = "long prompt"

	kindSchema    = "schema"
	kindRegex     = "regex"
	kindTools     = "tools"
	kindReasoning = "reasoning" // until the tokens end, or a text of a schema begins
)

var kinds = []string{"greedy", "sampled", "penalties", "stop", "n=2", "logprobs", KindChat, KindLong, kindBeams, KindUnseeded, kindWhole}

// Guided are the kinds of streams with a grammar. Their model has a chat template with tools and reasoning.
var Guided = []string{kindSchema, kindRegex, kindTools, kindReasoning}

// Beams is the width of a beam search. Two of the beams are answers.
const Beams = 4

// Unseeded reports whether the server derives the stream's seed.
func (s *Stream) Unseeded() bool { return s.Kind == KindUnseeded }

// Beams returns the number of sequences that a beam search needs at a time; 0 for any other stream.
func (s *Stream) Beams() int {
	if s.Kind == kindBeams {
		return Beams
	}
	return 0
}

var (
	openings = []string{
		"Once upon a time", "The capital of France is", "Count from one to twenty:", "My favorite color is",
		"In the morning the old man", "Water boils at", "The days of the week are", "A story about a bear:",
	}
	questions = []string{
		"What is the capital of the US?", "Count from one to ten.", "Tell me a story about a fox.",
		"What are the days of the week?", "Who are you?",
	}
	stops = []string{" and", " the", " said", " day"}
)

// Kinds are the kinds of streams that Streams makes where it gets none.
func Kinds() []string { return slices.Clone(kinds) }

// Streams returns n streams with a mean length of tokens, alternately over HTTP and NATS, of some kinds, or
// of all if none is named. Neighbors have different tenants.
func Streams(n, tokens int, seed uint64, tenants []string, some ...string) []*Stream {
	if len(some) == 0 {
		some = Kinds()
	}
	random := rand.New(rand.NewPCG(seed, 0))
	streams := make([]*Stream, n)
	for i := range streams {
		kind := some[i/2%len(some)]
		s := &Stream{ID: i, Kind: kind, choices: 1,
			Way: Way{Over: []string{"http", "nats"}[i%2], Tenant: tenants[(i+i/len(tenants))%len(tenants)], Plain: kind == kindWhole}}
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
	case kindBeams:
		sampling.UseBeamSearch, sampling.NumBeams, sampling.N, s.choices = true, Beams, 2, 2
		tokens = tokens/4 + 1 // its text comes at the end, so it cannot continue from its middle
	case KindUnseeded:
		sampled(1, 1)
		sampling.Seed = nil
	case KindLong:
		more := make([]string, 20+random.IntN(20))
		for i := range more {
			more[i] = openings[random.IntN(len(openings))]
		}
		opening += " " + strings.Join(more, ". ")
	case kindRegex:
		sampled(1, 1)
		sampling.IgnoreEOS = false
		sampling.StructuredOutputs = json.RawMessage(`{"regex":"( [a-z]{1,9}){3,60}\\. [0-9]{4}-[0-9]{2}-[0-9]{2}T00:00:00Z"}`)
	case kindSchema, kindTools, kindReasoning:
		sampled(1, 0.98)
		sampling.IgnoreEOS = false
		s.chat = guided(s.Kind, questions[random.IntN(len(questions))], sampling)
		s.chat.MaxCompletionTokens = tokens
		return
	case KindChat:
		sampled(0.5, 1)
		s.chat = &client.ChatRequest{
			Messages: []client.Message{{Role: "user", Content: questions[random.IntN(len(questions))]}},
			Logprobs: true, MaxCompletionTokens: tokens, Sampling: sampling,
		}
		return
	}
	s.plain = &client.CompletionRequest{Prompt: opening, MaxTokens: tokens, Logprobs: logprobs, Sampling: sampling}
}

// story is a schema with keys and values that are the only ones possible, so that tokens are forced.
const story = `{"type":"object","properties":{"title":{"type":"string","minLength":1,"maxLength":40},"kind_of_story":{"enum":["fairy tale","true story"]},` +
	`"chapters":{"type":"array","minItems":1,"maxItems":4,"items":{"type":"object","properties":{"number":{"type":"integer","minimum":1,"maximum":99},` +
	`"text":{"type":"string","maxLength":200}},"required":["number","text"],"additionalProperties":false}}},` +
	`"required":["title","kind_of_story","chapters"],"additionalProperties":false}`

// guided returns a chat of a kind with a grammar.
func guided(kind, question string, sampling client.Sampling) *client.ChatRequest {
	r := &client.ChatRequest{Messages: []client.Message{{Role: "user", Content: question}}, Sampling: sampling}
	if kind == kindTools {
		r.ToolChoice = "required"
		r.Tools = []json.RawMessage{
			json.RawMessage(`{"type":"function","function":{"name":"write_story","strict":true,"parameters":` + story + `}}`),
			json.RawMessage(`{"type":"function","function":{"name":"get_weather","parameters":{"type":"object","properties":{"city":{"type":"string","maxLength":30},` +
				`"days":{"type":"integer"}},"required":["city"]}}}`),
		}
		return r
	}
	r.ResponseFormat = json.RawMessage(`{"type":"json_schema","json_schema":{"name":"story","strict":true,"schema":` + story + `}}`)
	if kind == kindReasoning {
		r.Messages = append(r.Messages, client.Message{Role: "assistant", Content: "<think>"})
		r.ContinueFinal = true
	}
	return r
}

func (s *Stream) String() string {
	return fmt.Sprintf("stream %d (%s over %s)", s.ID, s.Kind, s.Way.Over)
}
