package openai

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/call"
	"github.com/millrace/millrace/compute/sample"
)

const (
	maxMessages = 4096
	maxTools    = 256
)

// DecodeChat decodes the body of a chat completion call. An error is an *api.Error that names the
// field.
func DecodeChat(body []byte, models []api.Model, arrival time.Time) (*call.Call, error) {
	o, err := parse(body)
	if err != nil {
		return nil, err
	}
	c, r := o.common(models, "chatcmpl-", arrival)
	c.Kind = call.Chat
	o.int("max_tokens", 1, sample.MaxTokens, &r.MaxTokens)
	o.int("max_completion_tokens", 1, sample.MaxTokens, &r.MaxTokens)
	o.chatLogprobs(r)
	o.promptLogprobs(c, r)
	v := o.conversation()
	r.Messages, r.Tools, r.TemplateArgs = v.messages, v.tools, v.args
	r.ContinueFinal, r.NoGenerationPrompt, c.Ignored = v.continueFinal, v.noPrompt, v.ignored
	o.reasoningEffort(r)
	c.Requests = []*api.Request{r}
	o.choose(c, models, &v.choice)
	o.refuseUnsupported("audio")
	o.refuseUnsupported("modalities", `["text"]`)
	if _, ok := o.get("web_search_options"); ok { // an offer of a tool
		c.Ignored = append(c.Ignored, call.Ignore("web_search_options", ""))
	}
	o.refuseUnsupported("functions", "[]")
	o.refuseUnsupported("function_call", `"none"`, `"auto"`)
	o.refuseUnsupported("echo", "false")
	o.refuseUnsupported("documents", "[]")
	o.refuseUnsupported("chat_template")
	o.refuseUnsupported("add_special_tokens", "false")
	o.thinkingBudget(c, models)
	o.proof(c)
	return c, o.result()
}

// thinkingBudget reads "thinking_token_budget". It has no effect on a model without reasoning.
func (o *object) thinkingBudget(c *call.Call, models []api.Model) {
	var budget int64
	if !o.integer("thinking_token_budget", 0, sample.MaxTokens, &budget) {
		return
	}
	r := c.Requests[0]
	if o.err != nil || r.ReasoningEnd == "" {
		return
	}
	switch ids := Served(models, c.Model).Think; {
	case r.Beams != nil:
		o.fail("thinking_token_budget", "not supported together with use_beam_search")
	case ids == nil:
		o.fail("thinking_token_budget", "found %d, expected none: no token ends the reasoning of this model", budget)
	default:
		r.Sampling.Thinking = &sample.Thinking{Budget: int(budget), Start: ids[0], End: ids[1]}
	}
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
	choice                  call.ToolChoice
	ignored                 []string
	args                    map[string]any
	continueFinal, noPrompt bool
}

func (o *object) conversation() conversation {
	o.bound("chat_template_kwargs")
	o.bound("tools")
	o.bound("messages")
	v := conversation{messages: o.messages(), args: o.templateArgs()}
	addPrompt := true
	o.boolean("add_generation_prompt", &addPrompt)
	o.boolean("continue_final_message", &v.continueFinal)
	if v.continueFinal {
		if _, given := o.get("add_generation_prompt"); given && addPrompt {
			o.fail("continue_final_message", "excludes \"add_generation_prompt\": true")
		}
		if n := len(v.messages); n > 0 && v.messages[n-1].Role != "assistant" {
			o.fail("continue_final_message", "expected the last message to be the assistant's, found %s",
				api.Quote(v.messages[n-1].Role))
		}
		addPrompt = false
	}
	v.noPrompt = !addPrompt
	var names []string
	v.tools, names, v.ignored = o.tools()
	if v.choice = o.toolChoice(names); v.choice.None {
		v.tools = nil
	}
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
		o.fail("role", "expected system, developer, user, assistant or tool, found %s", api.Quote(m.Role))
	}
	if m.Role == "assistant" {
		m.ToolCalls = o.toolCalls()
		o.str("reasoning", &m.Reasoning) // vLLM's newer name
		o.str("reasoning_content", &m.Reasoning)
	}
	raw, ok := o.get("content")
	switch {
	case ok:
		m.Content, m.Parts = o.content(raw)
	case m.Role == "assistant" && len(m.ToolCalls) == 0:
		o.str("refusal", &m.Content) // an answer that has neither is empty
	case len(m.ToolCalls) == 0:
		o.fail("content", "expected a string or a list of text parts")
	}
	return m
}

// content reads a string or a list of text parts, which it joins with newlines as vLLM and llama.cpp do. parts are
// the offsets of a list's parts.
func (o *object) content(raw json.RawMessage) (text string, parts []int) {
	if json.Unmarshal(raw, &text) == nil {
		return text, nil
	}
	var items []json.RawMessage
	if json.Unmarshal(raw, &items) != nil {
		o.expected("content", "a string or a list of text parts", raw)
		return "", nil
	}
	texts := make([]string, len(items))
	at := 0
	for i, raw := range items {
		part := o.open(fmt.Sprintf("content[%d]", i), raw)
		if part == nil {
			return "", nil
		}
		kind := ""
		part.str("type", &kind)
		if kind != "text" && kind != "refusal" {
			part.fail("type", "only \"text\" is supported, found %s", api.Quote(kind))
		}
		if _, ok := part.get(kind); !ok {
			part.fail(kind, "expected a string")
		}
		part.str(kind, &texts[i])
		o.adopt(part)
		parts = append(parts, at)
		at += len(texts[i]) + 1
	}
	return strings.Join(texts, "\n"), parts
}

// reservedArgs are the template variables that have their own field.
var reservedArgs = []string{"messages", "tools", "add_generation_prompt", "continue_final_message", "chat_template"}

func (o *object) templateArgs() map[string]any {
	raw, ok := o.get("chat_template_kwargs")
	if !ok {
		return nil
	}
	var values map[string]json.RawMessage // templates print them: the order of keys and the text of numbers stay
	if json.Unmarshal(raw, &values) != nil {
		o.expected("chat_template_kwargs", "an object", raw)
		return nil
	}
	for _, name := range reservedArgs {
		if _, found := values[name]; found {
			o.fail("chat_template_kwargs", "%s is not allowed here", api.Quote(name))
		}
	}
	if values == nil {
		return nil
	}
	args := make(map[string]any, len(values))
	for name, value := range values {
		args[name] = value
	}
	return args
}
