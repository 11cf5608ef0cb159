// Package ollama decodes the requests of Ollama's API and encodes its answers. A request becomes the body of the same call to OpenAI's
// API, so that both interfaces have the same limits and defaults. It is a codec: it must not know HTTP, NATS, an engine or how a call
// runs.
package ollama

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/call"
	"github.com/millrace/millrace/api/jsonbody"
	"github.com/millrace/millrace/api/openai"
	"github.com/millrace/millrace/compute/sample"
)

// DecodeChat decodes the body of an /api/chat call. An error is an *api.Error that names the field.
func DecodeChat(body []byte, models []api.Model, arrival time.Time) (*call.Call, error) {
	return decode(body, models, arrival, call.OllamaChat)
}

// DecodeGenerate decodes the body of an /api/generate call. An error is an *api.Error that names the field.
func DecodeGenerate(body []byte, models []api.Model, arrival time.Time) (*call.Call, error) {
	return decode(body, models, arrival, call.OllamaGenerate)
}

func decode(body []byte, models []api.Model, arrival time.Time, kind call.Kind) (*call.Call, error) {
	r, err := read(body)
	if err != nil {
		return nil, err
	}
	load := r.loads(kind)
	plain := kind == call.OllamaGenerate && !load && (r.Raw || r.Suffix != "") // a text to fill has no template
	out, err := r.common(plain)
	if err != nil {
		return nil, err
	}
	run := openai.DecodeChat
	switch {
	case load:
		r.addPrompt(out)
	case kind == call.OllamaChat:
		err = r.addMessages(out)
	case plain:
		out["prompt"], run = r.Prompt, openai.DecodeCompletion
		if r.Suffix != "" {
			out["suffix"] = r.Suffix
		}
	default:
		r.addPrompt(out)
	}
	if err != nil {
		return nil, err
	}
	if kind == call.OllamaChat && len(r.Tools) > 0 {
		out["tools"] = r.Tools
	}
	translated, err := json.Marshal(out)
	if err != nil {
		return nil, err
	}
	c, err := run(translated, models, arrival)
	if err != nil {
		return nil, renamed(err)
	}
	c.Kind = kind
	one := c.Requests[0]
	one.ClipMaxTokens = true
	one.Truncate = !plain && (r.Truncate == nil || *r.Truncate)
	if load {
		one.Pool, one.MaxTokens, one.Grammar, one.TopLogprobs = &api.Pool{Pooling: api.PoolNone}, 1, nil, -1
		c.Resume = call.ResumeNo
	}
	return c, nil
}

// loads reports whether a call has no prompt. Clients of Ollama load a model that way. Here it computes the beginning of a chat and
// generates nothing.
func (r *request) loads(kind call.Kind) bool {
	if kind == call.OllamaChat {
		return len(r.Messages) == 0
	}
	return r.Prompt == "" && r.Suffix == ""
}

// request is the body of a call. What is not listed has no effect.
type request struct {
	Model     string           `json:"model"`
	Messages  []message        `json:"messages"`
	Tools     json.RawMessage  `json:"tools"`
	Prompt    string           `json:"prompt"`
	System    string           `json:"system"`
	Suffix    string           `json:"suffix"`
	Template  string           `json:"template"`
	Images    []string         `json:"images"`
	Raw       bool             `json:"raw"`
	Stream    *bool            `json:"stream"` // true by default
	Format    json.RawMessage  `json:"format"`
	Think     json.RawMessage  `json:"think"`
	Logprobs  bool             `json:"logprobs"`
	Top       jsonbody.Integer `json:"top_logprobs"` // with Logprobs
	Context   json.RawMessage  `json:"context"`
	Truncate  *bool            `json:"truncate"` // of a conversation above the context; true by default
	Options   options          `json:"options"`
	CacheSalt string           `json:"cache_salt"` // an extension of this server
}

type message struct {
	Role       string     `json:"role"`
	Content    string     `json:"content"`
	Thinking   string     `json:"thinking"`
	Images     []string   `json:"images"`
	ToolName   string     `json:"tool_name"`
	ToolCallID string     `json:"tool_call_id"`
	ToolCalls  []toolCall `json:"tool_calls"`
}

type toolCall struct {
	ID       string   `json:"id"`
	Function function `json:"function"`
}

type function struct {
	Name      string          `json:"name"`
	Arguments json.RawMessage `json:"arguments"`
}

