package tokenizer_test

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/tokenizer"
)

const ggufFolder = "../testdata/quantized/tokenizers/"

func TestTokenizersOfGGUFFilesEncodeAndDecodeAsInPython(t *testing.T) {
	files, err := filepath.Glob(ggufFolder + "*.gguf")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".gguf")
		eos, others := map[string]int32{"gpt-2": 0, "llama": 2, "phi-3": 2, "gemma4": 2}[name]
		if !others {
			eos = 1
		}
		t.Run(name, func(t *testing.T) {
			var cases caseFile
			readFixture(t, ggufFolder+name+".json", &cases)
			tok, err := tokenizer.Load(file)
			require.NoError(t, err)
			defer func() { require.NoError(t, tok.Close()) }()
			requireCases(t, tok, &cases)
			require.Equal(t, []int32{eos}, tok.EOS())
			chat, err := tok.RenderChat(tokenizer.Chat{Messages: []api.Message{{Role: "user", Content: "Hi"}}})
			require.NoError(t, err)
			require.Equal(t, "user: Hi\n", chat)
		})
	}
}

// TestGGUFWithoutItsOwnTokenizer: one beside the file, or token ids only.
func TestGGUFWithoutItsOwnTokenizer(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "model.gguf")
	copyFile(t, "../testdata/quantized/gguf/qwen2.gguf", path)
	_, err := tokenizer.Load(path)
	require.ErrorIs(t, err, tokenizer.ErrFile)
	require.ErrorContains(t, err, "model.gguf: found no tokenizer.ggml.tokens, expected a tokenizer: a tokenizer.json beside the file")
	bare, err := tokenizer.LoadOrBare(path, 9)
	require.NoError(t, err)
	require.Equal(t, 9, bare.VocabSize())

	copyFile(t, demoModel+"/tokenizer.json", filepath.Join(dir, "tokenizer.json"))
	beside, err := tokenizer.Load(path)
	require.NoError(t, err)
	require.Equal(t, 4096, beside.VocabSize())
	require.NoError(t, beside.Close())
}

// TestGGUFTokenizersAreCheckedFromTheBeginOfAFile, before the rest of it is downloaded.
func TestGGUFTokenizersAreCheckedFromTheBeginOfAFile(t *testing.T) {
	file, err := os.ReadFile(ggufFolder + "llama-bpe.gguf")
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "begin.partial")
	require.NoError(t, os.WriteFile(path, file, 0o600))
	require.NoError(t, tokenizer.CheckGGUFBegin(path))
	require.NoError(t, os.WriteFile(path, bytes.Replace(file, []byte("llama-bpe"), []byte("llama-abc"), 1), 0o600))
	require.ErrorContains(t, tokenizer.CheckGGUFBegin(path),
		`found tokenizer.ggml.pre "llama-abc", expected a pre-tokenizer of docs/models.md, where the nearest are llama-bpe, `)
	require.NoError(t, tokenizer.CheckGGUFBegin("../testdata/quantized/gguf/qwen2.gguf"), "token ids alone")
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	in, err := os.Open(from)
	require.NoError(t, err)
	defer in.Close()
	out, err := os.Create(to)
	require.NoError(t, err)
	_, err = io.Copy(out, in)
	require.NoError(t, err)
	require.NoError(t, out.Close())
}
