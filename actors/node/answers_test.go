package node

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api"
)

// decision is a request for the log probabilities of answers.
func decision(id string) *api.Request {
	r := tokensRequest(id, nil, 1)
	r.Messages = []api.Message{{Role: "user", Content: "Is the number " + id + " even? Answer yes, yesterday, no or New York."}}
	r.Pool = &api.Pool{Pooling: api.PoolLogprobs, Answers: []string{"yes", "yesterday", "no", "New York"}}
	return r
}

func decided(t *testing.T, s api.Stream) []api.AnswerLogprobs {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	e, err := s.Next(ctx)
	require.NoError(t, err)
	require.NoError(t, e.Err)
	require.True(t, e.Done, "one event")
	require.Equal(t, api.FinishStop, e.Finish)
	require.Zero(t, e.Usage.CompletionTokens)
	require.Len(t, e.Extra.Answers, 4)
	return e.Extra.Answers
}

// TestDecisionsSurviveTheDeathOfTheirWorker: with the same bits as alone.
func TestDecisionsSurviveTheDeathOfTheirWorker(t *testing.T) {
	const n = 12
	d := newTestDevice(4096)
	alone := start(t, testConfig(t, d))
	var want [n][]api.AnswerLogprobs
	for i := range want {
		s, err := alone.Submit(t.Context(), decision(fmt.Sprint(i)))
		require.NoError(t, err)
		want[i] = decided(t, s)
		require.Greater(t, len(want[i][3].Tokens), 1, "several reads")
	}
	requireClean(t, alone, d)

	c := newTestNodes(t)
	gateway, _, _, compute := four(c, 2, gated)
	var streams []api.Stream
	for i := range n {
		s, err := gateway.Submit(context.Background(), decision(fmt.Sprint(i)))
		require.NoError(t, err)
		streams = append(streams, s)
	}
	untilSteps(t, compute, 3)
	compute[0].kill()
	compute[1].device.open1()
	for i, s := range streams {
		require.Equal(t, want[i], decided(t, s), "decision %d", i)
	}
}

func TestAnswersNeedAChatAndTokensOfTheirOwn(t *testing.T) {
	d := newTestDevice(4096)
	p := start(t, testConfig(t, d))
	text := decision("text")
	text.Messages, text.Prompt = nil, "a"
	beside := decision("beside")
	beside.Pool.Tokens = []int32{1}
	none := decision("none")
	none.Pool.Answers = nil
	for _, r := range []*api.Request{text, beside, none} {
		_, err := p.Submit(t.Context(), r)
		require.Equal(t, api.CodeInvalid, api.AsError(err).Code, r.ID)
	}
	same := decision("same")
	same.Pool.Answers = []string{"yes", "yes"}
	s, err := p.Submit(t.Context(), same)
	require.NoError(t, err)
	e, err := s.Next(t.Context())
	require.NoError(t, err)
	require.ErrorContains(t, api.Failure(e), `"yes" and "yes" have the same tokens`)
}
