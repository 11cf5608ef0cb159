// Package proof records the inputs and the tokens of an answer, with one digest of them: a pure function of a call and its
// answer. With the request and the proof, anybody can compute the answer again on a worker with the same digests, and compare.
//
// It must not know how an answer is encoded or sent.
package proof

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/call"
	"github.com/millrace/millrace/compute/sample"
)

// Version is the version of the fields and of the digest's encoding.
const Version = 1

// Proof is the proof of the answer to a call.
type Proof struct {
	Version  int               `json:"version" doc:"1"`
	Digest   string            `json:"digest" doc:"SHA-256 of version, model, settings, prompts and choices, in hexadecimal"`
	Model    string            `json:"model"`
	Created  int64             `json:"created" doc:"The clock of the chat template, in Unix seconds. Not in the digest: the hash of the prompt is"`
	Settings map[string]string `json:"settings" doc:"What decides the tokens beside model and prompt, with the server's defaults and the seed that it drew: values by the names of the request's fields, as text"`
	Prompts  []PromptProof     `json:"prompts" doc:"By prompt of the request"`
	Choices  []ChoiceProof     `json:"choices" doc:"By index"`
}

// PromptProof is a prompt and the kind of worker that answered it.
type PromptProof struct {
	Numerics string `json:"numerics" doc:"Digest of weights, program, types and kernels"`
	Text     string `json:"text" doc:"Digest of tokenizer and chat template"`
	Hash     string `json:"hash" doc:"SHA-256 of the token ids of the prompt, as little-endian 32-bit numbers, in hexadecimal"`
}

// ChoiceProof is the tokens of a choice.
type ChoiceProof struct {
	Tokens       int    `json:"tokens" doc:"Number of tokens"`
	Hash         string `json:"hash" doc:"SHA-256 of token_ids, as that of a prompt"`
	FinishReason string `json:"finish_reason"`
}

// Of returns the proof of a whole answer, nil if the call requests none.
func Of(c *call.Call, r *call.Result) *Proof {
	rec := NewRecorder(c)
	if rec == nil {
		return nil
	}
	rec.pins = r.Pins
	for i := range r.Choices {
		rec.choices[i] = recorded{r.Choices[i].Tokens, r.Choices[i].Finish}
	}
	return rec.Proof()
}

// Recorder collects what a proof needs of the events of a call. It keeps the tokens of its choices. A nil Recorder does nothing.
type Recorder struct {
	call    *call.Call
	pins    []api.Pin // by request
	choices []recorded
}

type recorded struct {
	tokens []int32
	finish api.Finish
}

// NewRecorder returns the recorder of a call's events, nil if the call requests no proof.
func NewRecorder(c *call.Call) *Recorder {
	if !c.Proof {
		return nil
	}
	return &Recorder{call: c, pins: make([]api.Pin, len(c.Requests)), choices: make([]recorded, c.Choices())}
}

// Add takes an event. finish is the finish reason that the client gets.
func (r *Recorder) Add(ev *api.Event, finish api.Finish) {
	if r == nil {
		return
	}
	if ev.Pin != nil && ev.Pin.Numerics != "" {
		r.pins[ev.Choice/r.call.N] = *ev.Pin
	}
	ch := &r.choices[ev.Choice]
	ch.tokens = append(ch.tokens, ev.Tokens...)
	if finish != api.FinishNone {
		ch.finish = finish
	}
}

// Proof returns the proof of the events so far, nil without a Recorder.
func (r *Recorder) Proof() *Proof {
	if r == nil {
		return nil
	}
	first := r.call.Requests[0]
	p := &Proof{Version: Version, Model: r.call.Model, Created: first.TemplateClock().Unix(), Settings: settings(r.call)}
	for _, pin := range r.pins {
		p.Prompts = append(p.Prompts, PromptProof{Numerics: pin.Numerics, Text: pin.Text, Hash: pin.Prompt})
	}
	for _, ch := range r.choices {
		p.Choices = append(p.Choices, ChoiceProof{Tokens: len(ch.tokens), Hash: api.HashPrompt(ch.tokens), FinishReason: string(ch.finish)})
	}
	p.Digest = p.Sum()
	return p
}

