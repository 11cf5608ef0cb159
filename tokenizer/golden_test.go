package tokenizer_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/tokenizer"
)

const demoModel = "../models/tiny-chat"

func load(t testing.TB, dir string) *tokenizer.Tokenizer {
	t.Helper()
	tok, err := tokenizer.Load(dir)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, tok.Close()) })
	return tok
}

func readFixture(t testing.TB, path string, v any) {
	t.Helper()
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(data, v))
}

func TestDemoModelGoldenPromptsGiveTheSameIDs(t *testing.T) {
	var file struct {
		Goldens []struct {
			Kind      string        `json:"kind"`
			Messages  []api.Message `json:"messages"`
			Prompt    string        `json:"prompt"`
			PromptIDs []int32       `json:"prompt_ids"`
			OutputIDs []int32       `json:"output_ids"`
			Output    *string       `json:"output_text"`
		} `json:"goldens"`
	}
	readFixture(t, filepath.Join(demoModel, "goldens.json"), &file)
	require.Len(t, file.Goldens, 40)
	tok := load(t, demoModel)
	for _, g := range file.Goldens {
		text := g.Prompt
		if g.Messages != nil {
			rendered, err := tok.RenderChat(tokenizer.Chat{Messages: g.Messages, AddGenerationPrompt: true})
			require.NoError(t, err)
			require.Equal(t, g.Prompt, rendered)
			text = rendered
		}
		ids, err := tok.Encode(text, false)
		require.NoError(t, err)
		require.Equal(t, g.PromptIDs, ids, g.Prompt)
	}
}

func TestDemoModelKnowsItsSpecialTokens(t *testing.T) {
	tok := load(t, demoModel)
	require.Equal(t, []int32{2, 6}, tok.EOS())
	bos, ok := tok.BOS()
	require.True(t, ok)
	require.EqualValues(t, 1, bos)
	ids, err := tok.Encode("a", true)
	require.NoError(t, err)
	require.NotEqual(t, bos, ids[0])
	require.Equal(t, 4096, tok.VocabSize())
	require.True(t, tok.ByteLevel())
	require.True(t, tok.HasChatTemplate())
	for id := range int32(4096) {
		require.Equal(t, id < 7, tok.IsSpecial(id), id)
	}
}
