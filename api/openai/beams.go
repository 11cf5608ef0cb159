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
	for _, n := range sample.Numbers() {
		o.refuseWithBeams(n.Name, n.Off...)
	}
	for _, name := range []string{"dry_multiplier", "xtc_probability", "logit_bias", "bad_words"} {
		o.refuseWithBeams(name, 0)
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

// refuseWithBeams refuses a field with a value that is not off. The engine refuses stop and logprobs.
func (o *object) refuseWithBeams(name string, off ...float64) {
	raw, ok := o.get(name)
	if !ok {
		return
	}
	var v float64
	if string(raw) == "{}" || string(raw) == "[]" || json.Unmarshal(raw, &v) == nil && slices.Contains(off, v) {
		return
	}
	o.fail(name, "not supported together with use_beam_search, found %s", jsonbody.Snippet(raw))
}
