package detok_test

import (
	"encoding/json"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/detok"
	"github.com/millrace/millrace/tokenizer"
)

const (
	demoModel = "../models/tiny-chat"
	fixtures  = "../testdata/tokenizers"
)

var kinds = []string{"byte-level", "byte-level-sequence", "byte-fallback", "byte-fallback-metaspace", "unigram", "wordpiece", "suffix"}

func load(t testing.TB, dir string) *tokenizer.Tokenizer {
	t.Helper()
	tok, err := tokenizer.Load(dir)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, tok.Close()) })
	return tok
}

func every(t *testing.T, check func(t *testing.T, tok *tokenizer.Tokenizer)) {
	t.Helper()
	t.Run("demo", func(t *testing.T) { check(t, load(t, demoModel)) })
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) { check(t, load(t, filepath.Join(fixtures, kind))) })
	}
}

// stream pushes ids and joins the pieces, each of which must be whole characters.
func stream(t *testing.T, d detok.Decoder, o detok.Options, ids []int32) (text string, stopped bool) {
	t.Helper()
	s := detok.New(d, o)
	var all strings.Builder
	for _, id := range ids {
		var piece string
		piece, stopped = s.Push(id)
		if !utf8.ValidString(piece) {
			t.Fatalf("piece %q of %v is not UTF-8", piece, ids)
		}
		all.WriteString(piece)
		if stopped {
			break
		}
	}
	all.WriteString(s.Flush())
	return all.String(), stopped
}

func decode(t *testing.T, d detok.Decoder, ids []int32, skipSpecial bool) string {
	t.Helper()
	text, err := d.Decode(ids, skipSpecial)
	require.NoError(t, err)
	return text
}

func TestStreamIsWhatPythonDecodes(t *testing.T) {
	type file struct {
		Decoded []struct {
			IDs         []int32
			Text, Plain string
		}
	}
	check := func(tok *tokenizer.Tokenizer, path string) func(*testing.T) {
		return func(t *testing.T) {
			data, err := os.ReadFile(path)
			require.NoError(t, err)
			var f file
			require.NoError(t, json.Unmarshal(data, &f))
			require.NotEmpty(t, f.Decoded)
			for _, c := range f.Decoded {
				text, _ := stream(t, tok, detok.Options{KeepSpecial: true}, c.IDs)
				require.Equal(t, c.Text, text, c.IDs)
				text, _ = stream(t, tok, detok.Options{}, c.IDs)
				require.Equal(t, c.Plain, text, c.IDs)
			}
		}
	}
	t.Run("demo", check(load(t, demoModel), filepath.Join(fixtures, "demo.json")))
	for _, kind := range kinds {
		dir := filepath.Join(fixtures, kind)
		t.Run(kind, check(load(t, dir), filepath.Join(dir, "cases.json")))
	}
}

func TestStreamOfRandomIDsIsTheirWholeText(t *testing.T) {
	every(t, func(t *testing.T, tok *tokenizer.Tokenizer) {
		rng := rand.New(rand.NewPCG(3, 5))
		for range 400 {
			ids := make([]int32, rng.IntN(60))
			for i := range ids {
				ids[i] = rng.Int32N(int32(tok.VocabSize()))
				if rng.IntN(2) == 0 { // short pieces and bytes come first in a vocabulary
					ids[i] = rng.Int32N(min(270, int32(tok.VocabSize())))
				}
			}
			keep := rng.IntN(2) == 0
			text, _ := stream(t, tok, detok.Options{KeepSpecial: keep}, ids)
			require.Equal(t, decode(t, tok, ids, !keep), text, ids)
		}
	})
}

