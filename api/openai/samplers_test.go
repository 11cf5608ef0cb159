package openai

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/compute/sample"
)

func TestSamplersOfLlamaReachTheRequest(t *testing.T) {
	got := chat(t, `,"dry_multiplier":0.5,"dry_base":2,"dry_allowed_length":3,"dry_penalty_last_n":64,"dry_sequence_breakers":["a","é"],
		"xtc_probability":0.5,"xtc_threshold":0.25,"top_n_sigma":1.5,"bad_words":["x y"]`).Sampling
	require.Equal(t, &sample.DRY{Multiplier: 0.5, Base: 2, Allowed: 3, Last: 64, Breakers: []string{"a", "é"}}, got.DRY)
	require.Equal(t, sample.XTC{Probability: 0.5, Threshold: 0.25}, got.XTC)
	require.InDelta(t, 1.5, got.TopNSigma, 0)
	require.Equal(t, []string{"x y"}, got.BadWords)

	got = chat(t, `,"dry_multiplier":0.5,"xtc_probability":0.5`).Sampling
	require.Equal(t, &sample.DRY{Multiplier: 0.5, Base: 1.75, Allowed: 2, Last: -1, Breakers: []string{"\n", ":", "\"", "*"}}, got.DRY,
		"llama.cpp's defaults")
	require.Equal(t, sample.XTC{Probability: 0.5, Threshold: 0.1}, got.XTC)
	require.Empty(t, chat(t, `,"dry_multiplier":0.5,"dry_sequence_breakers":[]`).Sampling.DRY.Breakers, "no breakers")

	off := chat(t, `,"seed":1`).Sampling
	for _, fields := range []string{
		`"dry_multiplier":0,"dry_base":3,"dry_sequence_breakers":["x"]`, `"xtc_probability":0,"xtc_threshold":0.3`, `"top_n_sigma":-1`,
		`"top_n_sigma":0`, `"bad_words":[]`,
		`"dry_multiplier":null,"dry_sequence_breakers":null,"top_n_sigma":null,"bad_words":null`,
	} {
		require.Equal(t, off, chat(t, `,"seed":1,`+fields).Sampling, fields)
	}
}

func TestSamplersOfLlamaOutsideTheirRangesAreRefused(t *testing.T) {
	for _, c := range []struct{ fields, says string }{
		{`"dry_multiplier":-1`, "dry_multiplier: expected a number from 0 to 100, found -1"},
		{`"dry_base":0.5`, "dry_base: expected a number from 1 to 100, found 0.5"},
		{`"dry_allowed_length":-1`, "dry_allowed_length: expected an integer from 0 to 16777216, found -1"},
		{`"dry_penalty_last_n":-2`, "dry_penalty_last_n: expected an integer from -1 to 2147483647, found -2"},
		{`"dry_sequence_breakers":"x"`, `dry_sequence_breakers: expected a list, found "x"`},
		{`"dry_sequence_breakers":["x",7]`, "dry_sequence_breakers[1]: expected a string, found 7"},
		{`"dry_sequence_breakers":["` + strings.Repeat("x", 65) + `"]`, "dry_sequence_breakers[0]: expected 1 to 64 bytes, found 65"},
		{`"dry_sequence_breakers":["a"` + strings.Repeat(`,"a"`, 16) + `]`, "dry_sequence_breakers: expected at most 16 entries, found 17"},
		{`"xtc_probability":1.1`, "xtc_probability: expected a number from 0 to 1, found 1.1"},
		{`"xtc_threshold":"a"`, `xtc_threshold: expected a number from 0 to 1, found "a"`},
		{`"top_n_sigma":-2`, "top_n_sigma: expected a number from -1 to 100, found -2"},
		{`"bad_words":[""]`, "bad_words[0]: expected 1 to 256 bytes, found 0"},
		{`"bad_words":{}`, "bad_words: expected a list, found {}"},
		{`"use_beam_search":true,"n":2,"dry_multiplier":1`, "dry_multiplier: not supported together with use_beam_search, found 1"},
		{`"use_beam_search":true,"n":2,"xtc_probability":1`, "xtc_probability: not supported together with use_beam_search, found 1"},
		{`"use_beam_search":true,"n":2,"top_n_sigma":1`, "top_n_sigma: not supported together with use_beam_search, found 1"},
		{`"use_beam_search":true,"n":2,"bad_words":["a"]`, `bad_words: not supported together with use_beam_search, found ["a"]`},
	} {
		_, err := DecodeCompletion([]byte(`{"prompt":"a",`+c.fields+`}`), served, arrival)
		require.EqualError(t, err, c.says)
		var e *api.Error
		require.ErrorAs(t, err, &e)
		require.Equal(t, strings.SplitN(c.says, ":", 2)[0], e.Param)
	}
	_, err := DecodeCompletion([]byte(`{"prompt":"a","use_beam_search":true,"n":2,"bad_words":[],"top_n_sigma":-1,"dry_multiplier":0}`),
		served, arrival)
	require.NoError(t, err, "neutral values")
}
