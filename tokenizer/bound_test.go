package tokenizer

import (
	"encoding/json"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/require"
)

// kinds are folders of tokenizers, one of each kind.
var kinds = []string{
	"models/tiny-chat", "testdata/tokenizers/byte-fallback", "testdata/tokenizers/byte-fallback-metaspace",
	"testdata/tokenizers/byte-level", "testdata/tokenizers/byte-level-sequence", "testdata/tokenizers/suffix",
	"testdata/tokenizers/unigram", "testdata/tokenizers/wordpiece",
}

// awkward are texts that normalizers shrink, vocabularies lack, or tokens swallow.
var awkward = []string{
	"a", "a1", " ", "\n", "\t\t\t\t", "▁", "the quick brown fox ", "Hello", "ﬃ", "ﷺ", "\U0001D400", "\u212A", "\u1FEF",
	"\u1100\u1161\u11A8", "e\u0301", "\U0001D414\u0308\u030C", "\u00A0", "\u3000", "\u200B", "\uFEFF", "😀", "\U000E0041", "\u4E2D\u6587",
	"\u0301\u0301", "aaaaaaaaaaaaaaaa", "0000", "<s>", "<|im_end|>", "\U00016121\U0001611F", "\x01", "\uFFFD",
}

func TestATextHasAtLeastItsLeastTokens(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	bounded := 0
	for _, dir := range kinds {
		dir, name := filepath.Join("..", dir), dir
		tok, err := Load(dir)
		require.NoError(t, err)
		defer tok.Close()
		if tok.bound.bytes > 0 {
			bounded++
		}
		for range 300 {
			var text strings.Builder
			for range 1 + r.IntN(20) {
				text.WriteString(strings.Repeat(awkward[r.IntN(len(awkward))], 1+r.IntN(8)))
			}
			requireAtLeast(t, tok, name, text.String())
		}
		for id := range tok.VocabSize() { // nothing but the longest tokens
			requireAtLeast(t, tok, name, strings.Repeat(tok.TokenText(int32(id)), 8))
		}
	}
	require.GreaterOrEqual(t, bounded, 5)
}

func TestTheBeginningOfATextHasEnoughTokens(t *testing.T) {
	cut := 0
	for _, dir := range kinds {
		tok, err := Load(filepath.Join("..", dir))
		require.NoError(t, err)
		defer tok.Close()
		for _, word := range awkward {
			text := strings.Repeat(word+" ", 400)
			got := tok.Beginning(text, 20)
			require.True(t, strings.HasPrefix(text, got), "%s %q", dir, word)
			if got != text {
				cut++
				require.GreaterOrEqual(t, tok.LeastTokens(got), 20, "%s %q", dir, word)
				require.LessOrEqual(t, tok.LeastTokens(got), 21, "%s %q", dir, word)
			}
			require.Equal(t, "ab", tok.Beginning("ab", 20))
		}
	}
	require.Positive(t, cut)
}

func requireAtLeast(t *testing.T, tok *Tokenizer, name, text string) {
	t.Helper()
	ids, err := tok.Encode(text, false)
	if err != nil {
		return // a NUL, or half a character
	}
	if least := tok.LeastTokens(text); least > len(ids) {
		require.Fail(t, "too many", "%s: %q: found %d tokens, expected at least %d", name, text, len(ids), least)
	}
}

func TestATextThatIsTooLongIsKnownByItsBytes(t *testing.T) {
	tok, err := Load(filepath.Join("..", "models", "tiny-chat"))
	require.NoError(t, err)
	defer tok.Close()
	require.Greater(t, tok.LeastTokens(strings.Repeat("a1", 1<<19)), 2048, "a megabyte")
	require.Equal(t, 0, tok.LeastTokens(""))
	require.Equal(t, 1, tok.LeastTokens("a"))
}

// bounds reads the bound of a tokenizer.json like that of a kind, changed.
func boundOf(t *testing.T, kind string, change func(file map[string]any)) bound {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("..", "testdata", "tokenizers", kind, "tokenizer.json"))
	require.NoError(t, err)
	var file map[string]any
	require.NoError(t, json.Unmarshal(data, &file))
	if change != nil {
		change(file)
	}
	data, err = json.Marshal(file)
	require.NoError(t, err)
	var read Tokenizer
	require.NoError(t, read.read(data))
	return read.bound
}