func TestStreamCutAnywhereIsTheTextOfItsBeginning(t *testing.T) {
	texts := []string{
		"日本語の文章 中文", "السلام عليكم ورحمة الله", "👩‍👩‍👧‍👦🇨🇭 🏳️‍🌈 👍🏽 é", "don't , stop .  two  spaces\n\n", "\ufffd\ufffd x",
	}
	every(t, func(t *testing.T, tok *tokenizer.Tokenizer) {
		for _, text := range texts {
			ids, err := tok.Encode(text, true)
			require.NoError(t, err)
			for cut := range len(ids) + 1 {
				got, _ := stream(t, tok, detok.Options{}, ids[:cut])
				require.Equal(t, decode(t, tok, ids[:cut], true), got, "%q, %d tokens", text, cut)
				got, _ = stream(t, tok, detok.Options{}, ids[cut:]) // begins within a character
				require.Equal(t, decode(t, tok, ids[cut:], true), got, "%q, from token %d", text, cut)
			}
		}
	})
}

func TestCharactersComeAsSoonAsTheyAreWhole(t *testing.T) {
	tok := load(t, demoModel)
	ids, err := tok.Encode("日本", false)
	require.NoError(t, err)
	s := detok.New(tok, detok.Options{})
	var seen []byte
	var text string
	for _, id := range ids {
		seen = append(seen, tok.TokenBytes(id)...)
		piece, _ := s.Push(id)
		text += piece
		whole := len(seen)
		for !utf8.Valid(seen[:whole]) {
			whole--
		}
		require.Equal(t, string(seen[:whole]), text)
	}
}

func TestIDsOutsideTheVocabularyHaveNoText(t *testing.T) {
	every(t, func(t *testing.T, tok *tokenizer.Tokenizer) {
		ids, err := tok.Encode("the fox", false)
		require.NoError(t, err)
		padded := []int32{-1, int32(tok.VocabSize())}
		for _, id := range ids {
			padded = append(padded, id, 1<<30)
		}
		text, _ := stream(t, tok, detok.Options{}, padded)
		require.Equal(t, decode(t, tok, ids, true), text)
	})
}

func TestPushingTheSameIDsAgainRebuildsTheStream(t *testing.T) {
	every(t, func(t *testing.T, tok *tokenizer.Tokenizer) {
		o := detok.Options{Stop: []string{"jumps over", "日本x"}}
		ids, err := tok.Encode("The fox jump jumps on 日本 日本語 jumps over it", false)
		require.NoError(t, err)
		first := detok.New(tok, o)
		for cut, id := range ids {
			again := detok.New(tok, o)
			for _, id := range ids[:cut] {
				again.Push(id)
			}
			wantText, wantStopped := first.Push(id)
			text, stopped := again.Push(id)
			require.Equal(t, wantText, text)
			require.Equal(t, wantStopped, stopped)
			if stopped {
				return
			}
		}
	})
}

func TestNamedSpecialTokensAreKept(t *testing.T) {
	tok := load(t, demoModel)
	ids, err := tok.Encode("<|user|>a<|end|>b<|assistant|>", false)
	require.NoError(t, err)
	text, _ := stream(t, tok, detok.Options{Keep: []string{"<|end|>", "<|assistant|>"}}, ids)
	require.Equal(t, "a<|end|>b<|assistant|>", text)
	text, stopped := stream(t, tok, detok.Options{Keep: []string{"<|end|>"}, Stop: []string{"d|>b"}}, ids)
	require.Equal(t, "a<|en", text, "a stop string may begin inside a kept token")
	require.True(t, stopped)
}

func TestACutTextIsABeginningOfTheWholeOne(t *testing.T) {
	every(t, func(t *testing.T, tok *tokenizer.Tokenizer) {
		const text = "a 世界 👩‍🚀 é x"
		ids, err := tok.Encode(text, false)
		require.NoError(t, err)
		whole := decode(t, tok, ids, true)
		longest := 0
		for n := range len(ids) + 1 {
			s := detok.New(tok, detok.Options{})
			var all strings.Builder
			for _, id := range ids[:n] {
				piece, _ := s.Push(id)
				all.WriteString(piece)
			}
			all.WriteString(s.Cut())
			require.True(t, strings.HasPrefix(whole, all.String()), "%d of %v: found %q, expected a beginning of %q", n, ids, all.String(),
				whole)
			require.GreaterOrEqual(t, all.Len(), longest, "no whole character is left out")
			longest = all.Len()
		}
		require.Equal(t, len(whole), longest)
	})
}
