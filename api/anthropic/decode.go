// Package anthropic decodes the requests of Anthropic's Messages API and encodes its answers. A request becomes the body of the same
// call to OpenAI's chat API, so that both interfaces have the same limits and defaults. It is a codec of pure functions: it must not
// know HTTP, NATS, an engine or how a call runs.
package anthropic

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/call"
	"github.com/millrace/millrace/api/openai/wire"
)

// Decode decodes the body of a messages call. An error is an *api.Error that names the field.
func Decode(body []byte, models []api.Model, arrival time.Time) (*call.Call, error) {
	chat, err := translate(body, models, true)
	if err != nil {
		return nil, err
	}
	c, err := wire.DecodeChat(chat, models, arrival)
	if err != nil {
		return nil, renamed(err)
	}
	c.Kind = call.Messages
	c.Requests[0].ClipMaxTokens = true // clients have to send a maximum, and send that of the largest model
	return c, nil
}

// DecodeCount decodes the body of a count_tokens call.
func DecodeCount(body []byte, models []api.Model) (*api.TokenizeRequest, error) {
	chat, err := translate(body, models, false)
	if err != nil {
		return nil, err
	}
	r, err := wire.DecodeTokenize(chat, models)
	return r, renamed(err)
}

// fields are the names of fields that OpenAI's API has under another name.
var fields = strings.NewReplacer("max_completion_tokens", "max_tokens", "parallel_tool_calls", "tool_choice.disable_parallel_tool_use",
	"response_format", "output_config.format", "reasoning_effort", "output_config.effort",
	"thinking_token_budget", "thinking.budget_tokens")

// renamed returns an error with Anthropic's name of its field.
func renamed(err error) error {
	if err == nil {
		return nil
	}
	e := *api.AsError(err)
	if name := fields.Replace(e.Param); name != e.Param {
		e.Message = strings.Replace(e.Message, e.Param, name, 1)
		e.Param = name
	}
	if e.Param == "stop" || strings.HasPrefix(e.Param, "stop[") {
		e.Message = strings.Replace(e.Message, e.Param, "stop_sequences"+e.Param[len("stop"):], 1)
		e.Param = "stop_sequences" + e.Param[len("stop"):]
	}
	return &e
}

// request is the body of a messages call. What is not listed has no effect.
type request struct {
	Model         string          `json:"model"`
	MaxTokens     json.RawMessage `json:"max_tokens"`
	Messages      []message       `json:"messages"`
	System        content         `json:"system"`
	StopSequences json.RawMessage `json:"stop_sequences"`
	Tools         []tool          `json:"tools"`
	ToolChoice    *toolChoice     `json:"tool_choice"`
	Thinking      *thinking       `json:"thinking"`
	OutputConfig  *outputConfig   `json:"output_config"`
	OutputFormat  *outputFormat   `json:"output_format"` // the earlier name of output_config.format
}

// shared are the fields that both APIs have, with the same meaning, and the extensions of this server.
var shared = []string{"model", "stream", "temperature", "top_p", "top_k", "stream_resume", "request_id", "cache_salt", "priority", "timeout", "seed",
	"chat_template_kwargs", "proof"}

type message struct {
	Role    string  `json:"role"`
	Content content `json:"content"`
}

// content is a string or a list of blocks. A string is one block of text.
type content struct {
	blocks []block
	given  bool
}

// UnmarshalJSON reads either form.
func (c *content) UnmarshalJSON(raw []byte) error {
	c.given = string(raw) != "null"
	var text string
	if json.Unmarshal(raw, &text) == nil {
		c.blocks = []block{{Type: "text", Text: &text}}
		return nil
	}
	return json.Unmarshal(raw, &c.blocks)
}

type block struct {
	Type      string          `json:"type"`
	Text      *string         `json:"text"`
	Thinking  string          `json:"thinking"`
	ID        string          `json:"id"`
	Name      string          `json:"name"`
	Input     json.RawMessage `json:"input"`
	ToolUseID string          `json:"tool_use_id"`
	Content   content         `json:"content"`
}

type tool struct {
	Type        string          `json:"type"`
	Name        string          `json:"name"`
	Description string          `json:"description"`
	InputSchema json.RawMessage `json:"input_schema"`
	Strict      bool            `json:"strict"`
}

type toolChoice struct {
	Type            string `json:"type"`
	Name            string `json:"name"`
	DisableParallel bool   `json:"disable_parallel_tool_use"`
}

type thinking struct {
	Type   string `json:"type"`
	Budget *int   `json:"budget_tokens"`
}

type outputConfig struct {
	Effort string        `json:"effort"`
	Format *outputFormat `json:"format"`
}

type outputFormat struct {
	Type   string          `json:"type"`
	Schema json.RawMessage `json:"schema"`
}

// chat is the body of a call to OpenAI's chat API.
type chat map[string]any