func TestWhatMayDropTextHasNoBound(t *testing.T) {
	plain := boundOf(t, "byte-level", nil)
	require.Greater(t, plain.bytes, 1)
	require.False(t, plain.spaces)
	stage := func(kind string, more ...any) map[string]any {
		s := map[string]any{"type": kind}
		for i := 0; i < len(more); i += 2 {
			s[more[i].(string)] = more[i+1]
		}
		return s
	}
	level := stage("ByteLevel")
	for name, c := range map[string]struct {
		key   string
		stage map[string]any
		times int // of the plain bound
	}{
		"NFC":               {"normalizer", stage("NFC"), 3},
		"NFKC":              {"normalizer", stage("NFKC"), 4},
		"lower case":        {"normalizer", stage("Lowercase"), 3},
		"two of them":       {"normalizer", stage("Sequence", "normalizers", []any{stage("NFC"), stage("Lowercase")}), 9},
		"longer":            {"normalizer", stage("Replace", "pattern", map[string]any{"String": " "}, "content", "▁"), 1},
		"shorter":           {"normalizer", stage("Replace", "pattern", map[string]any{"String": "aaa"}, "content", "bb"), 2},
		"dropped":           {"normalizer", stage("Replace", "pattern", map[string]any{"String": "a"}, "content", ""), 0},
		"by an expression":  {"normalizer", stage("Replace", "pattern", map[string]any{"Regex": "a+"}, "content", "a"), 0},
		"accents":           {"normalizer", stage("StripAccents"), 0},
		"ends":              {"normalizer", stage("Strip"), 0},
		"a table":           {"normalizer", stage("Precompiled"), 0},
		"one of a sequence": {"normalizer", stage("Sequence", "normalizers", []any{stage("NFC"), stage("StripAccents")}), 0},
		"split": {"pre_tokenizer", stage("Sequence", "pretokenizers", []any{stage("Split", "behavior", "Isolated"), level}),
			1},
		"removed": {"pre_tokenizer", stage("Sequence", "pretokenizers", []any{stage("Split", "behavior", "Removed"), level}),
			0},
		"white space":         {"pre_tokenizer", stage("Sequence", "pretokenizers", []any{stage("WhitespaceSplit"), level}), 0},
		"what is not a stage": {"pre_tokenizer", stage("Sequence", "pretokenizers", []any{stage("New"), level}), 0},
		"no bytes":            {"pre_tokenizer", nil, 0},
	} {
		got := boundOf(t, "byte-level", func(file map[string]any) { file[c.key] = c.stage })
		require.Equal(t, c.times*plain.bytes, got.bytes, name)
	}
	require.Zero(t, boundOf(t, "byte-level", func(file map[string]any) {
		delete(file["model"].(map[string]any)["vocab"].(map[string]any), "a")
	}).bytes, "a character is unknown, and dropped")
	require.True(t, boundOf(t, "byte-level", func(file map[string]any) {
		file["added_tokens"].([]any)[0].(map[string]any)["rstrip"] = true
	}).spaces)
	require.Zero(t, boundOf(t, "wordpiece", nil).bytes, "a long word is one unknown token")
	require.Zero(t, boundOf(t, "unigram", nil).bytes, "unknown characters are one token")
	require.Zero(t, boundOf(t, "suffix", nil).bytes, "white space is removed")
}

func TestWhiteSpaceBesideATokenThatSwallowsItIsNotCounted(t *testing.T) {
	tok := &Tokenizer{bound: bound{bytes: 4, spaces: true}}
	require.Equal(t, 2, tok.LeastTokens("abcd"+strings.Repeat(" \n\u3000", 100)+"efgh"))
	require.Equal(t, 0, tok.LeastTokens("   "))
	for r := rune(0); r <= unicode.MaxRune; r++ {
		if unicode.IsSpace(r) {
			require.Zero(t, tok.LeastTokens(string(r)))
		}
	}
}
