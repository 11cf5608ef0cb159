// Package ollama decodes the requests of Ollama's API and encodes its answers. A request becomes the body of the same call to OpenAI's
// API, so that both interfaces have the same limits and defaults. It is a codec: it must not know HTTP, NATS, an engine or how a call
// runs.
package ollama

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/call"
	"github.com/millrace/millrace/api/openai/wire"
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
	out, err := r.common()
	if err != nil {
		return nil, err
	}
	run := wire.DecodeChat
	switch {
	case kind == call.OllamaChat:
		err = r.addMessages(out)
	case r.Raw:
		out["prompt"], run = r.Prompt, wire.DecodeCompletion
	default:
		r.addPrompt(out)
	}
	if err != nil {
		return nil, err
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
	return c, nil
}

// request is the body of a call. What is not listed has no effect.
type request struct {
	Model     string          `json:"model"`
	Messages  []message       `json:"messages"`
	Tools     json.RawMessage `json:"tools"`
	Prompt    string          `json:"prompt"`
	System    string          `json:"system"`
	Suffix    string          `json:"suffix"`
	Template  string          `json:"template"`
	Images    []string        `json:"images"`
	Raw       bool            `json:"raw"`
	Stream    *bool           `json:"stream"` // true by default
	Format    json.RawMessage `json:"format"`
	Think     json.RawMessage `json:"think"`
	Options   options         `json:"options"`
	CacheSalt string          `json:"cache_salt"` // an extension of this server
}

type message struct {
	Role      string     `json:"role"`
	Content   string     `json:"content"`
	Thinking  string     `json:"thinking"`
	Images    []string   `json:"images"`
	ToolName  string     `json:"tool_name"`
	ToolCalls []toolCall `json:"tool_calls"`
}

type toolCall struct {
	Function function `json:"function"`
}

type function struct {
	Name      string          `json:"name"`
	Arguments json.RawMessage `json:"arguments"`
}

// options are the parameters of sampling. They go to the fields of the same meaning.
type options struct {
	NumPredict       *int            `json:"num_predict"` // below 0: up to the context's end
	Temperature      json.RawMessage `json:"temperature"`
	TopP             json.RawMessage `json:"top_p"`
	TopK             json.RawMessage `json:"top_k"`
	MinP             json.RawMessage `json:"min_p"`
	TypicalP         json.RawMessage `json:"typical_p"`
	RepeatPenalty    json.RawMessage `json:"repeat_penalty"`
	PresencePenalty  json.RawMessage `json:"presence_penalty"`
	FrequencyPenalty json.RawMessage `json:"frequency_penalty"`
	Seed             json.RawMessage `json:"seed"`
	Stop             json.RawMessage `json:"stop"`
}

func read(body []byte) (*request, error) {
	if err := wire.Check(body); err != nil {
		return nil, err
	}
	r := new(request)
	err := json.Unmarshal(body, r)
	var wrong *json.UnmarshalTypeError
	switch {
	case errors.As(err, &wrong) && wrong.Field != "":
		return nil, api.Invalid(wrong.Field, "%s: found %s, expected %s", wrong.Field, wrong.Value, wrong.Type)
	case err != nil:
		return nil, api.Invalid("", "the body is not one JSON object: %v", err)
	case len(r.Images) > 0:
		return nil, noImages("images")
	case r.Template != "":
		return nil, api.Invalid("template", "template: found one, expected none: the model's own template is used")
	case r.Suffix != "":
		return nil, api.Invalid("suffix", "suffix: found %q, expected none: not supported yet", r.Suffix)
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

func (r *request) common() (body, error) {
	out := body{"model": r.Model, "stream": r.Stream == nil || *r.Stream}
	if r.CacheSalt != "" {
		out["cache_salt"] = r.CacheSalt
	}
	o := &r.Options
	for name, v := range map[string]json.RawMessage{
		"temperature": o.Temperature, "top_p": o.TopP, "top_k": o.TopK, "min_p": o.MinP, "typical_p": o.TypicalP, "repetition_penalty": o.RepeatPenalty,
		"presence_penalty": o.PresencePenalty, "frequency_penalty": o.FrequencyPenalty, "seed": o.Seed, "stop": o.Stop,
	} {
		if len(v) > 0 {
			out[name] = v
		}
	}
	if o.NumPredict != nil && *o.NumPredict >= 0 {
		out["max_tokens"] = *o.NumPredict
	}
	if err := r.addFormat(out); err != nil {
		return nil, err
	}
	return out, r.addThinking(out)
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
		return api.Invalid("format", `format: found %.100s, expected "json" or a JSON schema`, r.Format)
	}
	return nil
}

// addThinking reads true, false or an effort. Templates have a switch of one name or the other.
func (r *request) addThinking(out body) error {
	var on bool
	var effort string
	switch {
	case len(r.Think) == 0 || string(r.Think) == "null":
		return nil
	case json.Unmarshal(r.Think, &on) == nil:
	case json.Unmarshal(r.Think, &effort) == nil && effort != "":
		on, out["reasoning_effort"] = true, effort
	default:
		return api.Invalid("think", `think: found %.100s, expected true, false, "low", "medium" or "high"`, r.Think)
	}
	if !r.Raw {
		out["chat_template_kwargs"] = body{"enable_thinking": on, "thinking": on}
	}
	return nil
}

func (r *request) addMessages(out body) error {
	if len(r.Messages) == 0 {
		return api.Invalid("messages", "messages: found none, expected at least one")
	}
	var list []body
	calls := 0 // seen so far: results follow their calls in order
	var waiting []string
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
		for _, t := range m.ToolCalls {
			id := fmt.Sprintf("call_%d", calls)
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
			if len(waiting) > 0 {
				converted["tool_call_id"], waiting = waiting[0], waiting[1:]
			}
		}
		list = append(list, converted)
	}
	out["messages"] = list
	if len(r.Tools) > 0 {
		out["tools"] = r.Tools
	}
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
var names = map[string]string{"max_tokens": "options.num_predict", "repetition_penalty": "options.repeat_penalty", "response_format": "format"}

// renamed returns an error with Ollama's name of its field.
func renamed(err error) error {
	e := *api.AsError(err)
	name, ok := names[e.Param]
	if !ok {
		switch e.Param {
		case "temperature", "top_p", "top_k", "min_p", "typical_p", "presence_penalty", "frequency_penalty", "seed", "stop":
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
