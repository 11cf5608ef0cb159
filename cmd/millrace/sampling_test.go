package main

import (
	"bytes"
	"testing"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/compute/family"
	"github.com/millrace/millrace/compute/sample"
)

func TestARequestWithoutParametersIsSampledAsTheModelRecommends(t *testing.T) {
	temperature, topK, topP, yes, no, hot := float32(0.6), 20, float32(0.5), true, false, float32(9)
	llamaCpp := sample.Params{Temperature: 0.8, TopK: 40, TopP: 0.95, MinP: 0.05, TypicalP: 1, RepetitionPenalty: 1}
	penalized := llamaCpp
	penalized.RepetitionPenalty = 1.5
	penalty := float32(1.5)
	for _, c := range []struct {
		name   string
		says   family.Generation
		want   sample.Params
		source string
	}{
		{"nothing", family.Generation{}, llamaCpp, "since the model recommends none"},
		{"ends alone", family.Generation{EOS: []int32{2}}, llamaCpp, "since the model recommends none"},
		{"a penalty alone", family.Generation{RepetitionPenalty: &penalty}, penalized, "since the model recommends none"},
		{"all", family.Generation{DoSample: &yes, Temperature: &temperature, TopK: &topK, TopP: &topP},
			sample.Params{Temperature: 0.6, TopK: 20, TopP: 0.5, TypicalP: 1, RepetitionPenalty: 1}, `"generation_config.json"`},
		{"a temperature alone", family.Generation{Temperature: &temperature},
			sample.Params{Temperature: 0.6, TopP: 1, TypicalP: 1, RepetitionPenalty: 1}, `"generation_config.json"`},
		{"to sample", family.Generation{DoSample: &yes}, sample.Default(), `"generation_config.json"`},
		{"not to sample", family.Generation{DoSample: &no, Temperature: &temperature},
			sample.Params{TopP: 1, TypicalP: 1, RepetitionPenalty: 1}, `"generation_config.json"`},
		{"too much", family.Generation{Temperature: &hot}, llamaCpp, "since the model's cannot be used: temperature: found 9"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var log bytes.Buffer
			require.Equal(t, c.want, recommended(c.says, zerolog.New(&log)))
			require.Contains(t, log.String(), c.source)
			require.Contains(t, log.String(), `"temperature":`)
		})
	}
}
