package auth

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api"
)

func TestTokenizingCountsAsARequestWithItsTokens(t *testing.T) {
	g, _, ctx, now := guarded(t, func(e *Entry) { e.RequestsPerMinute, e.TokensPerMinute = 3, 6000 })
	text := &api.TokenizeRequest{Model: "tiny-chat", Prompt: strings.Repeat("x", 4000)}
	ids, err := g.Tokenize(ctx, text) // estimated as 1,000, found to be 4,000
	require.NoError(t, err)
	require.Len(t, ids, 4000)
	limit := keyOf(ctx).limiter
	require.InDelta(t, 2000, limit.tokens.level, 1e-6)
	_, err = g.Detokenize(ctx, "tiny-chat", ids) // 4,000 are not left
	refused(t, err, ReasonTokens, 20*time.Second)
	chat := &api.TokenizeRequest{Model: "tiny-chat", Messages: []api.Message{{Content: strings.Repeat("x", 400)},
		{Content: strings.Repeat("x", 400)}}}
	_, err = g.Tokenize(ctx, chat)
	require.NoError(t, err)
	require.InDelta(t, 1200, limit.tokens.level, 1e-6)
	_, err = g.Detokenize(ctx, "tiny-chat", make([]int32, 100))
	require.NoError(t, err)
	require.InDelta(t, 1100, limit.tokens.level, 1e-6)
	_, err = g.Tokenize(ctx, text)
	refused(t, err, ReasonRequests, 20*time.Second)
	require.Zero(t, limit.running)
	*now = now.Add(time.Minute)
	_, err = g.Tokenize(ctx, text)
	require.NoError(t, err)
}

func TestTokenizingThatFailsCostsARequestAndNoTokens(t *testing.T) {
	g, _, ctx, _ := guarded(t, func(e *Entry) { e.RequestsPerMinute, e.TokensPerMinute = 3, 6000 })
	_, err := g.Detokenize(ctx, "tiny-chat", []int32{1, 999})
	require.ErrorContains(t, err, "expected an id below 256")
	limit := keyOf(ctx).limiter
	require.InDelta(t, 6000, limit.tokens.level, 1e-6)
	require.InDelta(t, 2, limit.requests.level, 1e-6)
	require.Zero(t, limit.running)
}

func TestTokenizingIsOneOfTheConcurrentRequests(t *testing.T) {
	g, e, ctx, _ := guarded(t, func(e *Entry) { e.Concurrent = 1 })
	inside, release := make(chan struct{}), make(chan struct{})
	g.Engine = slow{e, inside, release}
	done := make(chan error, 1)
	go func() {
		_, err := g.Tokenize(ctx, &api.TokenizeRequest{Model: "tiny-chat", Prompt: "x"})
		done <- err
	}()
	<-inside
	_, err := g.Detokenize(ctx, "tiny-chat", []int32{1})
	refused(t, err, ReasonConcurrent, time.Second)
	close(release)
	require.NoError(t, <-done)
	_, err = g.Detokenize(ctx, "tiny-chat", []int32{1})
	require.NoError(t, err)
}

// slow is an engine whose tokenizer waits.
type slow struct {
	api.Engine
	inside, release chan struct{}
}

func (s slow) Tokenize(ctx context.Context, r *api.TokenizeRequest) ([]int32, error) {
	s.inside <- struct{}{}
	<-s.release
	return s.Engine.Tokenize(ctx, r)
}