// translate returns the body of the same call to OpenAI's chat API. answers says that the call has an answer, so max_tokens must be there.
func translate(body []byte, models []api.Model, answers bool) ([]byte, error) {
	if err := wire.Check(body); err != nil {
		return nil, err
	}
	var raw map[string]json.RawMessage
	if err := json.Unmarshal(body, &raw); err != nil {
		return nil, typeError(err)
	}
	var r request
	if err := json.Unmarshal(body, &r); err != nil {
		return nil, typeError(err)
	}
	if m, t := wire.Served(models, r.Model), r.Thinking; m != nil && m.Think == nil && t != nil && t.Budget != nil && *t.Budget >= 0 {
		t.Budget = nil // clients have to send one, also to a model whose reasoning no single token ends
	}
	out := chat{}
	for _, name := range shared {
		if v, ok := raw[name]; ok {
			out[name] = v
		}
	}
	if answers {
		if len(r.MaxTokens) == 0 {
			return nil, api.Invalid("max_tokens", "max_tokens: found nothing, expected the largest number of tokens to generate")
		}
		out["max_tokens"] = r.MaxTokens
	}
	if len(r.StopSequences) > 0 {
		out["stop"] = r.StopSequences
	}
	for _, add := range []func(*request) error{out.addMessages, out.addTools, out.addChoice, out.addThinking, out.addFormat} {
		if err := add(&r); err != nil {
			return nil, err
		}
	}
	return json.Marshal(out)
}

// typeError returns the client's error of a body whose field has another type.
func typeError(err error) error {
	if e, ok := err.(*json.UnmarshalTypeError); ok && e.Field != "" { //nolint:errorlint // Unmarshal does not wrap it
		name := strings.ReplaceAll(e.Field, ".blocks", "")
		return api.Invalid(name, "%s: found %s, expected %s", name, e.Value, kindOf(e.Type.Kind().String()))
	}
	return api.Invalid("", "the body is not one JSON object of a messages call: %v", err)
}

func kindOf(kind string) string {
	switch kind {
	case "struct", "map", "ptr":
		return "an object"
	case "slice":
		return "a list"
	case "bool":
		return "true or false"
	}
	return "a string"
}

func (out chat) addMessages(r *request) error {
	var list []any
	if r.System.given {
		system, err := r.System.text("system", dropBilling)
		if err != nil {
			return err
		}
		if system != "" {
			list = append(list, chat{"role": "system", "content": system})
		}
	}
	if len(r.Messages) == 0 {
		return api.Invalid("messages", "messages: found none, expected at least one")
	}
	for i := range r.Messages {
		converted, err := r.Messages[i].convert(fmt.Sprintf("messages[%d]", i))
		if err != nil {
			return err
		}
		list = append(list, converted...)
	}
	if r.Messages[len(r.Messages)-1].Role == "assistant" { // a prefilled answer
		out["continue_final_message"], out["add_generation_prompt"] = true, false
	}
	out["messages"] = list
	return nil
}

// billing begins a block of the system prompt that differs in each request of a coding assistant. It is for Anthropic's servers, and
// would end every match in the prefix cache.
const billing = "x-anthropic-billing-header:"

func dropBilling(text string) bool { return strings.HasPrefix(text, billing) }

// text joins the blocks of content that may have text only. drop selects blocks that are left out.
func (c *content) text(path string, drop func(string) bool) (string, error) {
	var texts []string
	for i, b := range c.blocks {
		if b.Type != "text" || b.Text == nil {
			return "", unsupported(fmt.Sprintf("%s[%d].type", path, i), b.Type, "text")
		}
		if !drop(*b.Text) {
			texts = append(texts, *b.Text)
		}
	}
	return strings.Join(texts, "\n"), nil
}

func unsupported(field, found, expected string) error {
	return api.Invalid(field, "%s: found %q, expected %s", field, found, expected)
}

// convert returns OpenAI's messages of one of Anthropic's. The results of tools are messages of their own, before the user's text.
func (m *message) convert(path string) ([]any, error) {
	switch {
	case !m.Content.given:
		return nil, api.Invalid(path+".content", "%s.content: found nothing, expected a string or a list of blocks", path)
	case m.Role == "assistant":
		return m.assistant(path + ".content")
	case m.Role == "user":
		return m.user(path + ".content")
	case m.Role == "system":
		text, err := m.Content.text(path+".content", dropBilling)
		return []any{chat{"role": "system", "content": text}}, err
	}
	return nil, unsupported(path+".role", m.Role, `"user", "assistant" or "system"`)
}

func (m *message) user(path string) (list []any, err error) {
	var texts []string
	for i, b := range m.Content.blocks {
		at := fmt.Sprintf("%s[%d]", path, i)
		switch {
		case b.Type == "text" && b.Text != nil:
			texts = append(texts, *b.Text)
		case b.Type == "tool_result":
			text, err := b.Content.text(at+".content", func(string) bool { return false })
			if err != nil {
				return nil, err
			}
			if b.ToolUseID == "" {
				return nil, api.Invalid(at+".tool_use_id", "%s.tool_use_id: found nothing, expected the id of a tool_use block", at)
			}
			list = append(list, chat{"role": "tool", "tool_call_id": b.ToolUseID, "content": text})
		default:
			return nil, unsupported(at+".type", b.Type, "text or tool_result")
		}
	}
	if len(texts) > 0 || len(list) == 0 {
		list = append(list, chat{"role": "user", "content": strings.Join(texts, "\n")})
	}
	return list, nil
}

