// Package sample turns logits into tokens: a pure function of the logits, the
// parameters, the tokens so far and (seed, position).
//
// Processors run in the order of vLLM (logit bias, penalties) and transformers
// (the warpers after them). DRY, top-n-sigma and XTC stand where they do in the
// default chain of llama.cpp:
//
//	mask -> logit bias -> repetition -> frequency -> presence penalty -> DRY -> bad words ->
//	top-n-sigma -> temperature -> top-k -> top-p -> min-p -> typical-p -> XTC -> draw
//
// Greedy decoding (temperature 0) stops after the bad words and takes the
// largest logit. vLLM runs min-p before top-k. That differs only when top-p is on
// too, because min-p compares with the largest probability, which no processor
// removes.
//
// It must not know models, devices or text.
package sample

import (
	"fmt"
	"math"
	"slices"
)

// Params are the sampling parameters of a request. The zero value of a field
// other than Temperature means "off"; see Default.
type Params struct {
	Temperature       float32 // 0..2; 0: greedy
	TopK              int     // 0 or -1: off; tokens equal to the k-th are kept, as transformers
	TopP              float32 // 1 (or 0): off
	MinP              float32 // 0: off
	TypicalP          float32 // 1 (or 0): off
	RepetitionPenalty float32 // 1 (or 0): off; over prompt and output, as transformers
	PresencePenalty   float32 // -2..2; over output, as OpenAI
	FrequencyPenalty  float32 // -2..2; over output, times the token's count
	DRY               *DRY    // nil: off
	TopNSigma         float32 // 0: off; keeps logits at most this many standard deviations below the largest
	XTC               XTC
	BadWords          []string    // texts that the output does not have, as vLLM
	Tokens            *TextTokens // of BadWords and DRY's breakers; nil if there are none
	LogitBias         map[int32]float32
	Thinking          *Thinking // bounds the reasoning in the output; nil: no bound
	MinTokens         int       // tokens of the output before one of the tokens that end it may be drawn
	Seed              uint64    // for n > 1, choice i takes Seed+i
	Logprobs          bool      // fill Choice.Logprob
	TopLogprobs       int       // 0..MaxTopLogprobs alternatives in Choice.Top, with Logprobs
}

// MaxTopLogprobs is OpenAI's limit of alternatives per token.
const MaxTopLogprobs = 20

// Default is OpenAI's default: temperature 1, nothing cut off.
func Default() Params { return Params{Temperature: 1, TopP: 1, TypicalP: 1, RepetitionPenalty: 1} }

// Number is a parameter that is one number, as a request has it. What reads requests, describes them or proves answers takes all numbers
// from Numbers, and knows none of them.
type Number struct {
	Name     string // in a request
	Min, Max float64
	Open     bool      // Min itself is not allowed
	Default  float64   // of a request to a model that recommends none
	Off      []float64 // have no effect
	Doc      string
	In       func(p *Params) any // where p has it: a *float32 or a *int
}

// MaxTokens bounds the numbers of tokens in a request.
const MaxTokens = 1 << 24

var numbers = []Number{
	{Name: "temperature", Max: 2, Default: 1, Off: []float64{0}, Doc: "0 is greedy.", In: func(p *Params) any { return &p.Temperature }},
	{Name: "top_p", Max: 1, Default: 1, Off: []float64{1}, In: func(p *Params) any { return &p.TopP }},
	{Name: "top_k", Min: -1, Max: math.MaxInt32, Off: []float64{-1, 0}, Doc: "0 or -1: off. (vLLM)",
		In: func(p *Params) any { return &p.TopK }},
	{Name: "min_p", Max: 1, Off: []float64{0}, Doc: "(vLLM)", In: func(p *Params) any { return &p.MinP }},
	{Name: "typical_p", Max: 1, Open: true, Default: 1, Off: []float64{1}, Doc: "Locally typical sampling.",
		In: func(p *Params) any { return &p.TypicalP }},
	{Name: "repetition_penalty", Max: 10, Open: true, Default: 1, Off: []float64{1}, Doc: "Over prompt and output. (vLLM)",
		In: func(p *Params) any { return &p.RepetitionPenalty }},
	{Name: "presence_penalty", Min: -2, Max: 2, Off: []float64{0}, In: func(p *Params) any { return &p.PresencePenalty }},
	{Name: "frequency_penalty", Min: -2, Max: 2, Off: []float64{0}, In: func(p *Params) any { return &p.FrequencyPenalty }},
	{Name: "min_tokens", Max: MaxTokens, Off: []float64{0}, In: func(p *Params) any { return &p.MinTokens },
		Doc: "Tokens before the end-of-sequence token or one of stop_token_ids may come. Not with a grammar. (vLLM)"},
	{Name: "top_n_sigma", Min: -1, Max: MaxSigmas, Default: -1, Off: []float64{-1, 0}, In: func(p *Params) any { return &p.TopNSigma },
		Doc: "Leaves out tokens whose logit is more than this many standard deviations below the largest. 0 or below: off. (llama.cpp)"},
}