// options are the parameters of sampling. They go to the fields of the same meaning.
type options struct {
	NumPredict       *jsonbody.Integer `json:"num_predict"` // below 0: up to the context's end
	Temperature      json.RawMessage   `json:"temperature"`
	TopP             json.RawMessage   `json:"top_p"`
	TopK             json.RawMessage   `json:"top_k"`
	MinP             json.RawMessage   `json:"min_p"`
	TypicalP         json.RawMessage   `json:"typical_p"`
	RepeatPenalty    json.RawMessage   `json:"repeat_penalty"`
	PresencePenalty  json.RawMessage   `json:"presence_penalty"`
	FrequencyPenalty json.RawMessage   `json:"frequency_penalty"`
	Seed             json.RawMessage   `json:"seed"`
	Stop             json.RawMessage   `json:"stop"`

	TopNSigma        json.RawMessage `json:"top_n_sigma"`
	XTCProbability   json.RawMessage `json:"xtc_probability"`
	XTCThreshold     json.RawMessage `json:"xtc_threshold"`
	DRYMultiplier    json.RawMessage `json:"dry_multiplier"`
	DRYBase          json.RawMessage `json:"dry_base"`
	DRYAllowedLength json.RawMessage `json:"dry_allowed_length"`
	DRYPenaltyLastN  json.RawMessage `json:"dry_penalty_last_n"`
	DRYBreakers      json.RawMessage `json:"dry_sequence_breakers"`
}

func read(body []byte) (*request, error) {
	r := new(request)
	if err := jsonbody.Unmarshal(body, r); err != nil {
		return nil, err
	}
	switch {
	case len(r.Images) > 0:
		return nil, noImages("images")
	case r.Template != "":
		return nil, api.Invalid("template", "template: found one, expected none: the model's own template is used")
	case len(r.Context) > 0 && string(r.Context) != "null" && string(r.Context) != "[]":
		return nil, api.Invalid("context", "context: found token ids, expected none: /api/chat continues a conversation")
	}
	r.Model = served(r.Model)
	return r, nil
}

// served returns the name of a model here. Ollama's tag of a model without one is "latest".
func served(name string) string { return strings.TrimSuffix(name, ":latest") }

func noImages(field string) error {
	return api.Invalid(field, "%s: found images, expected text only", field)
}

// body is the body of a call to OpenAI's API.
type body map[string]any

// common returns the fields of both kinds. plain says that the call becomes a plain completion, not a chat.
func (r *request) common(plain bool) (body, error) {
	out := body{"model": r.Model, "stream": r.Stream == nil || *r.Stream}
	if r.CacheSalt != "" {
		out["cache_salt"] = r.CacheSalt
	}
	o := &r.Options
	for name, v := range map[string]json.RawMessage{
		"temperature": o.Temperature, "top_p": o.TopP, "top_k": o.TopK, "min_p": o.MinP, "typical_p": o.TypicalP,
		"repetition_penalty": o.RepeatPenalty,
		"presence_penalty":   o.PresencePenalty, "frequency_penalty": o.FrequencyPenalty, "seed": o.Seed, "stop": o.Stop,
		"top_n_sigma": o.TopNSigma, "xtc_probability": o.XTCProbability, "xtc_threshold": o.XTCThreshold,
		"dry_multiplier": o.DRYMultiplier, "dry_base": o.DRYBase, "dry_allowed_length": o.DRYAllowedLength,
		"dry_penalty_last_n": o.DRYPenaltyLastN, "dry_sequence_breakers": o.DRYBreakers,
	} {
		if len(v) > 0 {
			out[name] = v
		}
	}
	if o.NumPredict != nil && *o.NumPredict >= 0 {
		out["max_tokens"] = *o.NumPredict
	}
	if err := r.addLogprobs(out, plain); err != nil {
		return nil, err
	}
	if err := r.addFormat(out); err != nil {
		return nil, err
	}
	return out, r.addThinking(out, plain)
}

// addLogprobs requests log probabilities. A plain completion has one field for it, with the number of alternatives. A chat has two.
func (r *request) addLogprobs(out body, plain bool) error {
	switch {
	case r.Top < 0 || r.Top > sample.MaxTopLogprobs:
		return api.Invalid("top_logprobs", "top_logprobs: found %d, expected 0 to %d", r.Top, sample.MaxTopLogprobs)
	case r.Logprobs && plain:
		out["logprobs"] = r.Top
	case r.Logprobs:
		out["logprobs"], out["top_logprobs"] = true, r.Top
	}
	return nil
}

