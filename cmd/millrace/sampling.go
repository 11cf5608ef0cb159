package main

import (
	"github.com/rs/zerolog"

	"github.com/millrace/millrace/compute/family"
	"github.com/millrace/millrace/compute/sample"
)

// plainSampling returns llama.cpp's defaults, for a model that recommends nothing: with all tokens at temperature 1, a small model writes
// nonsense. Source: common_params_sampling of llama.cpp's common/common.h.
func plainSampling() sample.Params {
	p := sample.Default()
	p.Temperature, p.TopK, p.TopP, p.MinP = 0.8, 40, 0.95, 0.05
	return p
}

// recommended returns the parameters of a request that has none, and logs them: those of the generation_config.json of a checkpoint, or
// llama.cpp's. Those that generation_config.json leaves out have OpenAI's defaults.
func recommended(g family.Generation, log zerolog.Logger) sample.Params {
	p, source := sample.Default(), "generation_config.json"
	if g.DoSample == nil && g.Temperature == nil && g.TopK == nil && g.TopP == nil && g.MinP == nil {
		p, source = plainSampling(), "llama.cpp's defaults, since the model recommends none"
	}
	set(&p.Temperature, g.Temperature)
	set(&p.TopK, g.TopK)
	set(&p.TopP, g.TopP)
	set(&p.MinP, g.MinP)
	set(&p.RepetitionPenalty, g.RepetitionPenalty)
	if g.DoSample != nil && !*g.DoSample {
		p.Temperature = 0
	}
	if err := p.Validate(); err != nil { // a file of another's making
		p, source = plainSampling(), "llama.cpp's defaults, since the model's cannot be used: "+err.Error()
	}
	log.Info().Float32("temperature", p.Temperature).Int("top_k", p.TopK).Float32("top_p", p.TopP).Float32("min_p", p.MinP).
		Str("source", source).Msg("sampling of requests without parameters")
	return p
}

func set[T any](to *T, from *T) {
	if from != nil {
		*to = *from
	}
}
