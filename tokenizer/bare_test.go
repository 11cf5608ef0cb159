package tokenizer_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/tokenizer"
)

func TestAModelWithoutTokenizerTakesIdsAndHasNoText(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(dir+"/config.json", []byte(`{"eos_token_id":[7,2]}`), 0o600))
	tok, err := tokenizer.LoadOrBare(dir, 10)
	require.NoError(t, err)
	require.Equal(t, 10, tok.VocabSize())
	require.Equal(t, []int32{2, 7}, tok.EOS())
	text, err := tok.Decode([]int32{0, 9}, false)
	require.NoError(t, err)
	require.Empty(t, text)
	_, err = tok.Decode([]int32{10}, false)
	require.ErrorIs(t, err, tokenizer.ErrToken)
	_, err = tok.Encode("text", false)
	require.EqualError(t, err, "the model has no tokenizer.json: only token ids can be used")
	require.Equal(t, err, tok.NoText())
	require.NoError(t, tok.Close())

	require.NoError(t, os.WriteFile(dir+"/tekken.json", []byte(`{}`), 0o600))
	tok, err = tokenizer.LoadOrBare(dir, 10)
	require.NoError(t, err)
	require.ErrorContains(t, tok.NoText(), "the model has tekken.json but no tokenizer.json, which")
	_, err = tok.Grammars()
	require.Equal(t, tok.NoText(), err)

	tok, err = tokenizer.LoadOrBare("../models/tiny-chat", 10)
	require.NoError(t, err)
	require.Equal(t, 4096, tok.VocabSize(), "a tokenizer that is there is used")
	require.NoError(t, tok.NoText())
	require.NoError(t, tok.Close())
}
