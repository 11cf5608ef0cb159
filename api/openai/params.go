package openai

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/call"
	"github.com/millrace/millrace/api/jsonbody"
	"github.com/millrace/millrace/compute/sample"
)

// The limits of a call.
const (
	maxChoices     = 128 // prompts x n
	maxStop        = 16
	maxStopBytes   = 1024 // of one stop string
	maxStopTokens  = 256
	maxLogitBias   = 1024
	maxTopLogprobs = 20
	maxTimeout     = 24 * time.Hour
)

// unsupported are fields that would change the answer. They are refused, unless they have a neutral
// value.
var unsupported = []struct {
	name    string
	neutral []string
}{
	{"allowed_token_ids", []string{"[]"}},
	{"logits_processors", []string{"[]"}},
	{"spaces_between_special_tokens", []string{"true"}},
	{"truncate_prompt_tokens", nil},
}

func (o *object) refuseUnsupported(name string, neutral ...string) {
	if raw, ok := o.get(name); ok && !slices.Contains(neutral, string(raw)) {
		o.fail(name, "not supported yet, found %s", jsonbody.Snippet(raw))
	}
}

// model returns the served model that the field "model" names. The field may be absent if there is only
// one model.
func (o *object) model(models []api.Model) string {
	name := ""
	o.str("model", &name)
	switch m := Served(models, name); {
	case o.err != nil:
	case len(models) == 0:
		o.err = &api.Error{Code: api.CodeUnavailable, Message: "no model is loaded yet", RetryAfter: time.Second}
	case m != nil:
		return m.ID
	case name == "":
		o.fail("model", "expected one of %s", modelNames(models))
	default:
		o.err = modelNotFound(name, models)
	}
	return name
}

// Served returns the model that a request names, or the only one if it names none; nil if there is no such model.
func Served(models []api.Model, name string) *api.Model {
	if name == "" && len(models) == 1 {
		return &models[0]
	}
	return api.Find(models, name)
}

func modelNotFound(name string, models []api.Model) *api.Error {
	return &api.Error{Code: api.CodeNotFound, Param: "model", Reason: "model_not_found",
		Message: fmt.Sprintf("model %s is not served here, which has %s", api.Quote(name), modelNames(models))}
}

func modelNames(models []api.Model) string {
	names := make([]string, len(models))
	for i, m := range models {
		names[i] = strconv.Quote(m.ID)
	}
	return strings.Join(names, ", ")
}

// common reads the fields that chat and plain completions share into a request, which the caller copies
// for each prompt.
func (o *object) common(models []api.Model, prefix string, arrival time.Time) (*call.Call, *api.Request) {
	c := &call.Call{Created: arrival}
	if given := o.resumable(c); given != "" {
		c.ID, c.Named = prefix+given, true
	} else {
		c.ID = prefix + strings.ReplaceAll(uuid.NewString(), "-", "")
	}
	r := &api.Request{ID: c.ID, Model: o.model(models), Arrival: arrival, TopLogprobs: -1, N: 1}
	c.Model = r.Model

	o.boolean("stream", &c.Stream)
	o.streamOptions(c)
	o.boolean("return_token_ids", &c.TokenIDs)
	o.int("n", 1, maxChoices, &r.N)
	c.N = r.N
	r.Sampling = defaults(models, r.Model)
	r.Sampling.Seed = call.SeedOf(c.ID)
	o.sampling(&r.Sampling)
	o.stops(r)
	o.boolean("ignore_eos", &r.IgnoreEOS)
	o.boolean("include_stop_str_in_output", &r.IncludeStop)
	skipSpecial := true
	o.boolean("skip_special_tokens", &skipSpecial)
	r.KeepSpecial = !skipSpecial
	o.int("priority", math.MinInt32, math.MaxInt32, &r.Priority)
	o.timeout(r)
	o.cacheSalt(r)
	o.beams(r)
	o.grammar(r)
	if r.Grammar != nil && r.Sampling.MinTokens > 0 {
		o.fail("min_tokens", "not supported together with %s, which says where the answer ends", r.Grammar.Param)
	}
	for _, u := range unsupported {
		o.refuseUnsupported(u.name, u.neutral...)
	}
	o.ignored()
	return c, r
}

