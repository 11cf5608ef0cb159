package tokenizer_test

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/tokenizer"
)

// TestTextsAndPairsAreAsInTransformers compares ids and types with those of transformers, for tokenizers of WordPiece, Unigram and
// byte-level BPE, with templates and the post-processors of BERT and RoBERTa.
func TestTextsAndPairsAreAsInTransformers(t *testing.T) {
	dirs, err := filepath.Glob("../testdata/encoders/*")
	require.NoError(t, err)
	require.Len(t, dirs, 41)
	for _, dir := range dirs {
		var cases []struct {
			Text  string
			Pair  *string
			IDs   []int32
			Types []int
		}
		readFixture(t, filepath.Join(dir, "expected.json"), &cases)
		tok := load(t, dir)
		pairs := 0
		for _, c := range cases {
			if c.Pair == nil {
				ids, err := tok.Encode(c.Text, true)
				require.NoError(t, err)
				require.Equal(t, c.IDs, ids, "%s %q", dir, c.Text)
				continue
			}
			pairs++
			ids, second, err := tok.EncodePair(c.Text, *c.Pair)
			require.NoError(t, err)
			require.Equal(t, c.IDs, ids, "%s %q", dir, c.Text)
			want := slices.Index(c.Types, 1)
			if want < 0 {
				want = len(ids)
			}
			require.Equal(t, want, second, "%s %q", dir, c.Text)
		}
		require.Equal(t, 3, pairs)
	}
}

func TestAPairNeedsATemplateThatIsKnown(t *testing.T) {
	const file = `{"version":"1.0","added_tokens":[],"model":{"type":"WordLevel","vocab":{"a":0,"b":1,"c":2},"unk_token":"c"},"post_processor":`
	open := func(processor string) *tokenizer.Tokenizer {
		dir := t.TempDir()
		require.NoError(t, os.WriteFile(filepath.Join(dir, "tokenizer.json"), []byte(file+processor+"}"), 0o600))
		return load(t, dir)
	}
	ids, second, err := open("null").EncodePair("a", "b")
	require.NoError(t, err)
	require.Equal(t, []int32{0, 1}, ids)
	require.Equal(t, 1, second, "as tokenizers without a template")

	_, _,
		err = open(`{"type":"TemplateProcessing","single":[{"Sequence":{"id":"A","type_id":0}}],"pair":[{"Sequence":{"id":"A","type_id":1}},{"Sequence":{"id":"B","type_id":0}}],"special_tokens":{}}`).
		EncodePair("a", "b")
	require.ErrorIs(t, err, tokenizer.ErrFile)
	require.ErrorContains(t, err, "part 1 of the template for pairs has type 0 after 1")

	_, _, err = tokenizerOfIDs(t).EncodePair("a", "b")
	require.ErrorContains(t, err, "only token ids")
}

// tokenizerOfIDs is one without texts.
func tokenizerOfIDs(t *testing.T) *tokenizer.Tokenizer {
	t.Helper()
	tok, err := tokenizer.Bare(t.TempDir(), 3)
	require.NoError(t, err)
	return tok
}
