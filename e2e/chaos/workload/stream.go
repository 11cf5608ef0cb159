// Package workload runs many different streams at a server, as clients do, and
// compares the answers with those of an undisturbed run. It must not know the faults.
package workload

import (
	"fmt"
	"math/rand/v2"
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
)

var kinds = []string{"greedy", "sampled", "penalties", "stop", "n=2", "logprobs", KindChat, KindLong, kindBeams, KindUnseeded, kindWhole}

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

// Streams returns n streams with a mean length of tokens, alternately over HTTP and NATS, of some kinds, or
// of all if none is named. Neighbors have different tenants.
func Streams(n, tokens int, seed uint64, tenants []string, some ...string) []*Stream {
	if len(some) == 0 {
		some = kinds
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

func (s *Stream) String() string {
	return fmt.Sprintf("stream %d (%s over %s)", s.ID, s.Kind, s.Way.Over)
}
