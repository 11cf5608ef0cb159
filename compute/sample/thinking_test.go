package sample

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

const (
	thinkStart = 5
	thinkEnd   = 6
	thinkVocab = 16
)

// draw returns the token that a sampler draws where favorite is the likeliest.
func draw(t *testing.T, s *Sampler, favorite int32, position int) Choice {
	t.Helper()
	logits := make([]float32, thinkVocab)
	logits[favorite] = 3
	c, err := s.Sample(logits, position, &Scratch{})
	require.NoError(t, err)
	s.Accept(c.Token)
	return c
}

func thinker(budget int, begun bool) Params {
	return Params{Thinking: &Thinking{Budget: budget, Start: thinkStart, End: thinkEnd, Begun: begun}, Logprobs: true, TopLogprobs: 1}
}

func TestReasoningEndsAtItsBudget(t *testing.T) {
	for name, c := range map[string]struct {
		params    Params
		favorites []int32
		want      []int32
	}{
		"begun by the prompt":      {thinker(3, true), []int32{1, 2, 3, 4, 1}, []int32{1, 2, 3, thinkEnd, 1}},
		"begun again by the model": {thinker(2, true), []int32{thinkStart, 1, 2, 3, 4}, []int32{thinkStart, 1, 2, thinkEnd, 4}},
		"begun by the model":       {thinker(2, false), []int32{thinkStart, 1, 2, 3, 4}, []int32{thinkStart, 1, 2, thinkEnd, 4}},
		"never begun":              {thinker(1, false), []int32{1, 2, 3, 4}, []int32{1, 2, 3, 4}},
		"without a token":          {thinker(0, true), []int32{1, 2, 3}, []int32{thinkEnd, 2, 3}},
		"ended by itself": {thinker(3, true), []int32{1, thinkEnd, 2, 3, 4, thinkStart, 1, 2, 3, 4, 5},
			[]int32{1, thinkEnd, 2, 3, 4, thinkStart, 1, 2, 3, 4, 5}},
		"ended by itself at its limit": {thinker(1, true), []int32{1, thinkEnd, 2}, []int32{1, thinkEnd, 2}},
	} {
		s := New(c.params, thinkVocab, []int32{9, 9})
		var got []int32
		for i, favorite := range c.favorites {
			got = append(got, draw(t, s, favorite, 2+i).Token)
		}
		require.Equal(t, c.want, got, name)
		for at := range got { // a sampler that begins again after any token continues in the same way
			again := New(c.params, thinkVocab, []int32{9, 9})
			again.Replay(got[:at])
			require.Equal(t, got[at], draw(t, again, c.favorites[at], 2+at).Token, "%s, token %d", name, at)
		}
	}
}

func TestTheForcedEndHasItsOwnLogprob(t *testing.T) {
	s := New(thinker(0, true), thinkVocab, nil)
	c := draw(t, s, 1, 0)
	require.EqualValues(t, thinkEnd, c.Token)
	require.EqualValues(t, 1, c.Top[0].Token)
	require.Less(t, c.Logprob, c.Top[0].Logprob)
}

func TestNoEndIsDrawnBeforeTheLeastTokens(t *testing.T) {
	p := Params{MinTokens: 3, Logprobs: true, TopLogprobs: 1}
	s := New(p, thinkVocab, []int32{9, 9})
	s.Ends([]int32{7, 8, -1, thinkVocab}, 2)
	for i, want := range []int32{0, 0, 0, 7, 7} { // 0: the first of the equal others
		c := draw(t, s, 7, 2+i)
		require.Equal(t, want, c.Token, "token %d", i)
		require.EqualValues(t, 7, c.Top[0].Token, "log probabilities are the model's own")
	}
	free := New(Params{}, thinkVocab, nil)
	free.Ends([]int32{7}, 0)
	require.EqualValues(t, 7, draw(t, free, 7, 0).Token)
}

func TestAScoreIsTheTokensPlaceAmongAll(t *testing.T) {
	logits := []float32{1, 3, 2, 3, 0}
	s, err := Score(logits, 2, 2)
	require.NoError(t, err)
	require.Equal(t, 3, s.Rank, "two are likelier")
	require.Equal(t, []int32{1, 3}, []int32{s.Top[0].Token, s.Top[1].Token})
	require.InDelta(t, float64(s.Top[0].Logprob)-1, float64(s.Logprob), 1e-6)
	one, err := Score(logits, 3, 0)
	require.NoError(t, err)
	require.Equal(t, 1, one.Rank)
	require.NotNil(t, one.Top)
	_, err = Score(logits, 5, 0)
	require.ErrorIs(t, err, ErrLogits)
	_, err = Score([]float32{0, float32(math.NaN())}, 0, 0)
	require.ErrorIs(t, err, ErrLogits)
}

func TestLogProbabilitiesOfTokensAreTheirScores(t *testing.T) {
	logits := []float32{1, 3, 2, 3, 0}
	tokens := []int32{4, 1, 1, 2}
	found, err := Logprobs(logits, tokens)
	require.NoError(t, err)
	for i, token := range tokens {
		s, err := Score(logits, token, 0)
		require.NoError(t, err)
		require.Equal(t, s.Logprob, found[i])
	}
	for _, bad := range []int32{-1, 5} {
		_, err = Logprobs(logits, []int32{0, bad})
		require.ErrorIs(t, err, ErrLogits)
	}
	_, err = Logprobs([]float32{0, float32(math.Inf(1))}, []int32{0})
	require.ErrorIs(t, err, ErrLogits)
}

func TestBadBoundsAreRefused(t *testing.T) {
	for _, p := range []Params{{MinTokens: -1}, {Thinking: &Thinking{Budget: -1}}, {Thinking: &Thinking{End: -1}}} {
		require.Error(t, p.Validate())
	}
	require.Error(t, Params{Thinking: &Thinking{End: thinkVocab}}.ValidateVocab(thinkVocab))
	require.NoError(t, Params{Thinking: &Thinking{End: thinkEnd}}.ValidateVocab(thinkVocab))
}
