package openai

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/call"
	"github.com/millrace/millrace/api/jsonbody"
	"github.com/millrace/millrace/compute/sample"
)

const (
	maxPrompts       = maxChoices
	maxPromptTokens  = 1 << 24
	defaultMaxTokens = 16 // OpenAI's for plain completions
)

// DecodeCompletion decodes the body of a plain completion call into a request for each prompt. An error
// is an *api.Error that names the field.
func DecodeCompletion(body []byte, models []api.Model, arrival time.Time) (*call.Call, error) {
	o, err := parse(body)
	if err != nil {
		return nil, err
	}
	c, r := o.common(models, "cmpl-", arrival)
	c.Kind = call.Completion
	r.MaxTokens = defaultMaxTokens
	o.int("max_tokens", 0, sample.MaxTokens, &r.MaxTokens)
	o.int("logprobs", 0, maxTopLogprobs, &r.TopLogprobs)
	o.boolean("echo", &c.Echo)
	if c.Echo && r.TopLogprobs >= 0 {
		o.scorePrompt(c, r, "logprobs", r.TopLogprobs)
	}
	o.promptLogprobs(c, r)
	if r.MaxTokens == 0 {
		o.readOnly(c, r)
	}
	o.refuseUnsupported("add_special_tokens", "true")

	prompts := o.promptsOf("prompt", maxPrompts)
	o.suffix(c, models, prompts)
	if choices := len(prompts) * r.N; choices > maxChoices {
		o.fail("prompt", "expected at most %d choices (prompts x n), found %d", maxChoices, choices)
	}
	for i, p := range prompts {
		one := *r
		if len(prompts) > 1 {
			one.ID = fmt.Sprintf("%s-%d", r.ID, i)
		}
		one.Prompt, one.PromptTokens = p.text, p.tokens
		c.Requests = append(c.Requests, &one)
	}
	o.proof(c)
	return c, o.result()
}

// promptLogprobs reads "prompt_logprobs".
func (o *object) promptLogprobs(c *call.Call, r *api.Request) {
	var top int64
	if o.integer("prompt_logprobs", 0, maxTopLogprobs, &top) {
		o.scorePrompt(c, r, "prompt_logprobs", int(top))
	}
}

// scorePrompt makes a request have the log probabilities of its prompt. A log has no place for them, and as in vLLM a stream neither.
func (o *object) scorePrompt(c *call.Call, r *api.Request, name string, top int) {
	if r.PromptLogprobs == nil || top > *r.PromptLogprobs {
		r.PromptLogprobs = &top
	}
	switch {
	case c.Stream:
		o.fail(name, "log probabilities of the prompt are not supported together with stream")
	case r.Beams != nil:
		o.fail(name, "not supported together with use_beam_search")
	}
	o.notResumable(c, name)
}

// readOnly makes a request one that generates nothing.
func (o *object) readOnly(c *call.Call, r *api.Request) {
	if r.N > 1 || r.Beams != nil || r.Grammar != nil || r.Sampling.MinTokens > 0 {
		o.fail("max_tokens", "0 is not supported together with n above 1, min_tokens, use_beam_search or a grammar")
	}
	o.notResumable(c, "max_tokens")
	r.Pool, r.MaxTokens = &api.Pool{Pooling: api.PoolNone}, 1
}

// notResumable makes a call one that no log keeps.
func (o *object) notResumable(c *call.Call, name string) {
	if c.Resume == call.ResumeYes {
		o.fail(name, "not supported together with stream_resume")
	}
	c.Resume = call.ResumeNo
}

// suffix makes prompts that end where a text follows, as the model was trained to fill the gap.
func (o *object) suffix(c *call.Call, models []api.Model, prompts []prompt) {
	text := ""
	if o.str("suffix", &text); text == "" {
		return
	}
	served := Served(models, c.Model)
	if o.err == nil && served.Infill == nil {
		o.fail("suffix", "found one, expected none: the model has no tokens to fill a gap")
	}
	if c.Echo {
		o.fail("suffix", "not supported together with echo")
	}
	for i := range prompts {
		if prompts[i].tokens != nil {
			o.fail("suffix", "expected a prompt of text beside it, found token ids")
		}
		if o.err == nil {
			m := served.Infill
			prompts[i].text = m[0] + prompts[i].text + m[1] + text + m[2]
		}
	}
}

// prompt is text or token ids.
type prompt struct {
	text   string
	tokens []int32
}

const promptForms = "a string, a list of strings, a list of token ids or a list of such lists"

// promptsOf reads all four forms of a field. A prompt must not be empty.
func (o *object) promptsOf(name string, most int) []prompt {
	raw, ok := o.get(name)
	if !ok {
		o.fail(name, "expected %s", promptForms)
		return nil
	}
	if len(raw) > 0 && raw[0] == '"' {
		return o.onePrompt(name, raw, nil)
	}
	var first json.RawMessage
	jsonbody.Walk(raw, func(item json.RawMessage) bool { first = item; return false })
	if first == nil {
		o.expected(name, promptForms, raw)
		return nil
	}
	switch first[0] {
	case '"', '[':
		items, count, _ := jsonbody.Elements(raw, most)
		if count > most {
			o.fail(name, "expected at most %d prompts, found %d", most, count)
			return nil
		}
		var all []prompt
		for i, raw := range items {
			if raw[0] != items[0][0] {
				o.expected(name, promptForms, raw)
			}
			all = o.onePrompt(fmt.Sprintf("%s[%d]", name, i), raw, all)
		}
		return all
	}
	return o.onePrompt(name, raw, nil)
}

// onePrompt appends a prompt that is one string or one list of token ids.
func (o *object) onePrompt(name string, raw json.RawMessage, all []prompt) []prompt {
	var p prompt
	if raw[0] == '"' {
		decodeString(raw, &p.text) // true: it is one
	} else {
		one := object{path: o.path, fields: map[string]json.RawMessage{name: raw}}
		p.tokens, _ = one.tokens(name, maxPromptTokens)
		o.adopt(&one)
	}
	if p.text == "" && len(p.tokens) == 0 {
		o.fail(name, "expected at least one character or token")
	}
	return append(all, p)
}
