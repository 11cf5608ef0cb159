package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/actors/node"
	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/compute/sample"
)

// answerSoFar is the part of one choice that a reader has.
type answerSoFar struct {
	tokens   []int32
	text     string
	logprobs []api.TokenLogprob
	finish   api.Finish
}

// readEvents reads a stream to its end, or n events of it.
func readEvents(t *testing.T, s api.Stream, n int) []api.Event {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var list []api.Event
	for len(list) != n {
		e, err := s.Next(ctx)
		if errors.Is(err, io.EOF) {
			return list
		}
		require.NoError(t, err)
		require.NoError(t, e.Err)
		list = append(list, e)
	}
	return list
}

func choicesOf(n int, events []api.Event) []answerSoFar {
	list := make([]answerSoFar, n)
	for _, e := range events {
		c := &list[e.Choice]
		c.tokens, c.text = append(c.tokens, e.Tokens...), c.text+e.Text
		c.logprobs = append(c.logprobs, e.Logprobs...)
		if e.Finish != "" {
			c.finish = e.Finish
		}
	}
	return list
}

// resumable are requests of every kind whose answers must not change when they continue
// elsewhere.
func resumable() map[string]func() *api.Request {
	base := func(n int) *api.Request {
		return &api.Request{ID: "r", Model: "tiny-chat", N: n, Prompt: "Once upon a time", MaxTokens: 60,
			TopLogprobs: -1, IgnoreEOS: true, Arrival: time.Now()}
	}
	with := func(n int, f func(*api.Request)) func() *api.Request {
		return func() *api.Request {
			r := base(n)
			f(r)
			return r
		}
	}
	return map[string]func() *api.Request{
		"greedy": with(1, func(*api.Request) {}),
		"seeded": with(2, func(r *api.Request) { r.Sampling = sample.Params{Temperature: 1.2, TopP: 0.95, Seed: 7} }),
		"penalties": with(1, func(r *api.Request) {
			r.Sampling = sample.Params{Temperature: 1, RepetitionPenalty: 1.3, PresencePenalty: 0.5, FrequencyPenalty: 0.7, Seed: 3}
		}),
		"llama.cpp's samplers and bad words": with(1, func(r *api.Request) {
			r.Sampling = allSamplers(3)
		}),
		"logprobs": with(1, func(r *api.Request) { r.TopLogprobs = 3 }),
		"characters of several tokens": with(1, func(r *api.Request) {
			r.Prompt, r.Sampling = "日本語で: ", sample.Params{Temperature: 2, Seed: 11}
		}),
	}
}

// allSamplers are parameters under which the tokens so far decide about the next one in every way.
func allSamplers(seed uint64) sample.Params {
	dry := sample.DefaultDRY()
	dry.Multiplier, dry.Allowed = 0.8, 1
	return sample.Params{Temperature: 1.1, TopK: 100, Seed: seed, DRY: &dry, TopNSigma: 3,
		XTC:      sample.XTC{Probability: 0.5, Threshold: 0.05},
		BadWords: []string{"the", "little girl", "."}}
}

func TestAnAnswerThatGoesOnElsewhereIsTheSameToTheByte(t *testing.T) {
	p := startPipeline(t, size{rows: 64, chunk: 16, batch: 8})
	for name, request := range resumable() {
		t.Run(name, func(t *testing.T) {
			requireResumes(t, p, request)
		})
	}
	t.Run("a stop string split over the cut", func(t *testing.T) {
		stream, err := p.Submit(context.Background(), resumable()["greedy"]())
		require.NoError(t, err)
		text := choicesOf(1, readEvents(t, stream, -1))[0].text
		stop := text[len(text)/2-6 : len(text)/2+6]
		requireResumes(t, p, func() *api.Request {
			r := resumable()["greedy"]()
			r.Stop = []string{stop}
			return r
		})
	})
}

// requireResumes cuts the answer at every event and continues it. In short mode it does so at every seventh one.
func requireResumes(t *testing.T, p *node.Node, request func() *api.Request) {
	t.Helper()
	n := request().N
	stream, err := p.Submit(context.Background(), request())
	require.NoError(t, err)
	all := readEvents(t, stream, -1)
	want := choicesOf(n, all)
	step := 1
	if testing.Short() {
		step = 7
	}
	for cut := 0; cut < len(all); cut += step {
		before := choicesOf(n, all[:cut])
		r := request()
		r.ID = fmt.Sprint("cut ", cut)
		r.Takeover = &api.Progress{}
		for _, c := range before {
			r.Takeover.Choices = append(r.Takeover.Choices, api.ChoiceProgress{Tokens: c.tokens, Finish: c.finish})
		}
		stream, err := p.Submit(context.Background(), r)
		require.NoError(t, err)
		rest := readEvents(t, stream, -1)
		require.Equal(t, uint64(1), rest[0].Seq)
		usage := *rest[len(rest)-1].Usage
		usage.CachedTokens = all[len(all)-1].Usage.CachedTokens // this worker had the prompt and more
		require.Equal(t, *all[len(all)-1].Usage, usage)
		require.Equal(t, want, choicesOf(n, slices.Concat(all[:cut], rest)), "cut after event %d", cut)
	}
}
