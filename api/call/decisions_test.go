package call

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api"
)

// option is an option of tokens, each with its probability after those before it.
func option(pairs ...float64) (a api.AnswerLogprobs) {
	for i := 0; i < len(pairs); i += 2 {
		a.Tokens = append(a.Tokens, int32(pairs[i]))
		a.Logprobs = append(a.Logprobs, float32(math.Log(pairs[i+1])))
	}
	return a
}

func TestProbabilitiesOfOptionsAreThoseOfTheirTokens(t *testing.T) {
	for _, c := range []struct {
		name    string
		options []api.AnswerLogprobs
		want    []float64
		mass    float64
		best    int
	}{
		{"one token each", []api.AnswerLogprobs{option(1, 0.6), option(2, 0.2)}, []float64{0.75, 0.25}, 0.8, 0},
		{"several tokens", []api.AnswerLogprobs{option(1, 0.5, 2, 0.1), option(1, 0.5, 3, 0.9), option(4, 0.1)},
			[]float64{1. / 12, 9. / 12, 2. / 12}, 0.6, 1},
		{"a beginning of others", []api.AnswerLogprobs{option(1, 0.8), option(1, 0.8, 2, 0.25), option(1, 0.8, 2, 0.25, 3, 0.5),
			option(1, 0.8, 4, 0.5)},
			[]float64{0.25, 0.125, 0.125, 0.5}, 0.8, 3},
		{"all of it continues", []api.AnswerLogprobs{option(1, 0.5), option(1, 0.5, 2, 1)}, []float64{0, 1}, 0.5, 1},
		{"equal ones", []api.AnswerLogprobs{option(1, 0.1), option(2, 0.3), option(3, 0.3)}, []float64{1. / 7, 3. / 7, 3. / 7}, 0.7, 1},
	} {
		d, err := Decide(c.options)
		require.NoError(t, err, c.name)
		require.InDeltaSlice(t, c.want, d.Probabilities, 1e-6, c.name)
		require.InDelta(t, c.mass, d.Mass, 1e-6, c.name)
		require.Equal(t, c.best, d.Best, c.name)
		require.InDelta(t, c.want[c.best]*c.mass, d.Confidence(), 1e-6, c.name)
	}
}

// TestOptionsThatAreHardlyPossibleHaveProbabilities: the product of theirs is 0 in float64.
func TestOptionsThatAreHardlyPossibleHaveProbabilities(t *testing.T) {
	long := api.AnswerLogprobs{Tokens: make([]int32, 40), Logprobs: make([]float32, 40)}
	other := api.AnswerLogprobs{Tokens: []int32{7}, Logprobs: []float32{-1000}}
	for i := range long.Logprobs {
		long.Logprobs[i] = -25
	}
	d, err := Decide([]api.AnswerLogprobs{long, other})
	require.NoError(t, err)
	require.Equal(t, []float64{0.5, 0.5}, d.Probabilities)
	require.Zero(t, d.Mass)
	require.InDelta(t, 0.5, d.Expected(), 0)
}

func TestAnAnswerWithoutLogProbabilitiesIsAnError(t *testing.T) {
	for _, options := range [][]api.AnswerLogprobs{nil, {{}}, {option(1, 0.5), {Tokens: []int32{1}}}} {
		_, err := Decide(options)
		require.Equal(t, api.CodeInternal, api.AsError(err).Code)
	}
}
