package tokenizer

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/tokenizer/jinja"
)

// TestEachPartOfATextDigestIsInIt changes one at a time, the libraries among them.
func TestEachPartOfATextDigestIsInIt(t *testing.T) {
	require.NotEmpty(t, jinja.LibraryID, "the build names the archive's sources")
	named := func(text string) specialTokens {
		return specialTokens{text: map[string]string{"bos_token": text, "pad_token": "p"}, bos: 1, eos: 2}
	}
	other := named("<s>")
	other.bos = 3
	a, b := source{templates: map[string]string{"default": "t"}}, source{templates: map[string]string{"default": "u"}}
	d := source{templates: map[string]string{"default": "t", "tool_use": "u"}}
	c := a
	c.file[31] = 1
	digests := map[string]bool{}
	for _, digest := range []string{
		a.digest(9, named("<s>"), []int32{2}, "1"),
		a.digest(9, named("<s>"), []int32{2}, "2"),
		a.digest(9, named("<s>"), []int32{2, 4}, "1"),
		a.digest(9, named("<t>"), []int32{2}, "1"),
		a.digest(9, other, []int32{2}, "1"),
		a.digest(8, named("<s>"), []int32{2}, "1"),
		b.digest(9, named("<s>"), []int32{2}, "1"),
		d.digest(9, named("<s>"), []int32{2}, "1"),
		c.digest(9, named("<s>"), []int32{2}, "1"),
	} {
		require.Len(t, digest, 2*digestBytes)
		require.False(t, digests[digest])
		digests[digest] = true
	}
}
