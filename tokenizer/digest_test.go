package tokenizer_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/tokenizer"
)

func digest(t *testing.T, dir string) string {
	t.Helper()
	loaded, err := tokenizer.LoadOrBare(dir, 64)
	require.NoError(t, err)
	defer loaded.Close()
	return loaded.Digest()
}

// edit changes a JSON object of a file.
func edit(t *testing.T, path string, change func(object map[string]any)) {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	var object map[string]any
	require.NoError(t, json.Unmarshal(text, &object))
	change(object)
	text, err = json.Marshal(object)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, text, 0o600))
}

// TestWhatMakesIdsOrTextChangesTheDigest changes one file of the demo model at a time.
func TestWhatMakesIdsOrTextChangesTheDigest(t *testing.T) {
	const demo = "../models/tiny-chat"
	original := digest(t, demo)
	require.Len(t, original, 32)
	seen := map[string]string{}
	for name, change := range map[string]func(dir string){
		"nothing": func(string) {},
		"one more token": func(dir string) {
			edit(t, filepath.Join(dir, "tokenizer.json"), func(o map[string]any) {
				o["added_tokens"] = append(o["added_tokens"].([]any), map[string]any{
					"id": 4095, "content": "<new>", "special": true,
					"single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
				})
			})
		},
		"another template": func(dir string) {
			require.NoError(t, os.WriteFile(filepath.Join(dir, "chat_template.jinja"), []byte("{{ messages[0].content }}"), 0o600))
		},
		"a name of the padding": func(dir string) {
			edit(t, filepath.Join(dir, "tokenizer_config.json"), func(o map[string]any) { o["pad_token"] = "<pad>" })
		},
		"another end": func(dir string) {
			edit(t, filepath.Join(dir, "generation_config.json"), func(o map[string]any) { o["eos_token_id"] = []int{7, 8} })
		},
		"no tokenizer": func(dir string) {
			require.NoError(t, os.Remove(filepath.Join(dir, "tokenizer.json")))
		},
	} {
		dir := filepath.Join(t.TempDir(), "another-folder")
		require.NoError(t, os.CopyFS(dir, os.DirFS(demo)))
		change(dir)
		sum := digest(t, dir)
		require.NotContains(t, seen, sum, name)
		seen[sum] = name
	}
	require.Equal(t, "nothing", seen[original])
}

func TestWhatNothingReadsLeavesTheDigest(t *testing.T) {
	const demo = "../models/tiny-chat"
	dir := filepath.Join(t.TempDir(), "model")
	require.NoError(t, os.CopyFS(dir, os.DirFS(demo)))
	edit(t, filepath.Join(dir, "tokenizer_config.json"), func(o map[string]any) { o["model_max_length"] = 77 })
	require.NoError(t, os.Remove(filepath.Join(dir, "model.safetensors")))
	require.Equal(t, digest(t, demo), digest(t, dir))
}

// TestAGGUFFilesTokenizerHasTheDigestOfItsOwn: of the vocabulary in the file, not of the file.
func TestAGGUFFilesTokenizerHasTheDigestOfItsOwn(t *testing.T) {
	const folder = "../testdata/quantized/tokenizers/"
	gpt2, llama := digest(t, folder+"gpt-2.gguf"), digest(t, folder+"llama-bpe.gguf")
	require.NotEqual(t, gpt2, llama)
	text, err := os.ReadFile(folder + "gpt-2.gguf")
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "other.gguf")
	require.NoError(t, os.WriteFile(path, append(text, 0), 0o600))
	require.Equal(t, gpt2, digest(t, path))
}
