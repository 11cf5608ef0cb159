package openai

import (
	"encoding/json"
	"math"
	"slices"
	"strconv"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/jsonbody"
	"github.com/millrace/millrace/compute/sample"
)

// maxLengthPenalty is the maximum absolute value of length_penalty.
const maxLengthPenalty = 10

// notWithBeams are the fields that a beam search does not support, with their neutral values. The
// engine refuses stop and logprobs.
var notWithBeams = []struct {
	name    string
	neutral []float64
}{
	{"temperature", []float64{0}},
	{"top_p", []float64{1}},
	{"top_k", []float64{-1, 0}},
	{"min_p", []float64{0}},
	{"typical_p", []float64{1}},
	{"repetition_penalty", []float64{1}},
	{"presence_penalty", []float64{0}},
	{"frequency_penalty", []float64{0}},
	{"logit_bias", nil},
	{"min_tokens", []float64{0}},
	{"dry_multiplier", []float64{0}},
	{"top_n_sigma", []float64{-1, 0}},
	{"xtc_probability", []float64{0}},
	{"bad_words", nil},
}

// beams reads the fields of a beam search. Its width is num_beams or, as in vLLM, best_of or n. Without
// use_beam_search the other fields must be neutral.
func (o *object) beams(r *api.Request) {
	use := false
	if o.boolean("use_beam_search", &use); !use {
		o.refuseUnsupported("num_beams", "1")
		o.refuseUnsupported("early_stopping", "false")
		o.refuseUnsupported("length_penalty", "1", "1.0")
		bestOf := r.N
		if o.int("best_of", 1, maxChoices, &bestOf); bestOf != r.N {
			o.fail("best_of", "not supported without use_beam_search unless equal to n (%d), found %d", r.N, bestOf)
		}
		return
	}
	p := &sample.BeamParams{Width: r.N, LengthPenalty: 1}
	o.int("best_of", 2, sample.MaxBeams, &p.Width)
	bestOf := p.Width
	o.int("num_beams", 2, sample.MaxBeams, &p.Width)
	if _, ok := o.get("best_of"); ok && bestOf != p.Width {
		o.fail("best_of", "expected num_beams (%d) or nothing, found %d", p.Width, bestOf)
	}
	if p.Width < 2 || p.Width > sample.MaxBeams { // from n
		o.fail("num_beams", "expected 2 to %d with use_beam_search, found %d", sample.MaxBeams, p.Width)
	}
	if r.N > p.Width {
		o.fail("n", "expected at most as many answers as beams (%d), found %d", p.Width, r.N)
	}
	o.lengthPenalty(p)
	o.earlyStopping(p)
	for _, f := range notWithBeams {
		o.refuseWithBeams(f.name, f.neutral)
	}
	r.Beams, r.Sampling = p, sample.Params{}
}

func (o *object) lengthPenalty(p *sample.BeamParams) {
	raw, ok := o.get("length_penalty")
	if !ok {
		return
	}
	v, err := strconv.ParseFloat(string(raw), 64)
	if err != nil || math.Abs(v) > maxLengthPenalty {
		o.expected("length_penalty", "a number from -10 to 10", raw)
		return
	}
	p.LengthPenalty = v
}

func (o *object) earlyStopping(p *sample.BeamParams) {
	raw, ok := o.get("early_stopping")
	switch {
	case !ok || string(raw) == "false":
	case string(raw) == "true":
		p.Early = sample.StopAtOnce
	case string(raw) == `"never"`:
		p.Early = sample.StopNever
	default:
		o.expected("early_stopping", `false, true or "never"`, raw)
	}
}

func (o *object) refuseWithBeams(name string, neutral []float64) {
	raw, ok := o.get(name)
	if !ok {
		return
	}
	var v float64
	if string(raw) == "{}" || string(raw) == "[]" || json.Unmarshal(raw, &v) == nil && slices.Contains(neutral, v) {
		return
	}
	o.fail(name, "not supported together with use_beam_search, found %s", jsonbody.Snippet(raw))
}
