package actors

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api"
)

func requireTooLong(t *testing.T, err error, param string, bytes int) {
	t.Helper()
	var e *api.Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, api.CodeInvalid, e.Code)
	require.Equal(t, "context_length_exceeded", e.Reason)
	require.Equal(t, param, e.Param)
	require.Regexp(t, fmt.Sprintf(`has %d bytes, which are \d+ tokens at least, expected at most 2048 tokens`, bytes), e.Message)
}

// Only its bytes are looked at: the message has no count of its tokens.
func requireRefusesTheEndless(t *testing.T, p *Pipeline) {
	t.Helper()
	text := strings.Repeat("a1", 1<<19)
	_, err := p.Tokenize(t.Context(), &api.TokenizeRequest{Prompt: text, Model: "m"})
	requireTooLong(t, err, "prompt", len(text))
	chat := []api.Message{{Role: "user", Content: text}}
	_, err = p.Tokenize(t.Context(), &api.TokenizeRequest{Messages: chat, Model: "m"})
	require.ErrorContains(t, err, "messages has ")
	r := tokensRequest("text", nil, 1)
	r.Prompt = text
	s, err := p.Submit(t.Context(), r)
	require.NoError(t, err)
	_, last, err := read(s)
	require.NoError(t, err)
	requireTooLong(t, last.Err, "prompt", len(text))
	ids, err := p.Tokenize(t.Context(), &api.TokenizeRequest{Prompt: strings.Repeat("a1", 2000), Model: "m"})
	require.NoError(t, err, "too long for the model, perhaps, but counted")
	require.Greater(t, len(ids), 2048)
}

func TestATextThatCannotFitIsRefusedBeforeItIsTokenized(t *testing.T) {
	requireRefusesTheEndless(t, start(t, testConfig(t, newTestDevice(64))))
}

// The tokenizers hear of the context from the workers.
func TestATextThatCannotFitIsRefusedInACluster(t *testing.T) {
	gateway, tokenize, _, _ := four(newTestNodes(t), 1, nil)
	require.Eventually(t, func() bool { return tokenize.longest() == 2048 }, patience, time.Millisecond)
	requireRefusesTheEndless(t, gateway.Pipeline)
}

func TestTheGateServesSomeLetsSomeWaitAndRefusesTheRest(t *testing.T) {
	g := newGate(1, 1)
	leave, err := g.enter(t.Context())
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	waits := make(chan error, 1)
	go func() {
		_, err := g.enter(ctx)
		waits <- err
	}()
	require.Eventually(t, func() bool { return len(g.inside) == 2 }, patience, time.Millisecond)
	_, err = g.enter(t.Context())
	var refused *api.Error
	require.ErrorAs(t, err, &refused)
	require.Equal(t, api.CodeOverloaded, refused.Code)
	require.Equal(t, reasonQueueFull, refused.Reason)
	require.Positive(t, refused.RetryAfter)
	cancel()
	require.ErrorIs(t, <-waits, context.Canceled)
	second := make(chan func(), 1)
	go func() {
		leave, err := g.enter(t.Context())
		if err != nil {
			t.Error(err)
		}
		second <- leave
	}()
	require.Eventually(t, func() bool { return len(g.inside) == 2 }, patience, time.Millisecond)
	leave()
	(<-second)()
	require.Empty(t, g.inside)
	require.Empty(t, g.served)
}

func TestTokenizingHasABoundAndLeavesRequestsAlone(t *testing.T) {
	p := start(t, testConfig(t, newTestDevice(64)))
	var leave []func()
	for range cap(p.texting.served) {
		l, err := p.texting.enter(t.Context())
		require.NoError(t, err)
		leave = append(leave, l)
	}
	ended := make(chan error, mostTexts)
	for range mostTexts {
		go func() {
			_, err := p.Tokenize(t.Context(), &api.TokenizeRequest{Prompt: "a"})
			ended <- err
		}()
	}
	require.Eventually(t, func() bool { return len(p.texting.inside) == cap(p.texting.inside) }, patience, time.Millisecond)
	_, err := p.Tokenize(t.Context(), &api.TokenizeRequest{Prompt: "a"})
	require.ErrorContains(t, err, "texts to tokenize")
	_, err = p.Detokenize(t.Context(), "m", []int32{1})
	require.ErrorContains(t, err, "texts to tokenize")
	r := tokensRequest("text", nil, 1)
	r.Prompt = "Once"
	s, err := p.Submit(t.Context(), r)
	require.NoError(t, err)
	_, last, err := read(s)
	require.NoError(t, err)
	require.Equal(t, api.FinishLength, last.Finish)
	for _, l := range leave {
		l()
	}
	for range mostTexts {
		require.NoError(t, <-ended)
	}
	_, err = p.Detokenize(t.Context(), "m", []int32{1})
	require.NoError(t, err)
}
