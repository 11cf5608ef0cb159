package actors

import (
	"context"
	"errors"
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/actors/msg"
	"github.com/millrace/millrace/api"
)

func ids() func() msg.SeqID {
	var n msg.SeqID
	return func() msg.SeqID { n++; return n }
}

func apiRequest(n, maxTokens int) *api.Request {
	return &api.Request{ID: "r", N: n, MaxTokens: maxTokens, TopLogprobs: -1}
}

func TestARequestThatDoesNotFitIsRefusedWithItsNumbers(t *testing.T) {
	lim := modelLimits{context: 100, pool: 64}
	for _, c := range []struct {
		name              string
		prompt, maxTokens int
		message           string
	}{
		{"no tokens", 0, 1, "no tokens"},
		{"prompt fills the pool", 64, 0, "64 tokens, expected fewer than 64"},
		{"answer is too long", 60, 5, "max_tokens is 5 after a prompt of 60 tokens, expected at most 4"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := newRequest(apiRequest(1, c.maxTokens), nil, lim).tokenized(make([]int32, c.prompt), ids())
			var e *api.Error
			require.ErrorAs(t, err, &e)
			require.Equal(t, api.CodeInvalid, e.Code)
			require.Contains(t, e.Message, c.message)
		})
	}
	g, err := newRequest(apiRequest(1, 0), nil, lim).tokenized(make([]int32, 60), ids())
	require.NoError(t, err)
	require.Equal(t, 4, g[0].MaxTokens, "no max_tokens: up to the limit")
}

func TestIgnoreEOSKeepsTheRequestsOwnStopTokens(t *testing.T) {
	lim := modelLimits{context: 100, pool: 100}
	r := apiRequest(1, 5)
	r.StopTokens = []int32{9}
	g, err := newRequest(r, []int32{2, 6}, lim).tokenized([]int32{1}, ids())
	require.NoError(t, err)
	require.Equal(t, []int32{9, 2, 6}, g[0].StopTokens)
	r.IgnoreEOS = true
	g, err = newRequest(r, []int32{2, 6}, lim).tokenized([]int32{1}, ids())
	require.NoError(t, err)
	require.Equal(t, []int32{9}, g[0].StopTokens)
}

func TestOnlyTheLastChoiceEndsTheRequestAndUsageCountsAll(t *testing.T) {
	r := newRequest(apiRequest(2, 5), nil, modelLimits{context: 100, pool: 100})
	g, err := r.tokenized([]int32{1, 2, 3}, ids())
	require.NoError(t, err)
	require.NotEqual(t, g[0].Sampling.Seed, g[1].Sampling.Seed, "choices differ")

	e, ok := r.text(&msg.Text{Seq: g[1].Seq, Token: 7, Text: "b", Finish: api.FinishStop})
	require.True(t, ok)
	require.Equal(t, api.Event{Choice: 1, Text: "b", Tokens: []int32{7}, Finish: api.FinishStop}, e)
	_, ok = r.text(&msg.Text{Seq: g[1].Seq, Token: 8})
	require.False(t, ok, "an ended choice gets no more text")
	_, ok = r.text(&msg.Text{Seq: 99, Token: 8})
	require.False(t, ok, "an unknown sequence is ignored")

	_, _ = r.text(&msg.Text{Seq: g[0].Seq, Token: 7, Text: "a"})
	e, ok = r.text(&msg.Text{Seq: g[0].Seq, Token: 8, Finish: api.FinishLength})
	require.True(t, ok)
	require.True(t, e.Done)
	require.Equal(t, &api.Usage{PromptTokens: 3, CompletionTokens: 3}, e.Usage)
}

func TestAFailedChoiceFailsTheRequest(t *testing.T) {
	r := newRequest(apiRequest(2, 5), nil, modelLimits{context: 100, pool: 100})
	g, err := r.tokenized([]int32{1}, ids())
	require.NoError(t, err)
	e, ok := r.text(&msg.Text{Seq: g[0].Seq, Token: -1, Finish: api.FinishError, Err: errShutdown()})
	require.True(t, ok)
	require.True(t, e.Done)
	require.Equal(t, []msg.SeqID{g[1].Seq}, r.running(), "left to cancel")
}

func TestCancelBeforeTheFirstTokenEndsAtOnceAndAfterItThroughTheStages(t *testing.T) {
	r := newRequest(apiRequest(1, 5), nil, modelLimits{context: 100, pool: 100})
	running, ended := r.cancel(nil)
	require.Empty(t, running)
	require.Equal(t, api.FinishCancelled, ended.Finish)
	require.True(t, ended.Done)

	r = newRequest(apiRequest(1, 5), nil, modelLimits{context: 100, pool: 100})
	g, err := r.tokenized([]int32{1}, ids())
	require.NoError(t, err)
	running, ended = r.cancel(errShutdown())
	require.Equal(t, []msg.SeqID{g[0].Seq}, running)
	require.Nil(t, ended)
	e, _ := r.text(&msg.Text{Seq: g[0].Seq, Token: -1, Finish: api.FinishCancelled})
	require.Equal(t, api.FinishError, e.Finish, "the client is told why")
	require.Equal(t, errShutdown(), e.Err)
	running, ended = r.cancel(nil)
	require.Empty(t, running)
	require.Nil(t, ended, "an ended request has nothing to cancel")
}

func TestTheJournalKeepsEveryEventForASlowReader(t *testing.T) {
	j := newJournal()
	cancelled := 0
	s := &stream{journal: j, next: 1, cancel: func() { cancelled++ }}
	for range 3 {
		j.append(api.Event{Text: "x"})
	}
	s.Close()
	require.Equal(t, 1, cancelled)
	j.append(api.Event{Done: true})
	j.append(api.Event{Text: "late"})
	for seq := uint64(1); seq <= 4; seq++ {
		e, err := s.Next(context.Background())
		require.NoError(t, err)
		require.Equal(t, seq, e.Seq)
		require.Equal(t, seq == 4, e.Done)
	}
	_, err := s.Next(context.Background())
	require.ErrorIs(t, err, io.EOF)
	s.Close()
	require.Equal(t, 1, cancelled, "a finished request is not cancelled")
}

func TestAReaderWaitsForTheNextEventOrItsContext(t *testing.T) {
	j := newJournal()
	s := &stream{journal: j, next: 1}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := s.Next(ctx)
	require.ErrorIs(t, err, context.Canceled)
	got := make(chan error, 1)
	go func() {
		e, err := s.Next(context.Background())
		if err == nil && e.Text != "x" {
			err = errors.New("another event")
		}
		got <- err
	}()
	j.append(api.Event{Text: "x"})
	require.NoError(t, <-got)
}
