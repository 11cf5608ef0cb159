// Package responses decodes the requests of OpenAI's Responses API and encodes its answers. A request becomes the body of the same call
// to the chat API, so that both have the same limits and defaults. What stores responses reads from the call what the client wants (Wanted). It is a
// codec of pure functions: it must not know HTTP, NATS, an engine or how a call runs.
package responses

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/call"
	"github.com/millrace/millrace/api/openai/wire"
)

// Decode decodes the body of a call. An error is an *api.Error that names the field.
func Decode(body []byte, models []api.Model, arrival time.Time) (*call.Call, error) {
	r, shared, err := read(body)
	if err != nil {
		return nil, err
	}
	out := chat{}
	for _, name := range passed {
		if v, ok := shared[name]; ok {
			out[name] = v
		}
	}
	for _, add := range []func(*request) error{out.addMessages, out.addTools, out.addChoice, out.addFormat, out.addRest} {
		if err := add(r); err != nil {
			return nil, err
		}
	}
	translated, err := json.Marshal(out)
	if err != nil {
		return nil, err
	}
	c, err := wire.DecodeChat(translated, models, arrival)
	if err != nil {
		return nil, renamed(err)
	}
	c.Kind = call.Responses
	k := kept{Repeated: r.repeated()}
	if k.Store {
		k.Input = shared["input"]
	}
	c.Repeated, err = json.Marshal(k)
	return c, err
}

// renamed returns an error with the name that its field has here.
func renamed(err error) error {
	e := *api.AsError(err)
	for chat, name := range map[string]string{"max_completion_tokens": "max_output_tokens", "response_format": "text.format", "reasoning_effort": "reasoning.effort"} {
		if rest, ok := strings.CutPrefix(e.Param, chat); ok {
			e.Message = strings.Replace(e.Message, e.Param, name+rest, 1)
			e.Param = name + rest
		}
	}
	return &e
}

// request is the body of a call. What is not listed has no effect.
type request struct {
	Input           input           `json:"input"`
	Instructions    string          `json:"instructions"`
	MaxOutputTokens json.RawMessage `json:"max_output_tokens"`
	Tools           []functionTool  `json:"tools"`
	ToolChoice      json.RawMessage `json:"tool_choice"`
	Parallel        *bool           `json:"parallel_tool_calls"`
	Text            *textOptions    `json:"text"`
	Reasoning       *reasoning      `json:"reasoning"`
	Metadata        json.RawMessage `json:"metadata"`
	Previous        string          `json:"previous_response_id"`
	Conversation    json.RawMessage `json:"conversation"`
	Prompt          json.RawMessage `json:"prompt"`
	Background      bool            `json:"background"`
	Truncation      string          `json:"truncation"`
	Store           *bool           `json:"store"`
}