// addFormat reads "json" or a schema.
func (r *request) addFormat(out body) error {
	var word string
	var schema map[string]json.RawMessage
	switch {
	case len(r.Format) == 0 || string(r.Format) == "null" || string(r.Format) == `""`:
	case json.Unmarshal(r.Format, &word) == nil && word == "json":
		out["response_format"] = body{"type": "json_object"}
	case json.Unmarshal(r.Format, &schema) == nil:
		out["response_format"] = body{"type": "json_schema", "json_schema": body{"name": "format", "schema": r.Format, "strict": true}}
	default:
		return api.Invalid("format", `format: found %.64s, expected "json" or a JSON schema`, r.Format)
	}
	return nil
}

// addThinking reads true, false or an effort. Templates have a switch of one name or the other.
func (r *request) addThinking(out body, plain bool) error {
	var on bool
	var effort string
	switch {
	case len(r.Think) == 0 || string(r.Think) == "null":
		return nil
	case json.Unmarshal(r.Think, &on) == nil:
	case json.Unmarshal(r.Think, &effort) == nil && effort != "":
		on, out["reasoning_effort"] = true, openai.Effort(effort)
	default:
		return api.Invalid("think", `think: found %.64s, expected true, false, "low", "medium", "high" or "max"`, r.Think)
	}
	if !plain {
		out["chat_template_kwargs"] = body{"enable_thinking": on, "thinking": on}
	}
	return nil
}

func (r *request) addMessages(out body) error {
	var list []body
	calls := 0           // seen so far
	var waiting []string // ids of calls without a result
	for i := range r.Messages {
		m := &r.Messages[i]
		if len(m.Images) > 0 {
			return noImages(fmt.Sprintf("messages[%d].images", i))
		}
		converted := body{"role": m.Role, "content": m.Content}
		if m.Thinking != "" {
			converted["reasoning_content"] = m.Thinking
		}
		var made []body
		for n, t := range m.ToolCalls {
			if t.Function.Name == "" {
				param := fmt.Sprintf("messages[%d].tool_calls[%d].function.name", i, n)
				return api.Invalid(param, "%s: found none, expected the name of a function", param)
			}
			id := t.ID
			if id == "" {
				id = fmt.Sprintf("call_%d", calls)
			}
			calls++
			waiting = append(waiting, id)
			arguments := string(t.Function.Arguments)
			if arguments == "" {
				arguments = "{}"
			}
			made = append(made, body{"id": id, "type": "function", "function": body{"name": t.Function.Name, "arguments": arguments}})
		}
		if made != nil {
			converted["tool_calls"] = made
		}
		if m.Role == "tool" {
			if m.ToolName != "" {
				converted["name"] = m.ToolName
			}
			at := slices.Index(waiting, m.ToolCallID)
			if m.ToolCallID == "" && len(waiting) > 0 { // without ids, results follow their calls in order
				at = 0
			}
			if at >= 0 {
				m.ToolCallID = waiting[at]
				waiting = slices.Delete(waiting, at, at+1)
			}
			if m.ToolCallID != "" {
				converted["tool_call_id"] = m.ToolCallID
			}
		}
		list = append(list, converted)
	}
	out["messages"] = list
	return nil
}

// addPrompt makes a chat of a prompt, as Ollama's default template does.
func (r *request) addPrompt(out body) {
	var list []body
	if r.System != "" {
		list = append(list, body{"role": "system", "content": r.System})
	}
	out["messages"] = append(list, body{"role": "user", "content": r.Prompt})
}

// names are fields that OpenAI's API has under another name.
var names = map[string]string{"max_tokens": "options.num_predict", "repetition_penalty": "options.repeat_penalty",
	"response_format":  "format",
	"reasoning_effort": "think"}

// renamed returns an error with Ollama's name of its field.
func renamed(err error) error {
	e := *api.AsError(err)
	name, ok := names[e.Param]
	if !ok {
		switch e.Param {
		case "temperature", "top_p", "top_k", "min_p", "typical_p", "presence_penalty", "frequency_penalty", "seed", "stop",
			"top_n_sigma", "xtc_probability", "xtc_threshold", "dry_multiplier", "dry_base", "dry_allowed_length", "dry_penalty_last_n",
			"dry_sequence_breakers":
			name = "options." + e.Param
		default:
			return err
		}
	}
	if len(e.Message) > len(e.Param) && e.Message[:len(e.Param)] == e.Param {
		e.Message = name + e.Message[len(e.Param):]
	}
	e.Param = name
	return &e
}
