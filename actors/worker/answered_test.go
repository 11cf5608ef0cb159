package worker

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/actors/msg"
	"github.com/millrace/millrace/api"
)

func TestTokensAreSentAgainWithTheirLogProbabilities(t *testing.T) {
	a := answered{scored: true, cached: 5}
	for i := range int32(2*mostScores + 3) { // the first two came from another worker
		if a.tokens = append(a.tokens, i); i >= 2 {
			a.scores.keep(score{logprob: -float32(i)})
		}
	}
	n := len(a.tokens)
	require.Len(t, a.scores, mostScores+1)
	require.True(t, a.has(n-mostScores-1))
	require.False(t, a.has(n-mostScores-2), "without log probabilities")
	require.True(t, a.has(n))
	require.False(t, a.has(n+1), "it is not there")
	require.Empty(t, a.from(n, 7))
	require.Equal(t, []msg.Token{{Seq: 7, ID: int32(n) - 1, Index: n - 1, Logprob: -float32(n - 1), Cached: 5}}, a.from(n-1, 7))
	a.finish = api.FinishStop
	require.Equal(t, []msg.Token{{Seq: 7, ID: -1, Index: n, Finish: api.FinishStop}}, a.from(n, 7))
	list := a.from(n-mostScores-1, 7)
	require.Len(t, list, mostScores+1)
	require.Equal(t, api.FinishNone, list[0].Finish)
	require.Equal(t, float32(-(n - mostScores - 1)), list[0].Logprob)
	require.True(t, list[mostScores].Stopped)
	require.Equal(t, api.FinishStop, list[mostScores].Finish)

	a = answered{tokens: []int32{4, 5}}
	require.True(t, a.has(0), "of an answer without log probabilities")
	require.Len(t, a.from(0, 7), 2)
}