// Numbers returns the parameters that are one number, in the order in which a request is checked. It is not to be changed.
func Numbers() []Number { return numbers }

// ParamError is a parameter out of its range.
type ParamError struct {
	Field    string // the request's spelling: "top_p", "logit_bias[17]"
	Found    string
	Expected string
}

func (e *ParamError) Error() string {
	return fmt.Sprintf("%s: found %s, expected %s", e.Field, e.Found, e.Expected)
}

// Validate checks every range; NaN is in none. The error is a *ParamError for
// the first field at fault.
func (p Params) Validate() error {
	for _, f := range []struct {
		name      string
		v, lo, hi float32
	}{
		{"temperature", p.Temperature, 0, 2},
		{"top_p", p.TopP, 0, 1},
		{"min_p", p.MinP, 0, 1},
		{"typical_p", p.TypicalP, 0, 1},
		{"presence_penalty", p.PresencePenalty, -2, 2},
		{"frequency_penalty", p.FrequencyPenalty, -2, 2},
		{"top_n_sigma", p.TopNSigma, 0, MaxSigmas},
		{"xtc_probability", p.XTC.Probability, 0, 1},
		{"xtc_threshold", p.XTC.Threshold, 0, 1},
	} {
		if err := checkRange(f.name, f.v, f.lo, f.hi); err != nil {
			return err
		}
	}
	if p.RepetitionPenalty != 0 {
		if err := checkRange("repetition_penalty", p.RepetitionPenalty, 0.01, 100); err != nil {
			return err
		}
	}
	if err := p.DRY.validate(); err != nil {
		return err
	}
	if err := validateTexts("bad_words", p.BadWords, MaxBadWords, MaxBadWordBytes); err != nil {
		return err
	}
	if p.TopK < -1 {
		return &ParamError{"top_k", fmt.Sprint(p.TopK), "-1 or 0 (off), or more"}
	}
	if t := p.Thinking; t != nil && (t.Budget < 0 || t.End < 0) {
		return &ParamError{"thinking_token_budget", fmt.Sprintf("%d tokens before token %d", t.Budget, t.End), "0 or more, and a token"}
	}
	if p.MinTokens < 0 {
		return &ParamError{"min_tokens", fmt.Sprint(p.MinTokens), "0 or more"}
	}
	if p.TopLogprobs < 0 || p.TopLogprobs > MaxTopLogprobs {
		return &ParamError{"top_logprobs", fmt.Sprint(p.TopLogprobs), fmt.Sprintf("0 to %d", MaxTopLogprobs)}
	}
	for _, b := range p.biases() {
		name := fmt.Sprintf("logit_bias[%d]", b.id)
		if b.id < 0 {
			return &ParamError{name, fmt.Sprintf("token %d", b.id), "a token id, 0 or more"}
		}
		if err := checkRange(name, b.value, -100, 100); err != nil {
			return err
		}
	}
	return nil
}

// ValidateVocab checks the token ids in p against the size of a vocabulary.
func (p Params) ValidateVocab(vocab int) error {
	if t := p.Thinking; t != nil && int(t.End) >= vocab {
		return &ParamError{"thinking_token_budget", fmt.Sprintf("token %d as the end of reasoning", t.End),
			fmt.Sprintf("a token id below %d", vocab)}
	}
	for _, b := range p.biases() {
		if int(b.id) >= vocab {
			return &ParamError{
				fmt.Sprintf("logit_bias[%d]", b.id), fmt.Sprintf("token %d", b.id),
				fmt.Sprintf("a token id below %d", vocab),
			}
		}
	}
	return nil
}

func checkRange(name string, v, lo, hi float32) error {
	if v >= lo && v <= hi { // false for NaN
		return nil
	}
	return &ParamError{name, fmt.Sprint(v), fmt.Sprintf("%g to %g", lo, hi)}
}

type bias struct {
	id    int32
	value float32
}

// biases lists LogitBias by id, so that the first error does not depend on
// the map's order.
func (p Params) biases() []bias {
	if len(p.LogitBias) == 0 {
		return nil
	}
	list := make([]bias, 0, len(p.LogitBias))
	for id, v := range p.LogitBias {
		list = append(list, bias{id, v})
	}
	slices.SortFunc(list, func(a, b bias) int { return int(a.id) - int(b.id) })
	return list
}
