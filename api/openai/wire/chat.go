package wire

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/call"
)

const (
	maxMessages = 4096
	maxTools    = 256
)

// DecodeChat decodes the body of a chat completion call. An error is an *api.Error that names the
// field.
func DecodeChat(body []byte, models []api.Model, arrival time.Time) (*call.Call, error) {
	return decodeChat(body, models, arrival, "")
}

func decodeChat(body []byte, models []api.Model, arrival time.Time, id string) (*call.Call, error) {
	o, err := parse(body)
	if err != nil {
		return nil, err
	}
	c, r := o.common(models, "chatcmpl-", id, arrival)
	c.Kind = call.Chat
	o.int("max_tokens", 1, maxMaxTokens, &r.MaxTokens)
	o.int("max_completion_tokens", 1, maxMaxTokens, &r.MaxTokens)
	o.chatLogprobs(r)
	v := o.conversation()
	r.Messages, r.Tools, r.TemplateArgs = v.messages, v.tools, v.args
	r.ContinueFinal, r.NoGenerationPrompt = v.continueFinal, v.noPrompt
	o.refuseUnsupported("audio")
	o.refuseUnsupported("modalities", `["text"]`)
	o.refuseUnsupported("web_search_options")
	o.refuseUnsupported("functions", "[]")
	o.refuseUnsupported("function_call", `"none"`, `"auto"`)
	o.refuseUnsupported("echo", "false")
	o.refuseUnsupported("documents", "[]")
	o.refuseUnsupported("chat_template")
	o.refuseUnsupported("add_special_tokens", "false")
	c.Requests = []*api.Request{r}
	return c, o.result()
}

func (o *object) chatLogprobs(r *api.Request) {
	wanted, top := false, 0
	o.boolean("logprobs", &wanted)
	o.int("top_logprobs", 0, maxTopLogprobs, &top)
	if wanted {
		r.TopLogprobs = top
	} else if top > 0 {
		o.fail("top_logprobs", "only allowed with \"logprobs\": true")
	}
}

// conversation is the input of the chat template.
type conversation struct {
	messages                []api.Message
	tools                   []any
	args                    map[string]any
	continueFinal, noPrompt bool
}

func (o *object) conversation() conversation {
	v := conversation{messages: o.messages(), args: o.templateArgs()}
	addPrompt := true
	o.boolean("add_generation_prompt", &addPrompt)
	o.boolean("continue_final_message", &v.continueFinal)
	if v.continueFinal {
		if _, given := o.get("add_generation_prompt"); given && addPrompt {
			o.fail("continue_final_message", "excludes \"add_generation_prompt\": true")
		}
		if n := len(v.messages); n > 0 && v.messages[n-1].Role != "assistant" {
			o.fail("continue_final_message", "expected the last message to be the assistant's, found %q",
				v.messages[n-1].Role)
		}
		addPrompt = false
	}
	v.noPrompt = !addPrompt
	v.tools = o.tools()
	return v
}

func (o *object) messages() []api.Message {
	items, ok := o.list("messages", maxMessages)
	if !ok || len(items) == 0 {
		o.fail("messages", "expected a list of at least one message")
		return nil
	}
	messages := make([]api.Message, len(items))
	for i, raw := range items {
		m := o.open(fmt.Sprintf("messages[%d]", i), raw)
		if m == nil {
			return nil
		}
		messages[i] = m.message()
		if o.adopt(m); o.err != nil {
			return nil
		}
	}
	return messages
}

func (o *object) message() api.Message {
	var m api.Message
	o.str("role", &m.Role)
	o.str("name", &m.Name)
	o.str("tool_call_id", &m.ToolCallID)
	switch m.Role {
	case "system", "user", "assistant", "tool":
	case "developer": // OpenAI's newer name; templates know only system
		m.Role = "system"
	default:
		o.fail("role", "expected system, developer, user, assistant or tool, found %q", m.Role)
	}
	if m.Role == "assistant" {
		m.ToolCalls = o.toolCalls()
	}
	raw, ok := o.get("content")
	if ok {
		m.Content = o.content(raw)
	} else if len(m.ToolCalls) == 0 {
		o.fail("content", "expected a string or a list of text parts")
	}
	return m
}