func (m *message) assistant(path string) ([]any, error) {
	var texts, thoughts []string
	var calls []any
	for i, b := range m.Content.blocks {
		at := fmt.Sprintf("%s[%d]", path, i)
		switch {
		case b.Type == "text" && b.Text != nil:
			texts = append(texts, *b.Text)
		case b.Type == "thinking":
			thoughts = append(thoughts, b.Thinking)
		case b.Type == "redacted_thinking": // of another server
		case b.Type == "tool_use":
			if b.ID == "" || b.Name == "" {
				return nil, api.Invalid(at, "%s: found a tool_use block without id or name, expected both", at)
			}
			if len(b.Input) == 0 {
				b.Input = json.RawMessage("{}")
			}
			calls = append(calls, chat{"id": b.ID, "type": "function", "function": chat{"name": b.Name, "arguments": string(b.Input)}})
		default:
			return nil, unsupported(at+".type", b.Type, "text, thinking or tool_use")
		}
	}
	out := chat{"role": "assistant", "content": strings.Join(texts, "\n")}
	if len(thoughts) > 0 {
		out["reasoning_content"] = strings.Join(thoughts, "\n")
	}
	if len(calls) > 0 {
		out["tool_calls"] = calls
	}
	return []any{out}, nil
}

func (out chat) addTools(r *request) error {
	var list []any
	for i, t := range r.Tools {
		at := fmt.Sprintf("tools[%d]", i)
		if t.Type != "" && t.Type != "custom" {
			return unsupported(at+".type", t.Type, `"custom": this server runs no tools of its own`)
		}
		if t.Name == "" {
			return api.Invalid(at+".name", "%s.name: found nothing, expected a name", at)
		}
		f := chat{"name": t.Name}
		if t.Description != "" {
			f["description"] = t.Description
		}
		if len(t.InputSchema) > 0 {
			f["parameters"] = t.InputSchema
		}
		if t.Strict {
			f["strict"] = true
		}
		list = append(list, chat{"type": "function", "function": f})
	}
	if list != nil {
		out["tools"] = list
	}
	return nil
}

func (out chat) addChoice(r *request) error {
	c := r.ToolChoice
	if c == nil {
		return nil
	}
	switch c.Type {
	case "auto", "none":
		out["tool_choice"] = c.Type
	case "any":
		out["tool_choice"] = "required"
	case "tool":
		out["tool_choice"] = chat{"type": "function", "function": chat{"name": c.Name}}
	default:
		return unsupported("tool_choice.type", c.Type, "auto, any, tool or none")
	}
	if c.DisableParallel {
		out["parallel_tool_calls"] = false
	}
	return nil
}

// addThinking switches the reasoning of templates that have a switch. Models name it differently.
func (out chat) addThinking(r *request) error {
	if r.OutputConfig != nil && r.OutputConfig.Effort != "" {
		out["reasoning_effort"] = wire.Effort(r.OutputConfig.Effort)
	}
	if r.Thinking == nil {
		return nil
	}
	on := r.Thinking.Type != "disabled"
	switch r.Thinking.Type {
	case "enabled", "disabled", "adaptive", "between_tools":
	default:
		return unsupported("thinking.type", r.Thinking.Type, "enabled, adaptive, between_tools or disabled")
	}
	if r.Thinking.Budget != nil && on {
		out["thinking_token_budget"] = *r.Thinking.Budget
	}
	args := map[string]json.RawMessage{}
	if raw, ok := out["chat_template_kwargs"].(json.RawMessage); ok {
		if err := json.Unmarshal(raw, &args); err != nil || args == nil {
			return api.Invalid("chat_template_kwargs", "chat_template_kwargs: found %s, expected an object", raw)
		}
	}
	value := json.RawMessage(fmt.Sprint(on))
	for _, name := range []string{"enable_thinking", "thinking"} {
		if _, given := args[name]; !given {
			args[name] = value
		}
	}
	out["chat_template_kwargs"] = args
	return nil
}

func (out chat) addFormat(r *request) error {
	f := r.OutputFormat
	if r.OutputConfig != nil && r.OutputConfig.Format != nil {
		f = r.OutputConfig.Format
	}
	if f == nil {
		return nil
	}
	if f.Type != "json_schema" || len(f.Schema) == 0 {
		return unsupported("output_config.format.type", f.Type, "json_schema with a schema")
	}
	out["response_format"] = chat{"type": "json_schema", "json_schema": chat{"name": "output", "schema": f.Schema, "strict": true}}
	return nil
}
