package node

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/compute/sample"
)

// TestBadWordsTravel: the words of a request become tokens in one process, and are left out by another one.
func TestBadWordsTravel(t *testing.T) {
	gateway, _, _, _ := four(newTestNodes(t), 1, nil)
	request := func(id string) *api.Request {
		r := tokensRequest(id, nil, 20)
		r.Prompt = "Once upon a time"
		return r
	}
	tokens := func(r *api.Request) []int32 {
		s, err := gateway.Submit(context.Background(), r)
		require.NoError(t, err)
		tokens, _, err := read(s)
		require.NoError(t, err)
		return tokens
	}
	free, word, id := tokens(request("free")), "", int32(-1)
	for _, token := range free { // one that is alone what its text becomes
		text, err := gateway.Detokenize(context.Background(), "m", []int32{token})
		require.NoError(t, err)
		if ids, err := gateway.Tokenize(context.Background(), &api.TokenizeRequest{Prompt: text}); err == nil &&
			equal(ids, []int32{token}) {
			word, id = text, token
		}
	}
	require.NotEmpty(t, word)
	for _, prompt := range [][]int32{nil, {5, 7}} {
		for _, breakers := range [][]string{nil, {"\n"}} {
			r := request(fmt.Sprint(prompt, breakers))
			if prompt != nil {
				r.Prompt, r.PromptTokens = "", prompt
			}
			r.Sampling.BadWords = []string{word}
			r.Sampling.DRY = &sample.DRY{Multiplier: 1, Base: 2, Last: -1, Breakers: breakers}
			got := tokens(r)
			require.Len(t, got, 20)
			require.NotContains(t, got, id)
		}
	}
}

// TestSamplersThatReadTheOutputContinueAtAnotherWorker: over NATS, with two choices and draft tokens, to the tokens of one process.
func TestSamplersThatReadTheOutputContinueAtAnotherWorker(t *testing.T) {
	const length = 200
	device := func() *testDevice {
		d := newTestDevice(400)
		d.round = 40
		return d
	}
	request := func(i int) *api.Request {
		r := tokensRequest(fmt.Sprint(i), []int32{5, 7, 5}, length)
		r.N = 2
		r.Sampling = sample.Params{Temperature: 0.15, TopNSigma: 60, Seed: uint64(i), XTC: sample.XTC{Probability: 0.3, Threshold: 0.001},
			DRY: &sample.DRY{Multiplier: 0.05, Base: 1.1, Last: -1, Breakers: []string{"e"}}, BadWords: []string{"a", "the"}}
		return r
	}
	alone := start(t, testConfig(t, device()))
	c := newTestNodes(t)
	gateway, _, _, compute := four(c, 2, func(cfg *Config) {
		cfg.Model.(*testDevice).round = 40
		gated(cfg)
		cfg.Sched.DraftRows = 8
	})
	var streams []api.Stream
	for i := range 4 {
		s, err := gateway.Submit(context.Background(), request(i))
		require.NoError(t, err)
		streams = append(streams, s)
	}
	untilSteps(t, compute, 20)
	compute[0].kill()
	compute[1].device.open1()
	plain := request(0)
	plain.Sampling.DRY, plain.Sampling.BadWords = nil, nil
	other := answers(t, alone, plain)
	for i, s := range streams {
		want := answers(t, alone, request(i))
		require.Equal(t, want, choices(t, s, 2))
		require.Len(t, want[0].tokens, length)
		require.NotEqual(t, want, other, "the samplers have an effect")
	}
	requireClean(t, compute[1].Node, compute[1].device)
}