// Sum returns the digest of a proof's fields: the SHA-256 of names and values in order, each as its length in bytes, a colon, the text and
// a comma. Settings come in the order of their names, as bytes.
func (p *Proof) Sum() string {
	var texts []string
	field := func(name, value string) { texts = append(texts, name, value) }
	field("version", strconv.Itoa(p.Version))
	field("model", p.Model)
	for _, name := range slices.Sorted(maps.Keys(p.Settings)) {
		field("settings."+name, p.Settings[name])
	}
	for _, one := range p.Prompts {
		field("prompts.numerics", one.Numerics)
		field("prompts.text", one.Text)
		field("prompts.hash", one.Hash)
	}
	for _, one := range p.Choices {
		field("choices.tokens", strconv.Itoa(one.Tokens))
		field("choices.hash", one.Hash)
		field("choices.finish_reason", one.FinishReason)
	}
	return hashOf(texts...)
}

// Differences lists what another proof has otherwise, in words: what p has as expected, what other has as found.
func (p *Proof) Differences(other *Proof) []string {
	var list differences
	differs := list.add
	differs("version", other.Version, p.Version)
	differs("model", other.Model, p.Model)
	names := maps.Clone(p.Settings)
	maps.Copy(names, other.Settings)
	for _, name := range slices.Sorted(maps.Keys(names)) {
		differs("settings."+name, strconv.Quote(other.Settings[name]), strconv.Quote(p.Settings[name]))
	}
	list.addPrompts(other.Prompts, p.Prompts)
	differs("choices", len(other.Choices), len(p.Choices))
	for i := range min(len(p.Choices), len(other.Choices)) {
		found, expected := other.Choices[i], p.Choices[i]
		differs(fmt.Sprintf("choices[%d].tokens", i), found.Tokens, expected.Tokens)
		differs(fmt.Sprintf("choices[%d].hash", i), found.Hash, expected.Hash)
		differs(fmt.Sprintf("choices[%d].finish_reason", i), found.FinishReason, expected.FinishReason)
	}
	return list
}

// differences are what two proofs have otherwise, in words.
type differences []string

func (d *differences) add(name string, found, expected any) {
	if found != expected {
		*d = append(*d, fmt.Sprintf("%s: found %v, expected %v", name, found, expected))
	}
}

func (d *differences) addPrompts(found, expected []PromptProof) {
	d.add("prompts", len(found), len(expected))
	for i := range min(len(found), len(expected)) {
		d.add(fmt.Sprintf("prompts[%d].numerics", i), found[i].Numerics, expected[i].Numerics)
		d.add(fmt.Sprintf("prompts[%d].text", i), found[i].Text, expected[i].Text)
		d.add(fmt.Sprintf("prompts[%d].hash", i), found[i].Hash, expected[i].Hash)
	}
}