// content reads a string or a list of text parts, which it joins with newlines as vLLM and llama.cpp do.
func (o *object) content(raw json.RawMessage) string {
	var text string
	if json.Unmarshal(raw, &text) == nil {
		return text
	}
	var items []json.RawMessage
	if json.Unmarshal(raw, &items) != nil {
		o.expected("content", "a string or a list of text parts", raw)
		return ""
	}
	texts := make([]string, len(items))
	for i, raw := range items {
		part := o.open(fmt.Sprintf("content[%d]", i), raw)
		if part == nil {
			return ""
		}
		kind := ""
		part.str("type", &kind)
		if kind != "text" {
			part.fail("type", "only \"text\" is supported, found %q", kind)
		}
		if _, ok := part.get("text"); !ok {
			part.fail("text", "expected a string")
		}
		part.str("text", &texts[i])
		o.adopt(part)
	}
	return strings.Join(texts, "\n")
}

// function is a tool or a tool call in the form that templates expect. Raw JSON keeps the client's order
// of keys, because templates print them.
type function struct {
	ID       string `json:"id,omitempty"`
	Type     string `json:"type"`
	Function any    `json:"function"`
}

// toolCalls reads the assistant's tool calls of an earlier turn. OpenAI's arguments are a string that
// holds JSON. Templates expect the object.
func (o *object) toolCalls() []any {
	items, ok := o.list("tool_calls", maxTools)
	if !ok {
		return nil
	}
	calls := make([]any, len(items))
	for i, raw := range items {
		made := o.open(fmt.Sprintf("tool_calls[%d]", i), raw)
		if made == nil {
			return nil
		}
		f := function{Type: "function"}
		made.str("id", &f.ID)
		fn := made.requireFunction()
		if fn != nil {
			var name, text string
			fn.str("name", &name)
			if raw, ok := fn.get("arguments"); !ok || json.Unmarshal(raw, &text) != nil || !isObject(text) {
				fn.fail("arguments", "expected a string that holds a JSON object")
				text = "{}"
			}
			f.Function = struct {
				Name      string          `json:"name"`
				Arguments json.RawMessage `json:"arguments"`
			}{name, json.RawMessage(text)}
			made.adopt(fn)
		}
		o.adopt(made)
		calls[i] = f
	}
	return calls
}

func isObject(text string) bool {
	var v map[string]json.RawMessage
	return json.Unmarshal([]byte(text), &v) == nil && v != nil
}

// requireFunction opens {"type": "function", "function": {"name": ...}}.
func (o *object) requireFunction() *object {
	kind := "function"
	o.str("type", &kind)
	if kind != "function" {
		o.fail("type", "only \"function\" is supported, found %q", kind)
	}
	fn := o.child("function")
	if fn == nil {
		o.fail("function", "expected an object")
		return nil
	}
	name := ""
	if fn.str("name", &name); name == "" {
		fn.fail("name", "expected a name")
	}
	o.adopt(fn)
	return fn
}

// tools reads the tools that the template describes to the model: none if tool_choice is "none".
func (o *object) tools() []any {
	items, _ := o.list("tools", maxTools)
	tools := make([]any, len(items))
	for i, raw := range items {
		tool := o.open(fmt.Sprintf("tools[%d]", i), raw)
		if tool == nil {
			return nil
		}
		tool.requireFunction()
		o.adopt(tool)
		tools[i] = raw
	}
	var parallel bool
	o.boolean("parallel_tool_calls", &parallel)
	choice := "auto"
	if raw, ok := o.get("tool_choice"); ok && json.Unmarshal(raw, &choice) != nil || choice == "required" {
		o.fail("tool_choice", "only \"none\" and \"auto\" are supported, found %s", snippet(raw))
	}
	switch choice {
	case "auto":
	case "none":
		return nil
	default:
		o.fail("tool_choice", "expected \"none\" or \"auto\", found %q", choice)
	}
	if len(tools) == 0 {
		return nil
	}
	return tools
}

// reservedArgs are the template variables that have their own field.
var reservedArgs = []string{"messages", "tools", "add_generation_prompt", "continue_final_message", "chat_template"}

func (o *object) templateArgs() map[string]any {
	raw, ok := o.get("chat_template_kwargs")
	if !ok {
		return nil
	}
	var args map[string]any
	if json.Unmarshal(raw, &args) != nil {
		o.expected("chat_template_kwargs", "an object", raw)
		return nil
	}
	for _, name := range reservedArgs {
		if _, found := args[name]; found {
			o.fail("chat_template_kwargs", "%q is not allowed here", name)
		}
	}
	return args
}
