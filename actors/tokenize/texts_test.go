package tokenize

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/compute/sample"
	"github.com/millrace/millrace/tokenizer"
)

func loadTokenizer(t *testing.T, name string) *tokenizer.Tokenizer {
	t.Helper()
	tok, err := tokenizer.Load("../../testdata/" + name)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, tok.Close()) })
	return tok
}

// tokenizers are a byte-level one, and two that write a space before a text.
var tokenizers = []string{"tokenizers/byte-level", "tokenizers/byte-fallback-metaspace", "tokenizers/unigram"}

func TestTheTokensOfABadWordAreItsSpellings(t *testing.T) {
	for _, name := range tokenizers {
		t.Run(name, func(t *testing.T) {
			tok := loadTokenizer(t, name)
			for _, text := range []string{"Hello world", "a world", "\nworld", "worlds", "“world”"} {
				ids, err := tok.Encode(text, false)
				require.NoError(t, err)
				out, err := textTokens(tok, &sample.Texts{Words: []string{"world"}}, nil)
				require.NoError(t, err)
				require.True(t, slices.ContainsFunc(out.Words, func(word []int32) bool { return contains(ids, word) }),
					"%q: %v has none of %v", text,
					ids, out.Words)
			}
			for _, word := range []string{" ", "\n", "  world"} {
				out, err := textTokens(tok, &sample.Texts{Words: []string{word}}, nil)
				require.NoError(t, err)
				require.NotEmpty(t, out.Words)
				for _, ids := range out.Words {
					require.NotEmpty(t, ids, "%q", word)
				}
			}
		})
	}
}

func contains(ids, part []int32) bool {
	for i := range ids {
		if i+len(part) <= len(ids) && slices.Equal(ids[i:i+len(part)], part) {
			return true
		}
	}
	return false
}

func TestTheTokensOfABreakerCoverIt(t *testing.T) {
	for _, name := range tokenizers[:2] { // the last one has no line feed
		t.Run(name, func(t *testing.T) {
			tok := loadTokenizer(t, name)
			b := &breakers{tokenizer: tok}
			out, err := textTokens(tok, &sample.Texts{Breakers: []string{"\n", "ing on"}}, b)
			require.NoError(t, err)
			for _, id := range out.Breaks {
				text := string(tok.TokenBytes(id))
				require.True(t, strings.Contains(text, "\n") || strings.Contains(text, "ing on"), "%q", text)
			}
			for _, text := range []string{"one\ntwo", "He goes walking on the road"} {
				ids, err := tok.Encode(text, false)
				require.NoError(t, err)
				single := slices.ContainsFunc(ids, func(id int32) bool { return slices.Contains(out.Breaks, id) })
				long := slices.ContainsFunc(out.LongBreaks, func(part []int32) bool { return contains(ids, part) })
				require.True(t, single || long, "%q: %v", text, ids)
			}
			again, err := b.of([]string{"\n", "ing on"})
			require.NoError(t, err)
			require.Equal(t, out.LongBreaks, again.long)
			for i := range 3 * mostBreakers {
				_, err := b.of([]string{fmt.Sprint(i)})
				require.NoError(t, err)
				require.LessOrEqual(t, len(b.kept), mostBreakers)
			}
		})
	}
}

func TestTextsThatAreNoneAreRefusedByTheirField(t *testing.T) {
	tok := loadTokenizer(t, tokenizers[0])
	for field, texts := range map[string]*sample.Texts{"bad_words": {Words: []string{"a\xff"}},
		"dry_sequence_breakers": {Breakers: []string{"a\xff"}}} {
		_, err := textTokens(tok, texts, &breakers{tokenizer: tok})
		var e *api.Error
		require.ErrorAs(t, err, &e)
		require.Equal(t, field, e.Param)
		require.ErrorContains(t, err, "UTF-8")
	}
}
