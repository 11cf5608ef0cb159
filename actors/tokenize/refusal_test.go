package tokenize

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/tokenizer"
)

func TestWhatTheTokenizerRefusesIsTheCallersErrorWithTheReason(t *testing.T) {
	dir := t.TempDir()
	vocabulary := `{"added_tokens":[],"pre_tokenizer":{"type":"WhitespaceSplit"},
		"model":{"type":"WordLevel","vocab":{"a":0},"unk_token":"?"}}`
	require.NoError(t, os.WriteFile(filepath.Join(dir, "tokenizer.json"), []byte(vocabulary), 0o600))
	bomb := "{% set ns = namespace(s='xx') %}{% for i in range(40) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}"
	require.NoError(t, os.WriteFile(filepath.Join(dir, "chat_template.jinja"), []byte(bomb), 0o600))
	tok, err := tokenizer.Load(dir)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, tok.Close()) })
	for _, c := range []struct {
		param, reason string
		request       api.TokenizeRequest
	}{
		{"prompt", "Missing [UNK] token", api.TokenizeRequest{Prompt: "a unheard"}},
		{"prompt", "NUL byte", api.TokenizeRequest{Prompt: "a\x00"}},
		{"messages", "over its limit", api.TokenizeRequest{Messages: []api.Message{{Role: "user", Content: "a"}}}},
	} {
		_, _, err := encode(tok, &c.request, 0)
		var refusal *api.Error
		require.ErrorAs(t, err, &refusal)
		require.Equal(t, api.CodeInvalid, refusal.Code)
		require.Equal(t, c.param, refusal.Param)
		require.Contains(t, refusal.Message, c.reason)
	}
}
