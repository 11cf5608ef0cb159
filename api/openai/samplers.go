package openai

import (
	"fmt"
	"math"

	"github.com/millrace/millrace/compute/sample"
)

// samplers reads the parameters that llama.cpp has beside the usual ones, under its names, and vLLM's bad_words.
func (o *object) samplers(p *sample.Params) {
	xtc := sample.XTC{Threshold: 0.1} // llama.cpp's default
	o.number("xtc_probability", 0, 1, false, &xtc.Probability)
	o.number("xtc_threshold", 0, 1, false, &xtc.Threshold)
	if xtc.Probability > 0 {
		p.XTC = xtc
	}
	dry := sample.DefaultDRY()
	o.number("dry_multiplier", 0, sample.MaxDRY, false, &dry.Multiplier)
	o.number("dry_base", 1, sample.MaxDRY, false, &dry.Base)
	o.int("dry_allowed_length", 0, sample.MaxTokens, &dry.Allowed)
	o.int("dry_penalty_last_n", -1, math.MaxInt32, &dry.Last)
	o.words("dry_sequence_breakers", sample.MaxBreakers, sample.MaxBreakerBytes, &dry.Breakers)
	if dry.Multiplier > 0 {
		p.DRY = &dry
	}
	o.words("bad_words", sample.MaxBadWords, sample.MaxBadWordBytes, &p.BadWords)
}

// words sets dst to a list of texts, most at the most, each of 1 to longest bytes.
func (o *object) words(name string, most, longest int, dst *[]string) {
	items, ok := o.list(name, most)
	if !ok {
		return
	}
	texts := make([]string, len(items))
	for i, raw := range items {
		at := fmt.Sprintf("%s[%d]", name, i)
		switch {
		case !decodeString(raw, &texts[i]):
			o.expected(at, "a string", raw)
		case texts[i] == "" || len(texts[i]) > longest:
			o.fail(at, "expected 1 to %d bytes, found %d", longest, len(texts[i]))
		}
	}
	if len(texts) == 0 {
		texts = nil
	}
	*dst = texts
}
