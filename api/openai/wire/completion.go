package wire

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/call"
)

const (
	maxPrompts       = maxChoices
	maxPromptTokens  = 1 << 24
	defaultMaxTokens = 16 // OpenAI's for plain completions
)

// DecodeCompletion decodes the body of a plain completion call into a request for each prompt. An error
// is an *api.Error that names the field.
func DecodeCompletion(body []byte, models []api.Model, arrival time.Time) (*call.Call, error) {
	return decodeCompletion(body, models, arrival, "")
}

func decodeCompletion(body []byte, models []api.Model, arrival time.Time, id string) (*call.Call, error) {
	o, err := parse(body)
	if err != nil {
		return nil, err
	}
	c, r := o.common(models, "cmpl-", id, arrival)
	c.Kind = call.Completion
	r.MaxTokens = defaultMaxTokens
	o.int("max_tokens", 1, maxMaxTokens, &r.MaxTokens)
	o.int("logprobs", 0, maxTopLogprobs, &r.TopLogprobs)
	o.boolean("echo", &c.Echo)
	if c.Echo && r.TopLogprobs >= 0 {
		o.fail("logprobs", "not supported yet together with echo")
	}
	o.refuseUnsupported("suffix", `""`)
	o.refuseUnsupported("add_special_tokens", "true")

	prompts := o.prompts()
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
	return c, o.result()
}

// prompt is text or token ids.
type prompt struct {
	text   string
	tokens []int32
}

const promptForms = "a string, a list of strings, a list of token ids or a list of such lists"

// prompts reads all four forms of the field. A prompt must not be empty.
func (o *object) prompts() []prompt {
	raw, ok := o.get("prompt")
	if !ok {
		o.fail("prompt", "expected %s", promptForms)
		return nil
	}
	if len(raw) > 0 && raw[0] == '"' {
		return o.onePrompt("prompt", raw, nil)
	}
	var items []json.RawMessage
	if json.Unmarshal(raw, &items) != nil || len(items) == 0 {
		o.expected("prompt", promptForms, raw)
		return nil
	}
	switch items[0][0] {
	case '"', '[':
		if len(items) > maxPrompts {
			o.fail("prompt", "expected at most %d prompts, found %d", maxPrompts, len(items))
			return nil
		}
		var all []prompt
		for i, raw := range items {
			if raw[0] != items[0][0] {
				o.expected("prompt", promptForms, raw)
			}
			all = o.onePrompt(fmt.Sprintf("prompt[%d]", i), raw, all)
		}
		return all
	}
	return o.onePrompt("prompt", raw, nil)
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
