package node

import (
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
func requireRefusesTheEndless(t *testing.T, p *Node) {
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
	requireRefusesTheEndless(t, gateway.Node)
}
