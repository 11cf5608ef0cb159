package sample

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestADrawIsWhatSampleDraws: a device that gets the Draw of a position has all that it needs.
func TestADrawIsWhatSampleDraws(t *testing.T) {
	rng := rand.New(rand.NewPCG(61, 67))
	var ws Scratch
	for n := range 3000 {
		vocab := 1 + rng.IntN(700)
		p, logits, position := randomParams(rng, vocab), randomLogits(rng, vocab), rng.IntN(1<<20)
		p.TypicalP = 0
		if n%5 == 0 {
			p.Temperature = 0
		}
		var mask []uint32
		if n%3 == 0 {
			mask = make([]uint32, (vocab+31)/32)
			for i := range mask {
				mask[i] = rng.Uint32()
			}
		}
		s := New(p, vocab, nil)
		d, ok := s.Draw(position)
		require.True(t, ok)
		d.Mask = mask
		token, err := d.Token(slices.Clone(logits), &ws)
		c, wanted := s.SampleMasked(slices.Clone(logits), mask, position, &ws)
		require.Equal(t, wanted, err)
		require.Equal(t, c.Token, token, "%+v", p)
		require.Equal(t, p.Temperature == 0 && mask == nil, d.Greedy())
	}
}

// TestWhatADrawDoesNotSayIsLeftToSample: each of these changes or reads the logits.
func TestWhatADrawDoesNotSayIsLeftToSample(t *testing.T) {
	const vocab = 50
	for name, p := range map[string]Params{
		"log probabilities":  {Logprobs: true},
		"a bias":             {LogitBias: map[int32]float32{3: 1}},
		"a repeated token":   {RepetitionPenalty: 1.1},
		"DRY":                {DRY: &DRY{Multiplier: 1, Base: 2, Last: -1}},
		"bad words":          {Tokens: &TextTokens{Words: [][]int32{{4}}}},
		"a minimum":          {MinTokens: 4},
		"spent reasoning":    {Thinking: &Thinking{Begun: true, End: 7, Start: -1}},
		"top_n_sigma":        {Temperature: 1, TopNSigma: 1},
		"typical_p":          {Temperature: 1, TypicalP: 0.5},
		"XTC":                {Temperature: 1, XTC: XTC{Probability: 1, Threshold: 0.1}},
		"a frequent token":   {FrequencyPenalty: 1},
		"a token that is in": {PresencePenalty: 1},
	} {
		s := New(p, vocab, []int32{1, 2})
		s.Ends([]int32{9}, 2)
		s.Accept(5)
		_, ok := s.Draw(3)
		require.False(t, ok, name)
	}
	for name, p := range map[string]Params{
		"greedy":              {},
		"a temperature":       {Temperature: 1, TopK: 5, TopP: 0.9, MinP: 0.1},
		"reasoning":           {Thinking: &Thinking{Begun: true, Budget: 9, End: 7, Start: -1}},
		"an enough of tokens": {MinTokens: 1},
	} {
		s := New(p, vocab, []int32{1, 2})
		s.Ends([]int32{9}, 2)
		s.Accept(5)
		_, ok := s.Draw(3)
		require.True(t, ok, name)
	}
}

// TestADrawAheadDoesNotDependOnTheTokenBeforeIt, which is not known yet.
func TestADrawAheadDoesNotDependOnTheTokenBeforeIt(t *testing.T) {
	for name, c := range map[string]struct {
		params Params
		ahead  bool
	}{
		"greedy":             {Params{}, true},
		"a temperature":      {Params{Temperature: 1, TopK: 5, TopP: 0.9, MinP: 0.1, Seed: 3}, true},
		"a frequent token":   {Params{FrequencyPenalty: 1}, false},
		"a token that is in": {Params{PresencePenalty: 1}, false},
		"reasoning":          {Params{Thinking: &Thinking{Begun: true, Budget: 1, End: 7, Start: -1}}, false},
	} {
		s := New(c.params, 50, nil)
		d, ok := s.Draw(3)
		require.True(t, ok, name)
		ahead, ok := s.DrawAhead(3)
		require.Equal(t, c.ahead, ok, name)
		if ok {
			require.Equal(t, d, ahead, name)
		}
	}
}
