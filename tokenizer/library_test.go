package tokenizer_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/tokenizer"
)

// wordLevel is a tokenizer.json of whole words, with further members and a decoder.
func wordLevel(members, decoder string) string {
	return fmt.Sprintf(`{"version":"1.0","added_tokens":[],"normalizer":null,"post_processor":null,%s
		"pre_tokenizer":{"type":"WhitespaceSplit"},"decoder":%s,
		"model":{"type":"WordLevel","vocab":{"a":0,"b":1,"ab":2},"unk_token":"?"}}`, members, decoder)
}

func loadJSON(t *testing.T, content string) *tokenizer.Tokenizer {
	t.Helper()
	dir := t.TempDir()
	write(t, dir, "tokenizer.json", content)
	return load(t, dir)
}

func TestAFailedEncodeIsAnErrorWithTheReason(t *testing.T) {
	tok := loadJSON(t, wordLevel("", "null"))
	_, err := tok.Encode("a b unheard", false)
	require.ErrorIs(t, err, tokenizer.ErrLibrary)
	require.ErrorContains(t, err, "WordLevel error: Missing [UNK] token")
	ids, err := tok.Encode("a b", false)
	require.NoError(t, err, "the next text is not refused for it")
	require.Equal(t, []int32{0, 1}, ids)
}

// The library indexes below zero where the Strip decoder takes more characters than a token has.
func TestAPanicOfTheLibraryIsAnError(t *testing.T) {
	tok := loadJSON(t, wordLevel("", `{"type":"Strip","content":"b","start":0,"stop":2}`))
	_, err := tok.Decode([]int32{0, 1}, false)
	require.ErrorIs(t, err, tokenizer.ErrLibrary)
	require.ErrorContains(t, err, "internal error in the tokenizers library")
	text, err := tok.Decode([]int32{2}, false)
	require.NoError(t, err)
	require.Equal(t, "a", text)
}

func TestWhatTokenizerJSONSaysOfTruncationAndPaddingIsOff(t *testing.T) {
	const truncation = `"truncation":{"direction":"Right","max_length":3,"strategy":"LongestFirst","stride":0},`
	const padding = `"padding":{"strategy":{"Fixed":16},"direction":"Right","pad_to_multiple_of":8,"pad_id":1,"pad_type_id":0,"pad_token":"b"},`
	for name, members := range map[string]string{"truncation": truncation, "padding": padding, "both": truncation + padding} {
		t.Run(name, func(t *testing.T) {
			tok := loadJSON(t, wordLevel(members, "null"))
			for _, n := range []int{1, 2, 3, 5, 17, 1000} {
				for _, special := range []bool{false, true} {
					ids, err := tok.Encode(strings.Repeat("a ", n), special)
					require.NoError(t, err)
					require.Equal(t, make([]int32, n), ids)
				}
			}
		})
	}
}
