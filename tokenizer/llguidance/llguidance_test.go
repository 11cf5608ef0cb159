package llguidance

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/compute/grammar"
)

// letters is a vocabulary of bytes, and two ends.
func letters(t *testing.T) *Engine {
	t.Helper()
	tokens := make([]Token, 258)
	for b := range 256 {
		tokens[b].Bytes = []byte{byte(b)}
	}
	tokens[256], tokens[257] = Token{Bytes: []byte("</s>")}, Token{Bytes: []byte("<end>"), Special: true}
	e, err := New(nil, tokens, []int32{256, 257})
	require.NoError(t, err)
	return e
}

func TestAVocabularyWithoutAnEndIsRefused(t *testing.T) {
	_, err := New(nil, make([]Token, 3), nil)
	require.ErrorContains(t, err, "names no token that ends an answer")
	_, err = New(nil, make([]Token, 3), []int32{3})
	require.ErrorContains(t, err, "expected one below 3")
}

func TestAllEndsAreAllowedWhereTheGrammarEnds(t *testing.T) {
	e := letters(t)
	p, err := e.Compile(grammar.Regex, "ab?")
	require.NoError(t, err)
	a, err := p.Start()
	require.NoError(t, err)
	defer a.Close()
	list := func() (ids []int32) {
		mask := grammar.NewMask(300)
		require.NoError(t, a.Mask(mask))
		for id := range int32(300) {
			if mask.Allows(id) {
				ids = append(ids, id)
			}
		}
		return ids
	}
	require.Equal(t, []int32{'a'}, list())
	ok, ended, err := a.Advance('a')
	require.True(t, ok && !ended && err == nil)
	require.Equal(t, []int32{'b', 256, 257}, list())
	ok, ended, err = a.Advance('b')
	require.True(t, ok && ended && err == nil)
	require.Equal(t, []int32{256, 257}, list())
	require.NoError(t, a.Rollback(2))
	require.Equal(t, []int32{'a'}, list())
	for _, id := range []int32{-1, 258, 'b', 256} {
		ok, _, err := a.Advance(id)
		require.True(t, !ok && err == nil, "%d", id)
	}
	require.Equal(t, []int32{'a'}, list(), "refused tokens change nothing")
}

func TestAnAutomatonThatFailedKeepsFailing(t *testing.T) {
	p, err := letters(t).Compile(grammar.Regex, "ab")
	require.NoError(t, err)
	a, err := p.Start()
	require.NoError(t, err)
	defer a.Close()
	require.ErrorIs(t, a.Rollback(1), ErrEngine)
	require.ErrorIs(t, a.Mask(grammar.NewMask(258)), ErrEngine)
	other, err := p.Start()
	require.NoError(t, err)
	defer other.Close()
	require.NoError(t, other.Mask(grammar.NewMask(258)), "others of the program do not")
}

func TestMessagesAreOneShortLine(t *testing.T) {
	require.Equal(t, "a b c", oneLine(" a\n b\tc\n"))
	long := oneLine(strings.Repeat("é", 400))
	require.LessOrEqual(t, len(long), maxMessage+3)
	require.True(t, strings.HasSuffix(long, "é..."))
}
