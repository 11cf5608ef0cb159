package node

import (
	"context"
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/compute/sample"
)

// scoredRequest is a request for the log probabilities of its prompt.
func scoredRequest(id string, prompt []int32, tokens, top int) *api.Request {
	r := tokensRequest(id, prompt, tokens)
	r.PromptLogprobs = &top
	return r
}

// requireScores requires the log probabilities of a prompt on the test device, whose logits are 0 but for one.
func requireScores(t *testing.T, d *testDevice, prompt []int32, got []api.TokenLogprob) {
	t.Helper()
	require.Len(t, got, len(prompt))
	require.True(t, math.IsNaN(float64(got[0].Logprob)))
	norm := math.Log(math.E + float64(d.vocab-1))
	for i, token := range prompt {
		require.Equal(t, token, got[i].Token)
		if i == 0 {
			continue
		}
		likeliest, want, rank := nextToken(prompt[i-1], i-1, d.vocab), -norm, 2
		if likeliest == token {
			want, rank = 1-norm, 1
		}
		require.InDelta(t, want, got[i].Logprob, 1e-5, "token %d", i)
		require.Equal(t, rank, got[i].Rank, "token %d", i)
		require.Len(t, got[i].Top, 2)
		require.Equal(t, likeliest, got[i].Top[0].Token)
		require.NotNil(t, got[i].Bytes)
	}
}

// firstEvents reads a stream to its end.
func firstEvents(t *testing.T, s api.Stream) (prompt []api.TokenLogprob, tokens []int32, last api.Event) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for !last.Done {
		e, err := s.Next(ctx)
		require.NoError(t, err)
		require.NoError(t, e.Err)
		if e.Extra != nil {
			require.Nil(t, prompt, "the prompt is scored once")
			require.Empty(t, tokens, "on the first event")
			prompt = e.Extra.Prompt
		}
		tokens, last = append(tokens, e.Tokens...), e
	}
	return prompt, tokens, last
}

// mostlyLikely is a prompt of the test device's own tokens, but for some.
func mostlyLikely(d *testDevice, i, n int) []int32 {
	prompt := []int32{int32(i)}
	for at := range n - 1 {
		token := nextToken(prompt[at], at, d.vocab)
		if at%5 == 4 {
			token = (token + 1) % int32(d.vocab)
		}
		prompt = append(prompt, token)
	}
	return prompt
}

func TestPromptsAreScoredInAnyChunks(t *testing.T) {
	d := newTestDevice(200)
	p := start(t, testConfig(t, d)) // 8 outputs in a step
	var streams []api.Stream
	var prompts [][]int32
	for i := range 20 {
		prompts = append(prompts, mostlyLikely(d, i, 1+i*13))
		r := scoredRequest(fmt.Sprint(i), prompts[i], 10, 2)
		switch i % 4 {
		case 1:
			r = tokensRequest(fmt.Sprint(i), prompts[i], 40) // a neighbor
		case 2:
			r.Pool, r.MaxTokens = &api.Pool{Pooling: api.PoolNone}, 1
		}
		s, err := p.Submit(context.Background(), r)
		require.NoError(t, err)
		streams = append(streams, s)
	}
	for i, s := range streams {
		scores, tokens, last := firstEvents(t, s)
		switch i % 4 {
		case 1:
			require.Nil(t, scores)
			require.Equal(t, expected(d, prompts[i], 40), tokens)
			continue
		case 2:
			require.Empty(t, tokens)
			require.Zero(t, last.Usage.CompletionTokens)
		default:
			require.Equal(t, expected(d, prompts[i], 10), tokens)
		}
		require.Equal(t, api.FinishLength, last.Finish)
		require.Zero(t, last.Usage.CachedTokens)
		requireScores(t, d, prompts[i], scores)
	}
	requireClean(t, p, d)
}

