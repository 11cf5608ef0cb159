package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/tokenizer"
)

// TestPublishedModelsAnswerAsTheirTwins: models in the files of older checkpoints, pytorch_model.bin with vocab.json and merges.txt,
// against the same models as safetensors. Scripts: scripts/fixtures/make_published.py.
func TestPublishedModelsAnswerAsTheirTwins(t *testing.T) {
	for name, from := range map[string]string{"opt": "opt-prenorm", "gptj": "gptj"} {
		t.Run(name, func(t *testing.T) {
			dir := absolute(t, "../../testdata/published/models/"+name)
			twin := t.TempDir()
			require.NoError(t, os.CopyFS(twin, os.DirFS(absolute(t, "../../testdata/models/"+from))))
			for _, file := range []string{"vocab.json", "merges.txt", "tokenizer_config.json"} {
				content, err := os.ReadFile(filepath.Join(dir, file))
				require.NoError(t, err)
				require.NoError(t, os.WriteFile(filepath.Join(twin, file), content, 0o600))
			}
			var expected struct {
				Text string
				IDs  []int32
			}
			raw, err := os.ReadFile(filepath.Join(dir, "expected.json"))
			require.NoError(t, err)
			require.NoError(t, json.Unmarshal(raw, &expected))
			tok, err := tokenizer.Load(dir)
			require.NoError(t, err)
			defer tok.Close() //nolint:errcheck // nothing was written
			ids, err := tok.Encode(expected.Text, true)
			require.NoError(t, err)
			require.Equal(t, expected.IDs, ids, "by transformers, of the same files")

			here := absolute(t, ".")
			for _, command := range [][]string{
				{"generate", "--prompt", expected.Text, "-n", "30", "--temperature", "0", "--json"},
				{"logits", "--tokens", "5,6,7,30,21", "--json"},
			} {
				var outs [2]map[string]any
				for i, model := range []string{dir, twin} {
					code, stdout, stderr := millrace(t, nil, append(command, "--model", model)...)
					require.Equal(t, 0, code, stderr)
					require.NoError(t, json.Unmarshal([]byte(stdout), &outs[i]))
					delete(outs[i], "numerics") // the tensors have other names
					t.Chdir(here)
				}
				require.NotEmpty(t, outs[0])
				require.Equal(t, outs[1], outs[0])
			}
			code, stdout, stderr := millrace(t, nil, "plan", "--model", dir, "--device", "h100", "--prompt", "60", "--gen", "20")
			require.Equal(t, 0, code, stderr)
			require.Contains(t, stdout, name)
		})
	}
}

// TestAPublishedModelIsPulled with the files that it has.
func TestAPublishedModelIsPulled(t *testing.T) {
	from := absolute(t, "../../testdata/published/models/gptj")
	servesModel(t, from)
	code, stdout, stderr := millrace(t, nil, "pull", "o/tiny")
	require.Equal(t, 0, code, stderr)
	require.Contains(t, stdout, "millrace serve o/tiny serves it.")
	dir := filepath.Join(os.Getenv("XDG_DATA_HOME"), "millrace", "models", "o", "tiny")
	for _, file := range []string{"pytorch_model-00001-of-00002.bin", "pytorch_model.bin.index.json", "vocab.json", "merges.txt",
		"added_tokens.json"} {
		require.FileExists(t, filepath.Join(dir, file))
	}
	code, _, stderr = millrace(t, nil, "generate", "--model", "o/tiny", "--prompt", "the other", "-n", "3")
	require.Equal(t, 0, code, stderr)
	require.Equal(t, modelBytes(from), modelBytes(dir))
	require.Positive(t, modelBytes(dir))
}
