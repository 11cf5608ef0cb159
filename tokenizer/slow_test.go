package tokenizer_test

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/tokenizer"
)

const published = "../testdata/published/" // made by scripts/fixtures/make_published.py

// TestTokenizersInOlderFilesEncodeAndDecodeAsInPython: vocab.json with merges.txt, and tokenizer.model, of each class that is read.
func TestTokenizersInOlderFilesEncodeAndDecodeAsInPython(t *testing.T) {
	dirs, err := filepath.Glob(published + "tokenizers/*/cases.json")
	require.NoError(t, err)
	require.Len(t, dirs, 11)
	for _, path := range dirs {
		dir := filepath.Dir(path)
		t.Run(filepath.Base(dir), func(t *testing.T) {
			var cases struct {
				caseFile
				Names map[string]int32
			}
			readFixture(t, path, &cases)
			tok := load(t, dir)
			requireCases(t, tok, &cases.caseFile)
			if eos, ok := cases.Names["eos_token"]; ok {
				require.Equal(t, []int32{eos}, tok.EOS())
			}
			bos, ok := tok.BOS()
			want, has := cases.Names["bos_token"]
			require.Equal(t, has, ok)
			if has {
				require.Equal(t, want, bos)
			}
		})
	}
}

// TestATokenizerJSONGoesBeforeOlderFiles, as in transformers.
func TestATokenizerJSONGoesBeforeOlderFiles(t *testing.T) {
	dir := copyFolder(t, published+"tokenizers/gpt2")
	require.Equal(t, 420, load(t, dir).VocabSize())
	copyFile(t, demoModel+"/tokenizer.json", filepath.Join(dir, "tokenizer.json"))
	require.Equal(t, 4096, load(t, dir).VocabSize())
}

func copyFolder(t *testing.T, from string) string {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.CopyFS(dir, os.DirFS(from)))
	return dir
}

func TestFaultsOfOlderFilesNameThem(t *testing.T) {
	for name, c := range map[string]struct{ from, file, content, want string }{
		"vocab.json no JSON": {"gpt2", "vocab.json", `{"a":`,
			"vocab.json: found unexpected end of JSON input, expected {\"token\": id}"},
		"vocab.json of a list": {"gpt2", "vocab.json", `["a"]`, "vocab.json: found an array, expected"},
		"merges.txt of one token": {"gpt2", "merges.txt", "#version: 0.2\na b\nab\n",
			`merges.txt: line 3: found "ab", expected two tokens`},
		"merges.txt of three": {"gpt2", "merges.txt", "a b c\n", `merges.txt: line 1: found "a b c", expected two tokens`},
		"unknown merge":       {"gpt2", "merges.txt", "a nosuchtoken\n", "vocab.json: "},
		"config no object":    {"gpt2", "tokenizer_config.json", `[]`, "tokenizer_config.json: found an array"},
		"id of an added token": {"gptj", "added_tokens.json", `{"<|extra_1|>": 500}`,
			`vocab.json: found the added token "<|extra_1|>" with id 500, expected 420`},
		"negative id": {"gptj", "added_tokens.json", `{"<|extra_1|>": -1}`,
			"added_tokens.json: <|extra_1|>: found -1, expected an id of 0.."},
		"added_tokens_decoder": {"gpt2", "tokenizer_config.json", `{"added_tokens_decoder": {"x": "a"}}`,
			`tokenizer_config.json: added_tokens_decoder: found "x", expected an id of 0..`},
		"token of a number": {"gpt2", "tokenizer_config.json", `{"eos_token": 7}`,
			"tokenizer_config.json: eos_token: found 7, expected the text of a token"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := copyFolder(t, published+"tokenizers/"+c.from)
			write(t, dir, c.file, c.content)
			_, err := tokenizer.LoadOrBare(dir, 9)
			require.ErrorIs(t, err, tokenizer.ErrFile)
			require.ErrorContains(t, err, filepath.Join(dir, c.want))
			require.Equal(t, 1, strings.Count(err.Error(), dir), err)
		})
	}
	dir := copyFolder(t, published+"tokenizers/gpt2")
	require.NoError(t, os.Remove(filepath.Join(dir, "merges.txt")))
	_, err := tokenizer.Load(dir)
	require.ErrorContains(t, err, filepath.Join(dir, "merges.txt")+": found no such file, expected the merges of the tokens in vocab.json")
}

// TestOlderFilesOfOtherClassesLeaveTokenIDs: the reason names the class.
func TestOlderFilesOfOtherClassesLeaveTokenIDs(t *testing.T) {
	for from, files := range map[string]map[string]string{
		"gpt2":  {"tokenizer_config.json": `{"tokenizer_class": "BlenderbotTokenizer"}`},
		"llama": {"tokenizer_config.json": `{"tokenizer_class": "GemmaTokenizer"}`},
	} {
		dir := copyFolder(t, published+"tokenizers/"+from)
		for name, content := range files {
			write(t, dir, name, content)
		}
		tok, err := tokenizer.LoadOrBare(dir, 9)
		require.NoError(t, err)
		require.Equal(t, 9, tok.VocabSize())
		require.Regexp(t,
			`found tokenizer_class "(Blenderbot|Gemma)Tokenizer".* expected .*: a tokenizer.json, which .* writes, is read instead: only token ids can be used`, tok.NoText().Error())
	}
	for name, content := range map[string]string{"tiktoken": "IQ== 0\nIg== 1\n", "empty": "", "zeros": strings.Repeat("\x00", 100)} {
		dir := copyFolder(t, published+"tokenizers/llama")
		write(t, dir, "tokenizer.model", content)
		tok, err := tokenizer.LoadOrBare(dir, 9)
		require.NoError(t, err, name)
		require.ErrorContains(t, tok.NoText(), "tokenizer.model: found bytes that are no SentencePiece model: ", name)
	}
}

// TestADigestOfOlderFilesIsThatOfTheirContent.
func TestADigestOfOlderFilesIsThatOfTheirContent(t *testing.T) {
	digests := map[string]bool{}
	for _, name := range []string{"gpt2", "gpt2", "gptj", "llama", "mistral"} {
		digests[load(t, published+"tokenizers/"+name).Digest()] = true
	}
	require.Len(t, slices.Collect(maps.Keys(digests)), 4)
}

// FuzzSentencePiece: any bytes give an error or a tokenizer.
func FuzzSentencePiece(f *testing.F) {
	paths, err := filepath.Glob(published + "tokenizers/*/tokenizer.model")
	if err != nil || len(paths) == 0 {
		f.Fatal("no seeds", err)
	}
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	dir := f.TempDir()
	path := filepath.Join(dir, "tokenizer.model")
	f.Fuzz(func(t *testing.T, data []byte) {
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		tok, err := tokenizer.Load(dir)
		if err != nil {
			if strings.Contains(err.Error(), "Go ") {
				t.Fatal(err)
			}
			return
		}
		if _, err := tok.Encode("a text", true); err != nil {
			t.Log(err)
		}
		if err := tok.Close(); err != nil {
			t.Fatal(err)
		}
	})
}
