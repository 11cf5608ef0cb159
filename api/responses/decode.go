// Package responses decodes the requests of OpenAI's Responses API and encodes its answers. A request becomes the body of the same call to
// the chat API, so that both have the same limits and defaults. What stores responses reads from the call what the client wants (Wanted).
// It is a codec of pure functions: it must not know HTTP, NATS, an engine or how a call runs.
package responses

import (
	"encoding/json"
	"slices"
	"time"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/call"
	"github.com/millrace/millrace/api/jsonbody"
	"github.com/millrace/millrace/api/openai"
)

// Decode decodes the body of a call. An error is an *api.Error that names the field.
func Decode(body []byte, models []api.Model, arrival time.Time) (*call.Call, error) {
	r, shared, err := read(body)
	if err != nil {
		return nil, err
	}
	t := newTranslation()
	for _, name := range passed {
		if v, ok := shared[name]; ok {
			t.out[name] = v
		}
	}
	for _, add := range []func(*request) error{t.addMessages, t.addTools, t.addChoice, t.addFormat, t.addRest} {
		if err := add(r); err != nil {
			return nil, err
		}
	}
	translated, err := json.Marshal(t.out)
	if err != nil {
		return nil, err
	}
	c, err := openai.DecodeChat(translated, models, arrival)
	if err != nil {
		return nil, t.paths.Rename(err)
	}
	c.Kind, c.Ignored = call.Responses, t.ignored
	t.paths.RenameGrammar(c)
	k := kept{Repeated: r.repeated()}
	if k.Store {
		k.Input = shared["input"]
	}
	c.Repeated, err = json.Marshal(k)
	return c, err
}

// translation is a call to the chat API in the making.
type translation struct {
	out     chat
	paths   openai.Paths // the names of its fields in the request
	ignored []string     // parts of the request without effect, see call.Ignore
}

// chat is a part of the body of a call to the chat API.
type chat map[string]any

// newTranslation returns one with the names of the fields that every call may have.
func newTranslation() *translation {
	return &translation{out: chat{}, paths: openai.Paths{
		"max_completion_tokens": "max_output_tokens", "response_format": "text.format", "response_format.json_schema": "text.format",
		"reasoning_effort": "reasoning.effort", "tool_choice.function": "tool_choice", "tool_choice.allowed_tools": "tool_choice",
	}}
}

// request is the body of a call. What is not listed has no effect.
type request struct {
	Input           json.RawMessage   `json:"input"`
	Instructions    string            `json:"instructions"`
	MaxOutputTokens json.RawMessage   `json:"max_output_tokens"`
	Tools           []json.RawMessage `json:"tools"`
	ToolChoice      json.RawMessage   `json:"tool_choice"`
	Parallel        *bool             `json:"parallel_tool_calls"`
	Text            *textOptions      `json:"text"`
	Reasoning       *reasoning        `json:"reasoning"`
	Metadata        json.RawMessage   `json:"metadata"`
	Previous        string            `json:"previous_response_id"`
	Conversation    json.RawMessage   `json:"conversation"`
	Prompt          json.RawMessage   `json:"prompt"`
	Background      bool              `json:"background"`
	Truncation      string            `json:"truncation"`
	Store           *bool             `json:"store"`
	Include         []string          `json:"include"`
	TopLogprobs     json.RawMessage   `json:"top_logprobs"`
}

// passed are the fields that the chat API has with the same meaning, and the extensions of this server.
var passed = []string{"model", "stream", "temperature", "top_p", "user", "service_tier", "stream_resume", "request_id", "cache_salt",
	"priority", "timeout",
	"seed", "chat_template_kwargs", "proof", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty",
	"dry_multiplier", "dry_base", "dry_allowed_length", "dry_penalty_last_n", "dry_sequence_breakers", "xtc_probability", "xtc_threshold",
	"top_n_sigma", "bad_words"}

type textOptions struct {
	Format *format `json:"format"`
}

type format struct {
	Type   string          `json:"type"`
	Name   string          `json:"name"`
	Schema json.RawMessage `json:"schema"`
	Strict *bool           `json:"strict"`
}

