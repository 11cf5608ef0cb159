// Package anthropic decodes the requests of Anthropic's Messages API and encodes its answers. A request becomes the body of the same
// call to OpenAI's chat API, so that both interfaces have the same limits and defaults. It is a codec of pure functions: it must not
// know HTTP, NATS, an engine or how a call runs.
package anthropic

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/call"
	"github.com/millrace/millrace/api/jsonbody"
	"github.com/millrace/millrace/api/openai"
)

// Decode decodes the body of a messages call. An error is an *api.Error that names the field.
func Decode(body []byte, models []api.Model, arrival time.Time) (*call.Call, error) {
	t, err := translate(body, models, true)
	if err != nil {
		return nil, err
	}
	c, err := openai.DecodeChat(t.body, models, arrival)
	if err != nil {
		return nil, t.paths.Rename(err)
	}
	c.Kind, c.Ignored = call.Messages, t.ignored
	t.paths.RenameGrammar(c)
	c.Requests[0].ClipMaxTokens = true // clients have to send a maximum, and send that of the largest model
	return c, nil
}

// DecodeCount decodes the body of a count_tokens call.
func DecodeCount(body []byte, models []api.Model) (*api.TokenizeRequest, error) {
	t, err := translate(body, models, false)
	if err != nil {
		return nil, err
	}
	r, err := openai.DecodeTokenize(t.body, models)
	return r, t.paths.Rename(err)
}

// translation is a call to OpenAI's chat API in the making.
type translation struct {
	out     chat
	body    []byte       // out as JSON
	paths   openai.Paths // the names of its fields in the messages call
	ignored []string     // parts of the messages call without effect, see call.Ignore
}

// chat is a part of the body of a call to OpenAI's chat API.
type chat map[string]any

// newTranslation returns one with the names of the fields that every call may have.
func newTranslation() *translation {
	return &translation{out: chat{}, paths: openai.Paths{
		"max_completion_tokens": "max_tokens", "parallel_tool_calls": "tool_choice.disable_parallel_tool_use",
		"tool_choice.function": "tool_choice",
		"response_format":      "output_config.format", "response_format.json_schema": "output_config.format",
		"reasoning_effort":      "output_config.effort",
		"thinking_token_budget": "thinking.budget_tokens", "stop": "stop_sequences",
	}}
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
	MCPServers    []struct{}      `json:"mcp_servers"`
}

// shared are the fields that both APIs have, with the same meaning, and the extensions of this server.
var shared = []string{"model", "stream", "temperature", "top_p", "top_k", "stream_resume", "request_id", "cache_salt", "priority",
	"timeout", "seed",
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
	Type   string            `json:"type"`
	Budget *jsonbody.Integer `json:"budget_tokens"`
}

type outputConfig struct {
	Effort string        `json:"effort"`
	Format *outputFormat `json:"format"`
}

type outputFormat struct {
	Type   string          `json:"type"`
	Schema json.RawMessage `json:"schema"`
}

// translate returns the body of the same call to OpenAI's chat API. answers says that the call has an answer, so max_tokens must be there.
func translate(body []byte, models []api.Model, answers bool) (*translation, error) {
	var raw map[string]json.RawMessage
	if err := jsonbody.Unmarshal(body, &raw); err != nil {
		return nil, err
	}
	var r request
	if err := jsonbody.Unmarshal(body, &r); err != nil {
		return nil, err
	}
	if m, on := openai.Served(models, r.Model), r.Thinking; m != nil && m.Think == nil && on != nil && on.Budget != nil && *on.Budget >= 0 {
		on.Budget = nil // clients have to send one, also to a model whose reasoning no single token ends
	}
	t := newTranslation()
	out := t.out
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
	for _, add := range []func(*request) error{t.addMessages, t.addTools, t.addChoice, t.addThinking, t.addFormat} {
		if err := add(&r); err != nil {
			return nil, err
		}
	}
	var err error
	t.body, err = json.Marshal(out)
	return t, err
}

func (t *translation) addTools(r *request) error {
	var list []any
	for i, one := range r.Tools {
		at := fmt.Sprintf("tools[%d]", i)
		if one.Type != "" && one.Type != "custom" { // a tool that a server runs, or one whose schema only Anthropic's models know
			t.ignored = append(t.ignored, call.Ignore(at, one.Type))
			continue
		}
		if one.Name == "" {
			return api.Invalid(at+".name", "%s.name: found nothing, expected a name", at)
		}
		f := chat{"name": one.Name}
		if one.Description != "" {
			f["description"] = one.Description
		}
		if len(one.InputSchema) > 0 {
			f["parameters"] = one.InputSchema
		}
		if one.Strict {
			f["strict"] = true
		}
		made := fmt.Sprintf("tools[%d]", len(list))
		t.paths[made], t.paths[made+".function"], t.paths[made+".function.parameters"] = at, at, at+".input_schema"
		list = append(list, chat{"type": "function", "function": f})
	}
	if list != nil {
		t.out["tools"] = list
	}
	if len(r.MCPServers) > 0 {
		t.ignored = append(t.ignored, call.Ignore("mcp_servers", ""))
	}
	return nil
}

func (t *translation) addChoice(r *request) error {
	c := r.ToolChoice
	if c == nil {
		return nil
	}
	switch c.Type {
	case "auto", "none":
		t.out["tool_choice"] = c.Type
	case "any":
		if t.out["tools"] == nil {
			return unsupported("tool_choice.type", c.Type, "auto or none without tools that this server can let the model call")
		}
		t.out["tool_choice"] = "required"
	case "tool":
		t.out["tool_choice"] = chat{"type": "function", "function": chat{"name": c.Name}}
	default:
		return unsupported("tool_choice.type", c.Type, "auto, any, tool or none")
	}
	if c.DisableParallel {
		t.out["parallel_tool_calls"] = false
	}
	return nil
}

// addThinking switches the reasoning of templates that have a switch. Models name it differently.
func (t *translation) addThinking(r *request) error {
	out := t.out
	if r.OutputConfig != nil && r.OutputConfig.Effort != "" {
		out["reasoning_effort"] = openai.Effort(r.OutputConfig.Effort)
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

func (t *translation) addFormat(r *request) error {
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
	t.out["response_format"] = chat{"type": "json_schema", "json_schema": chat{"name": "output", "schema": f.Schema, "strict": true}}
	return nil
}