// passed are the fields that the chat API has with the same meaning, and the extensions of this server.
var passed = []string{"model", "stream", "temperature", "top_p", "user", "service_tier", "stream_resume", "request_id", "cache_salt", "priority", "timeout",
	"seed", "chat_template_kwargs", "proof", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"}

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

type functionTool struct {
	Type        string          `json:"type"`
	Name        string          `json:"name"`
	Description *string         `json:"description"`
	Parameters  json.RawMessage `json:"parameters"`
	Strict      *bool           `json:"strict"`
}

// input is a string or a list of items. A string is a message of the user.
type input struct {
	items []item
	given bool
}

// UnmarshalJSON reads either form.
func (in *input) UnmarshalJSON(raw []byte) error {
	in.given = string(raw) != "null"
	var text string
	if json.Unmarshal(raw, &text) == nil {
		in.items = []item{{Role: "user", Content: parts{{Type: "input_text", Text: text}}}}
		return nil
	}
	return json.Unmarshal(raw, &in.items)
}

type item struct {
	Type      string `json:"type"` // "" is a message
	Role      string `json:"role"`
	Content   parts  `json:"content"`
	CallID    string `json:"call_id"`
	Name      string `json:"name"`
	Arguments string `json:"arguments"`
	Output    parts  `json:"output"`
	Summary   parts  `json:"summary"`
}

// parts is a string or a list of parts. A string is one part.
type parts []part

type part struct {
	Type    string `json:"type"`
	Text    string `json:"text"`
	Refusal string `json:"refusal"`
}

// UnmarshalJSON reads either form.
func (p *parts) UnmarshalJSON(raw []byte) error {
	var text string
	if json.Unmarshal(raw, &text) == nil {
		*p = parts{{Type: "text", Text: text}}
		return nil
	}
	return json.Unmarshal(raw, (*[]part)(p))
}

// text joins parts. All must have text.
func (p parts) text(path string) (string, error) {
	var texts []string
	for i, one := range p {
		switch one.Type {
		case "input_text", "output_text", "text", "reasoning_text", "summary_text":
			texts = append(texts, one.Text)
		case "refusal":
			texts = append(texts, one.Refusal)
		default:
			return "", invalid(fmt.Sprintf("%s[%d].type", path, i), one.Type, "input_text or output_text: only text is supported")
		}
	}
	return strings.Join(texts, "\n"), nil
}

func invalid(field, found, expected string) error {
	return api.Invalid(field, "%s: found %q, expected %s", field, found, expected)
}

func read(body []byte) (*request, map[string]json.RawMessage, error) {
	if err := wire.Check(body); err != nil {
		return nil, nil, err
	}
	var raw map[string]json.RawMessage
	if err := json.Unmarshal(body, &raw); err != nil {
		return nil, nil, api.Invalid("", "the body is not one JSON object: %v", err)
	}
	r := new(request)
	if err := json.Unmarshal(body, r); err != nil {
		if e, ok := err.(*json.UnmarshalTypeError); ok && e.Field != "" { //nolint:errorlint // Unmarshal does not wrap it
			return nil, nil, api.Invalid(e.Field, "%s: found %s, expected another type", e.Field, e.Value)
		}
		return nil, nil, api.Invalid("", "the body is not a request for a response: %v", err)
	}
	return r, raw, r.check()
}

// check refuses what the server does not have.
func (r *request) check() error {
	switch {
	case len(r.Conversation) > 0 && string(r.Conversation) != "null":
		return api.Invalid("conversation", "conversation: found one, expected none: this server stores no conversations: use previous_response_id")
	case len(r.Prompt) > 0 && string(r.Prompt) != "null":
		return api.Invalid("prompt", "prompt: found one, expected none: this server stores no prompts")
	case r.Background && r.Store != nil && !*r.Store:
		return api.Invalid("background", "background: found true with store false, expected store true")
	case r.Truncation != "" && r.Truncation != "disabled" && r.Truncation != "auto":
		return invalid("truncation", r.Truncation, "disabled or auto")
	case !r.Input.given || len(r.Input.items) == 0:
		return api.Invalid("input", "input: found none, expected a string or a list of at least one item")
	}
	return nil
}

// chat is the body of a call to the chat API.
type chat map[string]any

// turn is the assistant's message in hand: its reasoning, text and calls are items of their own.
type turn struct {
	text, reasoning []string
	calls           []any
}

func (t *turn) empty() bool { return len(t.text)+len(t.reasoning)+len(t.calls) == 0 }

func (t *turn) message() chat {
	m := chat{"role": "assistant", "content": strings.Join(t.text, "\n")}
	if len(t.reasoning) > 0 {
		m["reasoning_content"] = strings.Join(t.reasoning, "\n")
	}
	if len(t.calls) > 0 {
		m["tool_calls"] = t.calls
	}
	return m
}

func (out chat) addMessages(r *request) error {
	var list []any
	if r.Instructions != "" {
		list = append(list, chat{"role": "system", "content": r.Instructions})
	}
	var t turn
	end := func() {
		if !t.empty() {
			list = append(list, t.message())
		}
		t = turn{}
	}
	for i := range r.Input.items {
		m, err := r.Input.items[i].add(&t, fmt.Sprintf("input[%d]", i))
		if err != nil {
			return err
		}
		if m != nil {
			end()
			list = append(list, m)
		}
	}
	end()
	out["messages"] = list
	return nil
}

// add adds an item to the assistant's turn, or returns it as a message that ends the turn.
func (it *item) add(t *turn, path string) (chat, error) {
	text, err := it.Content.text(path + ".content")
	if err != nil {
		return nil, err
	}
	switch it.Type {
	case "", "message":
		switch it.Role {
		case "assistant":
			t.text = append(t.text, text)
			return nil, nil
		case "user", "system", "developer":
			return chat{"role": it.Role, "content": text}, nil
		}
		return nil, invalid(path+".role", it.Role, "user, assistant, system or developer")
	case "reasoning":
		if text == "" {
			if text, err = it.Summary.text(path + ".summary"); err != nil {
				return nil, err
			}
		}
		t.reasoning = append(t.reasoning, text)
		return nil, nil
	case "function_call":
		t.calls = append(t.calls, chat{"id": it.CallID, "type": "function", "function": chat{"name": it.Name, "arguments": it.Arguments}})
		return nil, nil
	case "function_call_output":
		output, err := it.Output.text(path + ".output")
		return chat{"role": "tool", "tool_call_id": it.CallID, "content": output}, err
	}
	return nil, invalid(path+".type", it.Type, "message, reasoning, function_call or function_call_output")
}

func (out chat) addTools(r *request) error {
	var list []any
	for i, t := range r.Tools {
		if t.Type != "function" {
			return invalid(fmt.Sprintf("tools[%d].type", i), t.Type, `"function": this server runs no tools of its own`)
		}
		f := chat{"name": t.Name}
		if t.Description != nil {
			f["description"] = *t.Description
		}
		if len(t.Parameters) > 0 {
			f["parameters"] = t.Parameters
		}
		if t.Strict != nil {
			f["strict"] = *t.Strict
		}
		list = append(list, chat{"type": "function", "function": f})
	}
	if list != nil {
		out["tools"] = list
	}
	if r.Parallel != nil {
		out["parallel_tool_calls"] = *r.Parallel
	}
	return nil
}

func (out chat) addChoice(r *request) error {
	if len(r.ToolChoice) == 0 || string(r.ToolChoice) == "null" {
		return nil
	}
	var named struct{ Type, Name string }
	if json.Unmarshal(r.ToolChoice, &named) == nil && named.Type == "function" {
		out["tool_choice"] = chat{"type": "function", "function": chat{"name": named.Name}}
		return nil
	}
	out["tool_choice"] = r.ToolChoice
	return nil
}

func (out chat) addFormat(r *request) error {
	if r.Text == nil || r.Text.Format == nil {
		return nil
	}
	switch f := r.Text.Format; f.Type {
	case "text":
	case "json_object":
		out["response_format"] = chat{"type": "json_object"}
	case "json_schema":
		s := chat{"name": f.Name, "schema": f.Schema}
		if f.Strict != nil {
			s["strict"] = *f.Strict
		}
		out["response_format"] = chat{"type": "json_schema", "json_schema": s}
	default:
		return invalid("text.format.type", f.Type, "text, json_object or json_schema")
	}
	return nil
}

func (out chat) addRest(r *request) error {
	if len(r.MaxOutputTokens) > 0 && string(r.MaxOutputTokens) != "null" {
		out["max_completion_tokens"] = r.MaxOutputTokens
	}
	if r.Reasoning != nil && r.Reasoning.Effort != nil {
		out["reasoning_effort"] = *r.Reasoning.Effort
	}
	return nil
}

// repeated are the fields of the request that the answer repeats.
func (r *request) repeated() Repeated {
	f := Repeated{Store: r.Store == nil || *r.Store, Background: r.Background, Metadata: r.Metadata, Tools: r.Tools, ToolChoice: r.ToolChoice, Parallel: r.Parallel == nil || *r.Parallel, MaxOutputTokens: r.MaxOutputTokens}
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
	if f.Tools == nil {
		f.Tools = []functionTool{}
	}
	if len(f.Metadata) == 0 {
		f.Metadata = json.RawMessage("{}")
	}
	if len(f.ToolChoice) == 0 {
		f.ToolChoice = json.RawMessage(`"auto"`)
	}
	return f
}