// settings returns what decides the tokens of a call and where its text ends, beside the model and the prompts. All requests of a call
// have the same. What is off is absent.
func settings(c *call.Call) map[string]string {
	r := c.Requests[0]
	s := map[string]string{"n": strconv.Itoa(c.N), "max_tokens": strconv.Itoa(r.MaxTokens)}
	set := func(name, value string, on bool) {
		if on {
			s[name] = value
		}
	}
	if r.Pool != nil {
		s["max_tokens"] = "0"
		s["pooling"] = string(r.Pool.Pooling)
	}
	set("stop", list(r.Stop), len(r.Stop) > 0)
	set("stop_token_ids", numbers(r.StopTokens), len(r.StopTokens) > 0)
	set("ignore_eos", "true", r.IgnoreEOS)
	set("include_stop_str_in_output", "true", r.IncludeStop)
	set("skip_special_tokens", "false", r.KeepSpecial)
	set("kept_special_tokens", list(r.KeepTokens), len(r.KeepTokens) > 0)
	if b := r.Beams; b != nil {
		s["num_beams"], s["length_penalty"] = strconv.Itoa(b.Width), strconv.FormatFloat(b.LengthPenalty, 'g', -1, 64)
		s["early_stopping"] = map[sample.EarlyStopping]string{sample.StopHeuristic: "false", sample.StopAtOnce: "true",
			sample.StopNever: "never"}[b.Early]
		return s
	}
	sampling(r, s)
	if g := r.Grammar; g != nil {
		s["grammar"] = hashOf(string(g.Kind), g.Source, g.After, g.SkipFrom, g.SkipTo, g.Opening, strconv.FormatBool(g.Optional),
			strconv.FormatBool(g.Repeat),
			strconv.FormatBool(g.Compact), g.WhiteSpace, r.ReasoningEnd)
	}
	return s
}

// always are the numbers that proofs have with any value. Others have one that is not 0.
var always = []string{"temperature", "top_p", "top_k", "min_p", "typical_p", "repetition_penalty", "presence_penalty", "frequency_penalty"}

// sampling adds the parameters of the sampler.
func sampling(r *api.Request, s map[string]string) {
	p := &r.Sampling
	for _, n := range sample.Numbers() {
		text := "0"
		switch v := n.In(p).(type) {
		case *float32:
			text = number(*v)
		case *int:
			text = strconv.Itoa(*v)
		}
		if text != "0" || slices.Contains(always, n.Name) {
			s[n.Name] = text
		}
	}
	s["seed"] = strconv.FormatUint(p.Seed, 10)
	samplers(p, s)
	if t := p.Thinking; t != nil {
		s["thinking_token_budget"] = strconv.Itoa(t.Budget)
	}
	if len(p.LogitBias) > 0 {
		biases := make([]string, 0, len(p.LogitBias))
		for _, id := range slices.Sorted(maps.Keys(p.LogitBias)) {
			biases = append(biases, fmt.Sprintf("%d:%s", id, number(p.LogitBias[id])))
		}
		s["logit_bias"] = strings.Join(biases, ",")
	}
}

// samplers adds the parameters of llama.cpp's samplers and the bad words, those that are on.
func samplers(p *sample.Params, s map[string]string) {
	if d := p.DRY; d != nil {
		s["dry_multiplier"], s["dry_base"], s["dry_sequence_breakers"] = number(d.Multiplier), number(d.Base), list(d.Breakers)
		s["dry_allowed_length"], s["dry_penalty_last_n"] = strconv.Itoa(d.Allowed), strconv.Itoa(d.Last)
	}
	if p.XTC.Probability != 0 {
		s["xtc_probability"], s["xtc_threshold"] = number(p.XTC.Probability), number(p.XTC.Threshold)
	}
	if len(p.BadWords) > 0 {
		s["bad_words"] = list(p.BadWords)
	}
}

// number returns the shortest decimal text of a float32.
func number(v float32) string { return strconv.FormatFloat(float64(v), 'g', -1, 32) }

func numbers(ids []int32) string {
	texts := make([]string, len(ids))
	for i, id := range ids {
		texts[i] = strconv.Itoa(int(id))
	}
	return strings.Join(texts, ",")
}

// list returns strings as a JSON list.
func list(texts []string) string {
	text, err := json.Marshal(texts)
	if err != nil { // a list of strings has none
		return ""
	}
	return string(text)
}

// hashOf returns the SHA-256 of texts in hexadecimal, each as its length in bytes, a colon, the text and a comma.
func hashOf(texts ...string) string {
	h := sha256.New()
	for _, text := range texts {
		fmt.Fprintf(h, "%d:%s,", len(text), text) // a hash takes everything
	}
	return hex.EncodeToString(h.Sum(nil))
}
