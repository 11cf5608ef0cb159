package openai

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/compute/sample"
)

func TestBeamSearchAsVLLMAndTransformersSpellIt(t *testing.T) {
	recommended := []api.Model{{ID: "m", WeightFacts: api.WeightFacts{Sampling: sample.Params{Temperature: 0.6, TopP: 0.9, TopK: 50}}}}
	for body, want := range map[string]struct {
		n int
		p sample.BeamParams
	}{
		`"num_beams":4`:                               {1, sample.BeamParams{Width: 4, LengthPenalty: 1}},
		`"num_beams":4,"n":3,"temperature":0.0`:       {3, sample.BeamParams{Width: 4, LengthPenalty: 1}},
		`"best_of":3,"length_penalty":-0.7`:           {1, sample.BeamParams{Width: 3, LengthPenalty: -0.7}},
		`"best_of":3,"num_beams":3,"top_k":-1`:        {1, sample.BeamParams{Width: 3, LengthPenalty: 1}},
		`"n":2,"early_stopping":true,"logit_bias":{}`: {2, sample.BeamParams{Width: 2, LengthPenalty: 1, Early: sample.StopAtOnce}},
		`"n":64,"early_stopping":"never","top_p":1`:   {64, sample.BeamParams{Width: 64, LengthPenalty: 1, Early: sample.StopNever}},
	} {
		c, err := DecodeCompletion([]byte(`{"prompt":"a","use_beam_search":true,`+body+`}`), recommended, arrival)
		require.NoError(t, err, body)
		r := c.Requests[0]
		require.Equal(t, &want.p, r.Beams, body)
		require.Equal(t, want.n, r.N)
		require.Equal(t, sample.Params{}, r.Sampling, "what the checkpoint recommends is not for beams")
	}
	c, err := DecodeCompletion([]byte(`{"prompt":"a","use_beam_search":false,"early_stopping":false,"length_penalty":1,"num_beams":1}`),
		served, arrival)
	require.NoError(t, err)
	require.Nil(t, c.Requests[0].Beams)
}

func TestBeamSearchesThatCannotBeAreRefusedByTheFieldAtFault(t *testing.T) {
	const beams = `{"prompt":"a","use_beam_search":true,"num_beams":4,`
	for _, c := range []struct{ body, param string }{
		{`{"prompt":"a","use_beam_search":true}`, "num_beams"},
		{`{"prompt":"a","use_beam_search":true,"n":65}`, "num_beams"},
		{`{"prompt":"a","use_beam_search":1}`, "use_beam_search"},
		{`{"prompt":"a","use_beam_search":true,"num_beams":1}`, "num_beams"},
		{`{"prompt":"a","use_beam_search":true,"num_beams":65}`, "num_beams"},
		{`{"prompt":"a","num_beams":4}`, "num_beams"},
		{`{"prompt":"a","length_penalty":0.5}`, "length_penalty"},
		{`{"prompt":"a","early_stopping":true}`, "early_stopping"},
		{beams + `"n":5}`, "n"},
		{beams + `"best_of":3}`, "best_of"},
		{beams + `"length_penalty":10.5}`, "length_penalty"},
		{beams + `"length_penalty":"1"}`, "length_penalty"},
		{beams + `"early_stopping":"always"}`, "early_stopping"},
		{beams + `"temperature":0.1}`, "temperature"},
		{beams + `"top_p":0.9}`, "top_p"},
		{beams + `"top_k":1}`, "top_k"},
		{beams + `"min_p":0.1}`, "min_p"},
		{beams + `"typical_p":0.5}`, "typical_p"},
		{beams + `"repetition_penalty":1.1}`, "repetition_penalty"},
		{beams + `"presence_penalty":1}`, "presence_penalty"},
		{beams + `"frequency_penalty":1}`, "frequency_penalty"},
		{beams + `"logit_bias":{"5":1}}`, "logit_bias"},
	} {
		_, err := DecodeCompletion([]byte(c.body), served, arrival)
		var e *api.Error
		require.ErrorAs(t, err, &e, c.body)
		require.Equal(t, api.CodeInvalid, e.Code)
		require.Equal(t, c.param, e.Param, c.body)
	}
}