// TestAPromptIsNotScoredForEachChoice: the first one computes it whole, and another one for the rest.
func TestAPromptIsNotScoredForEachChoice(t *testing.T) {
	const n, tokens = 16, 161
	d := newTestDevice(2000)
	p := start(t, testConfig(t, d))
	r := scoredRequest("0", mostlyLikely(d, 3, tokens), 10, 2)
	r.N = n
	s, err := p.Submit(t.Context(), r)
	require.NoError(t, err)
	got := make([][]int32, n)
	var scores []api.TokenLogprob
	for done := false; !done; {
		e, err := s.Next(t.Context())
		require.NoError(t, err)
		require.NoError(t, e.Err)
		if e.Extra != nil {
			require.Zero(t, e.Choice)
			require.Nil(t, scores)
			scores = e.Extra.Prompt
		}
		got[e.Choice], done = append(got[e.Choice], e.Tokens...), e.Done
	}
	requireScores(t, d, r.PromptTokens, scores)
	for i := range got {
		require.Equal(t, expected(d, r.PromptTokens, 10), got[i], "choice %d", i)
	}
	require.GreaterOrEqual(t, p.worker.Counts().PrefixHits, uint64((n-2)*(tokens-1)), "tokens of prompts that were found")
	requireClean(t, p, d)
}

func TestScoresSurviveTheDeathOfTheirWorker(t *testing.T) {
	c := newTestNodes(t)
	gateway, _, _, compute := four(c, 2, gated)
	var streams []api.Stream
	for i := range 12 {
		s, err := gateway.Submit(context.Background(), scoredRequest(fmt.Sprint(i), mostlyLikely(compute[0].device, i, 1+i*11), 10, 2))
		require.NoError(t, err)
		streams = append(streams, s)
	}
	untilSteps(t, compute, 5)
	compute[0].kill()
	compute[1].device.open1()
	for i, s := range streams {
		prompt := mostlyLikely(compute[1].device, i, 1+i*11)
		scores, tokens, _ := firstEvents(t, s)
		requireScores(t, compute[1].device, prompt, scores)
		require.Equal(t, expected(compute[1].device, prompt, 10), tokens, "stream %d", i)
	}
}

func TestABudgetOfReasoningHoldsAcrossWorkers(t *testing.T) {
	c := newTestNodes(t)
	gateway, _, _, compute := four(c, 2, gated)
	d := compute[0].device
	const budget, end, tokens = 30, 4094, 100
	bounded := func(i int) *api.Request {
		r := tokensRequest(fmt.Sprint(i), []int32{int32(i), 7}, tokens)
		start := expected(d, r.PromptTokens, 3)[2] // the third token begins the reasoning
		r.Sampling.Thinking = &sample.Thinking{Budget: budget, Start: start, End: end}
		return r
	}
	want := func(i int) []int32 {
		prompt := []int32{int32(i), 7}
		out := expected(d, prompt, 3+budget)
		require.NotContains(t, out, int32(end))
		out = append(out, end)
		return append(out, expected(d, append(prompt, out...), tokens-len(out))...)
	}
	var streams []api.Stream
	for i := range 8 {
		s, err := gateway.Submit(context.Background(), bounded(i))
		require.NoError(t, err)
		streams = append(streams, s)
	}
	untilSteps(t, compute, 20) // inside the reasoning
	compute[0].kill()
	compute[1].device.open1()
	for i, s := range streams {
		got, last, err := read(s)
		require.NoError(t, err)
		require.NoError(t, last.Err)
		require.Equal(t, want(i), got, "stream %d", i)
	}
}

func TestNoAnswerEndsBeforeItsLeastTokens(t *testing.T) {
	d := newTestDevice(64)
	p := start(t, testConfig(t, d))
	prompt := []int32{3, 4}
	stop := expected(d, prompt, 3)[2]
	r := tokensRequest("free", prompt, 20)
	r.StopTokens = []int32{stop}
	s, err := p.Submit(context.Background(), r)
	require.NoError(t, err)
	tokens, last, err := read(s)
	require.NoError(t, err)
	require.Equal(t, api.FinishStop, last.Finish)
	require.Len(t, tokens, 3)

	r = tokensRequest("bound", prompt, 20)
	r.StopTokens, r.Sampling.MinTokens = []int32{stop}, 10
	s, err = p.Submit(context.Background(), r)
	require.NoError(t, err)
	tokens, _, err = read(s)
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(tokens), 10)
	require.NotContains(t, tokens[:10], stop)
}
