package sample

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestValidateNamesTheFieldTheValueAndTheRange(t *testing.T) {
	nan := float32(math.NaN())
	for _, c := range []struct {
		p    Params
		says string
	}{
		{Params{Temperature: -0.1}, "temperature: found -0.1, expected 0 to 2"},
		{Params{Temperature: nan}, "temperature: found NaN, expected 0 to 2"},
		{Params{Temperature: float32(math.Inf(1))}, "temperature: found +Inf, expected 0 to 2"},
		{Params{TopK: -2}, "top_k: found -2, expected -1 or 0 (off), or more"},
		{Params{TopP: 1.5}, "top_p: found 1.5, expected 0 to 1"},
		{Params{MinP: nan}, "min_p: found NaN, expected 0 to 1"},
		{Params{TypicalP: -1}, "typical_p: found -1, expected 0 to 1"},
		{Params{RepetitionPenalty: -1}, "repetition_penalty: found -1, expected 0.01 to 100"},
		{Params{RepetitionPenalty: nan}, "repetition_penalty: found NaN, expected 0.01 to 100"},
		{Params{PresencePenalty: 2.5}, "presence_penalty: found 2.5, expected -2 to 2"},
		{Params{FrequencyPenalty: -2.5}, "frequency_penalty: found -2.5, expected -2 to 2"},
		{Params{TopNSigma: -1}, "top_n_sigma: found -1, expected 0 to 100"},
		{Params{XTC: XTC{Probability: 1.5}}, "xtc_probability: found 1.5, expected 0 to 1"},
		{Params{XTC: XTC{Threshold: nan}}, "xtc_threshold: found NaN, expected 0 to 1"},
		{Params{DRY: &DRY{Multiplier: -1, Base: 2}}, "dry_multiplier: found -1, expected 0 to 100"},
		{Params{DRY: &DRY{Base: 0.5}}, "dry_base: found 0.5, expected 1 to 100"},
		{Params{DRY: &DRY{Base: 2, Allowed: -1}}, "dry_allowed_length: found -1, expected 0 or more"},
		{Params{DRY: &DRY{Base: 2, Last: -2}}, "dry_penalty_last_n: found -2, expected -1 (all), or 0 or more"},
		{Params{DRY: &DRY{Base: 2, Breakers: []string{"a", ""}}}, "dry_sequence_breakers[1]: found 0 bytes, expected 1 to 64"},
		{Params{BadWords: make([]string, 257)}, "bad_words: found 257 texts, expected at most 256"},
		{Params{TopLogprobs: 21}, "top_logprobs: found 21, expected 0 to 20"},
		{Params{TopLogprobs: -1}, "top_logprobs: found -1, expected 0 to 20"},
		{Params{LogitBias: map[int32]float32{9: 1, 5: nan}}, "logit_bias[5]: found NaN, expected -100 to 100"},
		{Params{LogitBias: map[int32]float32{9: 101}}, "logit_bias[9]: found 101, expected -100 to 100"},
		{Params{LogitBias: map[int32]float32{-1: 0}}, "logit_bias[-1]: found token -1, expected a token id, 0 or more"},
	} {
		var field *ParamError
		require.ErrorAs(t, c.p.Validate(), &field)
		require.Equal(t, c.says, field.Error())
	}
}

func TestValidateAcceptsTheEndsOfTheRanges(t *testing.T) {
	for _, p := range []Params{
		{},
		Default(),
		{Temperature: 2, TopK: math.MaxInt, TopP: 1, MinP: 1, TypicalP: 1, RepetitionPenalty: 100, PresencePenalty: 2, FrequencyPenalty: 2,
			TopLogprobs: 20},
		{DRY: &DRY{Multiplier: 100, Base: 100, Last: -1, Breakers: []string{"a"}}, TopNSigma: 100, XTC: XTC{1, 1}, BadWords: []string{"a"}},
		{TopK: -1, RepetitionPenalty: 0.01, PresencePenalty: -2, FrequencyPenalty: -2, LogitBias: map[int32]float32{0: 100, 1: -100}},
	} {
		require.NoError(t, p.Validate())
	}
}

func TestBiasOutsideTheVocabularyIsAnError(t *testing.T) {
	p := Params{LogitBias: map[int32]float32{9: 1, 10: 1}}
	require.NoError(t, p.ValidateVocab(11))
	require.EqualError(t, p.ValidateVocab(10), "logit_bias[10]: found token 10, expected a token id below 10")
}

// TestNumbersAreEachAFieldOfTheirOwn: a row with the field of another would read one parameter of a request into two.
func TestNumbersAreEachAFieldOfTheirOwn(t *testing.T) {
	var p Params
	seen := map[any]string{}
	for _, n := range Numbers() {
		field := n.In(&p)
		require.NotContains(t, seen, field, n.Name)
		seen[field] = n.Name
		switch v := field.(type) {
		case *float32:
			*v = 1
		case *int:
			*v = 1
		default:
			require.Failf(t, "found another type", "%s: %T, expected *float32 or *int", n.Name, field)
		}
		require.NotEmpty(t, n.Off, n.Name)
		for _, v := range append(n.Off, n.Default) {
			require.True(t, v >= n.Min && v <= n.Max, "%s: %g", n.Name, v)
		}
	}
	require.Equal(t, Params{Temperature: 1, TopP: 1, TopK: 1, MinP: 1, TypicalP: 1, RepetitionPenalty: 1, PresencePenalty: 1,
		FrequencyPenalty: 1,
		MinTokens:        1, TopNSigma: 1}, p)
}