// timeout reads the seconds after which a request ends.
func (o *object) timeout(r *api.Request) {
	var timeout float32
	if o.number("timeout", 0, maxTimeout.Seconds(), true, &timeout); timeout > 0 {
		r.Deadline = r.Arrival.Add(time.Duration(float64(timeout) * float64(time.Second)))
	}
}

// cacheSalt reads "cache_salt". Its value may be a secret: no error has it.
func (o *object) cacheSalt(r *api.Request) {
	const expected = "a string of at most %d bytes"
	raw, ok := o.get("cache_salt")
	switch {
	case !ok:
	case !decodeString(raw, &r.CacheSalt):
		o.fail("cache_salt", "expected "+expected+", found another type", api.MaxCacheSalt)
	case len(r.CacheSalt) > api.MaxCacheSalt:
		o.fail("cache_salt", "expected "+expected+", found %d bytes", api.MaxCacheSalt, len(r.CacheSalt))
	}
}

// ignored checks the types of the fields that have no effect.
func (o *object) ignored() {
	var text string
	var flag bool
	o.str("user", &text)
	o.str("service_tier", &text)
	o.boolean("store", &flag)
	o.child("metadata")
}

func (o *object) streamOptions(c *call.Call) {
	opts := o.child("stream_options")
	if opts == nil {
		return
	}
	opts.boolean("include_usage", &c.IncludeUsage)
	o.adopt(opts)
	if !c.Stream {
		o.fail("stream_options", "only allowed with \"stream\": true")
	}
}

// defaults returns the sampling parameters that the model's checkpoint recommends, or OpenAI's.
func defaults(models []api.Model, id string) sample.Params {
	if m := Served(models, id); m != nil && m.Sampling.TopP != 0 {
		return m.Sampling
	}
	return sample.Default()
}

// sampling overwrites the parameters that the request has.
func (o *object) sampling(p *sample.Params) {
	for _, n := range sample.Numbers() {
		switch v := n.In(p).(type) {
		case *float32:
			o.number(n.Name, n.Min, n.Max, n.Open, v)
		case *int:
			o.int(n.Name, int64(n.Min), int64(n.Max), v)
		}
	}
	p.TopK, p.TopNSigma = max(p.TopK, 0), max(p.TopNSigma, 0) // -1 is off, as in vLLM and llama.cpp
	if p.TopP == 0 {                                          // the smallest nucleus: one token; sample's 0 means "off"
		p.TopP = math.SmallestNonzeroFloat32
	}
	o.samplers(p)
	o.logitBias(p)
	var seed int64
	if o.integer("seed", math.MinInt64, math.MaxInt64, &seed) {
		p.Seed = uint64(seed)
	}
}

func (o *object) logitBias(p *sample.Params) {
	bias := o.child("logit_bias")
	if bias == nil {
		return
	}
	if len(bias.fields) > maxLogitBias {
		o.fail("logit_bias", "expected at most %d entries, found %d", maxLogitBias, len(bias.fields))
		return
	}
	p.LogitBias = make(map[int32]float32, len(bias.fields))
	for key := range bias.fields {
		token, err := strconv.ParseUint(key, 10, 31)
		if err != nil || len(key) > len("2147483647") {
			o.fail("logit_bias", "expected token ids as keys, found %s", api.Quote(key))
			return
		}
		var v float32
		bias.number(key, -100, 100, false, &v)
		p.LogitBias[int32(token)] = v
	}
	o.adopt(bias)
}

func (o *object) stops(r *api.Request) {
	if ids, ok := o.tokens("stop_token_ids", maxStopTokens); ok {
		r.StopTokens = ids
	}
	o.bound("stop")
	raw, ok := o.get("stop")
	if !ok {
		return
	}
	var one string
	if json.Unmarshal(raw, &one) == nil {
		r.Stop = []string{one}
	} else if err := json.Unmarshal(raw, &r.Stop); err != nil {
		o.expected("stop", "a string or a list of strings", raw)
		return
	}
	if len(r.Stop) > maxStop {
		o.fail("stop", "expected at most %d entries, found %d", maxStop, len(r.Stop))
	}
	for i, s := range r.Stop {
		if s == "" || len(s) > maxStopBytes {
			o.fail(fmt.Sprintf("stop[%d]", i), "expected 1 to %d bytes, found %d", maxStopBytes, len(s))
		}
	}
}
