package gateway

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/actors/msg"
	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/tools"
)

func decisionRequest(answers ...string) *api.Request {
	r := apiRequest(1, 1)
	r.Messages, r.Pool = []api.Message{{Role: "user", Content: "?"}}, &api.Pool{Pooling: api.PoolLogprobs, Answers: answers}
	return r
}

// TestEachInnerNodeOfTheAnswersIsReadOnce, one after the other, after the same prompt, also where a worker is lost in between.
func TestEachInnerNodeOfTheAnswersIsReadOnce(t *testing.T) {
	r := newRequest(decisionRequest("a", "b c", "b d e", "b"), modelLimits{context: 100, pool: 100, vocab: 10})
	require.NoError(t, r.tokenized(prompt{ids: []int32{8, 9}, answers: [][]int32{{1}, {2, 3}, {2, 4, 5}, {2}}}))
	next := seqs()
	values := map[string][]float32{"[8 9]": {-1, -2}, "[8 9 2]": {-3, -4}, "[8 9 2 4]": {-5}}
	var read []string
	var last api.Event
	for lost := false; !last.Done; {
		list := startAll(r, next)
		require.Len(t, list, 1, "one place of the queue")
		g := list[0]
		require.Equal(t, api.PoolLogprobs, g.Pool.Pooling)
		require.Equal(t, len(read) > 0 && !slices.Equal(g.Prompt, r.prompt), g.Migrated)
		if !lost && len(g.Prompt) == 3 {
			lost = true
			first, err := r.lost(g.Seq, workerDead)
			require.NoError(t, err)
			require.Zero(t, first)
			continue
		}
		name := fmt.Sprint(g.Prompt)
		require.Len(t, g.Pool.Tokens, len(values[name]))
		read = append(read, name)
		e, v := r.text(&msg.Text{Seq: g.Seq, Token: -1, Cached: int32(10 - len(read)), Finish: api.FinishStop,
			Extra: &api.Extra{Vector: values[name]}})
		if v == further {
			require.Empty(t, r.running())
			continue
		}
		require.Equal(t, taken, v)
		last = e
	}
	require.Equal(t, []string{"[8 9]", "[8 9 2]", "[8 9 2 4]"}, read)
	require.Equal(t, api.FinishStop, last.Finish)
	require.Equal(t, []api.AnswerLogprobs{
		{Tokens: []int32{1}, Logprobs: []float32{-1}}, {Tokens: []int32{2, 3}, Logprobs: []float32{-2, -3}},
		{Tokens: []int32{2, 4, 5}, Logprobs: []float32{-2, -4, -5}}, {Tokens: []int32{2}, Logprobs: []float32{-2}},
	}, last.Extra.Answers)
	require.Equal(t, &api.Usage{PromptTokens: 2, CachedTokens: 2}, last.Usage)
}

func TestAnswersThatCannotBeReadAreRefusedByName(t *testing.T) {
	many := make([][]int32, maxReads)
	texts := make([]string, maxReads)
	for i := range many {
		many[i] = []int32{int32(i), 1}
	}
	for _, c := range []struct {
		texts   []string
		tokens  [][]int32
		thought tools.Thought
		want    string
	}{
		{[]string{"a", "b"}, [][]int32{{1, 2}, {1, 2}}, tools.Unsaid, `"a" and "b" have the same tokens`},
		{[]string{"a", "b"}, [][]int32{{1}, {2000}}, tools.Unsaid, `"b": token 0 is 2000, the model has 0..1999`},
		{texts, many, tools.Unsaid, "more than 1024 different beginnings of whole tokens"},
		{[]string{"a", "b"}, [][]int32{{1}, {2}}, tools.Opened, "reasons before it answers"},
	} {
		r := newRequest(decisionRequest(c.texts...), modelLimits{context: 100, pool: 100, vocab: 2000})
		require.ErrorContains(t, r.tokenized(prompt{ids: []int32{1}, answers: c.tokens, thought: c.thought}), c.want)
	}
	long := make([]int32, 100_000) // it is refused at its first tokens
	_, err := newAnswers([]string{"a"}, [][]int32{long}, 2000)
	require.ErrorContains(t, err, "more than 1024 different beginnings")
	r := newRequest(decisionRequest("a", "b"), modelLimits{context: 10, pool: 10, vocab: 10})
	require.ErrorContains(t, r.tokenized(prompt{ids: make([]int32, 8), answers: [][]int32{{1, 2, 3}, {2}}}), "the prompt has 10 tokens")
}

func TestAWorkerThatSendsOtherLogProbabilitiesFailsTheRequest(t *testing.T) {
	r := newRequest(decisionRequest("a", "b"), modelLimits{context: 100, pool: 100, vocab: 10})
	require.NoError(t, r.tokenized(prompt{ids: []int32{8}, answers: [][]int32{{1}, {2}}}))
	g := startAll(r, seqs())
	e, v := r.text(&msg.Text{Seq: g[0].Seq, Token: -1, Finish: api.FinishStop, Extra: &api.Extra{Vector: []float32{-1}}})
	require.Equal(t, taken, v)
	require.True(t, e.Done)
	require.ErrorContains(t, api.Failure(e), "sent 1 log probabilities, expected 2")
}
