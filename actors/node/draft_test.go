package node

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/metrics/metricstest"
)

// TestDraftTokensEndWhereTheAnswerDoes: answers of every length, and stop tokens among draft tokens, over
// a text that goes round, of which nearly every draft token is right.
func TestDraftTokensEndWhereTheAnswerDoes(t *testing.T) {
	const round, draftRows = 10, 8
	d := newTestDevice(64)
	d.round = round
	cfg := testConfig(t, d)
	cfg.Sched.DraftRows = draftRows
	p := start(t, cfg)
	prompt := []int32{7, 8, 9, 0, 1, 2}
	text := make([]int32, 100)
	for i := range text {
		text[i] = int32(3+i) % round
	}
	tokens := 0
	ask := func(n int, stop []int32) (answer []int32, last api.Event) {
		r := tokensRequest(fmt.Sprint(n, stop), prompt, n)
		r.StopTokens = stop
		s, err := p.Submit(context.Background(), r)
		require.NoError(t, err)
		answer, last, err = read(s)
		require.NoError(t, err)
		tokens += len(answer)
		return answer, last
	}
	for n := 1; n <= len(text); n++ {
		answer, last := ask(n, nil)
		require.Equal(t, text[:n], answer)
		require.Equal(t, api.FinishLength, last.Finish)
	}
	requireClean(t, p, d)
	require.Less(t, d.steps, tokens/3, "draft tokens save steps")
	for stop := range int32(round) {
		answer, last := ask(len(text), []int32{stop})
		require.Equal(t, text[:slices.Index(text, stop)], answer[:slices.Index(text, stop)])
		require.LessOrEqual(t, len(answer), slices.Index(text, stop)+1)
		require.Equal(t, api.FinishStop, last.Finish)
	}
	requireClean(t, p, d)
	require.LessOrEqual(t, d.largest, draftRows)
}

// TestDraftTokensOfManySequencesShareAStep: each gets its own tokens.
func TestDraftTokensOfManySequencesShareAStep(t *testing.T) {
	const requests, tokens = 20, 60
	d := newTestDevice(64)
	d.round = 5
	cfg := testConfig(t, d)
	cfg.Sched.MaxBatchSize, cfg.Sched.DraftRows = 4, 12
	p := start(t, cfg)
	var wg sync.WaitGroup
	for i := range requests {
		s, err := p.Submit(context.Background(), tokensRequest(fmt.Sprint(i), []int32{int32(i % 5)}, tokens))
		require.NoError(t, err)
		wg.Go(func() {
			answer, _, err := read(s)
			if err != nil || len(answer) != tokens {
				t.Errorf("request %d: %v, %v", i, err, answer)
			}
			for j, token := range answer {
				if want := int32(i+j+1) % 5; token != want {
					t.Errorf("request %d: token %d is %d, expected %d", i, j, token, want)
				}
			}
		})
	}
	wg.Wait()
	requireClean(t, p, d)
	right := metricstest.Sum(t, cfg.Metrics.Registry(), "millrace_draft_tokens_accepted_total")
	require.Greater(t, right, float64(requests*tokens/3))
	require.LessOrEqual(t, float64(d.steps), requests*tokens-right, "draft tokens save steps")
}