type reasoning struct {
	Effort *string `json:"effort"`
}

func invalid(field, found, expected string) error {
	return api.Invalid(field, "%s: found %s, expected %s", field, api.Quote(found), expected)
}

func read(body []byte) (*request, map[string]json.RawMessage, error) {
	var raw map[string]json.RawMessage
	if err := jsonbody.Unmarshal(body, &raw); err != nil {
		return nil, nil, err
	}
	r := new(request)
	if err := jsonbody.Unmarshal(body, r); err != nil {
		return nil, nil, err
	}
	return r, raw, r.check()
}

// check refuses what the server does not have.
func (r *request) check() error {
	switch {
	case len(r.Conversation) > 0 && string(r.Conversation) != "null":
		return api.Invalid("conversation",
			"conversation: found one, expected none: this server stores no conversations: use previous_response_id")
	case len(r.Prompt) > 0 && string(r.Prompt) != "null":
		return api.Invalid("prompt", "prompt: found one, expected none: this server stores no prompts")
	case r.Background && r.Store != nil && !*r.Store:
		return api.Invalid("background", "background: found true with store false, expected store true")
	case r.Truncation != "" && r.Truncation != "disabled" && r.Truncation != "auto":
		return invalid("truncation", r.Truncation, "disabled or auto")
	case len(r.Input) == 0 || string(r.Input) == "null" || string(r.Input) == "[]":
		return api.Invalid("input", "input: found none, expected a string or a list of at least one item")
	}
	return api.CheckMetadata("metadata", r.Metadata)
}

func (t *translation) addFormat(r *request) error {
	if r.Text == nil || r.Text.Format == nil {
		return nil
	}
	switch f := r.Text.Format; f.Type {
	case "text":
	case "json_object":
		t.out["response_format"] = chat{"type": "json_object"}
	case "json_schema":
		s := chat{"name": f.Name, "schema": f.Schema}
		if f.Strict != nil {
			s["strict"] = *f.Strict
		}
		t.out["response_format"] = chat{"type": "json_schema", "json_schema": s}
	default:
		return invalid("text.format.type", f.Type, "text, json_object or json_schema")
	}
	return nil
}

// includeLogprobs is the value of "include" for log probabilities.
const includeLogprobs = "message.output_text.logprobs"

func (t *translation) addRest(r *request) error {
	if len(r.MaxOutputTokens) > 0 && string(r.MaxOutputTokens) != "null" {
		t.out["max_completion_tokens"] = r.MaxOutputTokens
	}
	if r.Reasoning != nil && r.Reasoning.Effort != nil {
		t.out["reasoning_effort"] = *r.Reasoning.Effort
	}
	top := string(r.TopLogprobs)
	if slices.Contains(r.Include, includeLogprobs) || top != "" && top != "null" && top != "0" {
		t.out["logprobs"], t.out["top_logprobs"] = true, r.TopLogprobs
	}
	return nil
}

// repeated are the fields of the request that the answer repeats.
func (r *request) repeated() Repeated {
	f := Repeated{Store: r.Store == nil || *r.Store, Background: r.Background, Metadata: r.Metadata, Tools: repeatedTools(r.Tools),
		ToolChoice: r.ToolChoice, Parallel: r.Parallel == nil || *r.Parallel, MaxOutputTokens: r.MaxOutputTokens}
	if r.Instructions != "" {
		f.Instructions = &r.Instructions
	}
	if r.Previous != "" {
		f.PreviousID = &r.Previous
	}
	if r.Reasoning != nil {
		f.Reasoning.Effort = r.Reasoning.Effort
	}
	f.Text.Format = json.RawMessage(`{"type":"text"}`)
	if r.Text != nil && r.Text.Format != nil {
		f.Text.Format, _ = json.Marshal(r.Text.Format) // it was decoded from JSON
	}
	if len(f.Metadata) == 0 {
		f.Metadata = json.RawMessage("{}")
	}
	if len(f.ToolChoice) == 0 {
		f.ToolChoice = json.RawMessage(`"auto"`)
	}
	return f
}
