package tokenizer

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/tokenizer/jinja"
)

// ErrNoTemplate means that the model has no chat template.
var ErrNoTemplate = errors.New("the model has no chat template: send a prompt instead of messages")

// limits of a render: a prompt of a million tokens fits; a template that loops over its own output
// does not.
var limits = jinja.Limits{Steps: 10_000_000, Output: 32 << 20, Memory: 64 << 20, Allocated: 2 << 30}

// Chat is what a template renders.
type Chat struct {
	Messages []api.Message
	// Tools and Args are JSON values. A json.RawMessage keeps the order of its keys, which
	// templates print; a Go map's keys come sorted.
	Tools               []any
	Args                map[string]any // further variables: enable_thinking, ...
	AddGenerationPrompt bool
	ContinueFinal       bool // the last message stays open, for the model to continue
	// TextArguments gives the template the arguments of calls as a string, as the API has them. Most templates
	// read an object.
	TextArguments bool
	// EmptyContent gives a turn that only calls tools the content "". Otherwise it has none, as the API has it.
	EmptyContent bool
	// Clock is the time that strftime_now shows, in UTC: processes in different time zones render
	// the same text for the same clock. Zero: now.
	Clock time.Time
}

// RenderChat returns the text of RenderPrompt.
func (t *Tokenizer) RenderChat(c Chat) (string, error) {
	p, err := t.RenderPrompt(c)
	return p.Text, err
}

// RenderPrompt writes the chat as the model's template has it; encode it with EncodePrompt.
// Errors are *jinja.RaisedError with the template's own words, ErrNoTemplate, jinja.ErrTemplate,
// jinja.ErrLimit or ErrText.
func (t *Tokenizer) RenderPrompt(c Chat) (Prompt, error) {
	tpl, err := t.template(len(c.Tools) > 0)
	if err != nil {
		return Prompt{}, err
	}
	if c.Clock.IsZero() {
		c.Clock = time.Now()
	}
	if c.ContinueFinal {
		return t.renderOpen(tpl, c)
	}
	return t.render(tpl, c)
}

func (t *Tokenizer) render(tpl *template, c Chat) (Prompt, error) {
	named, given, err := t.variables(tpl, c)
	if err != nil {
		return Prompt{}, err
	}
	render := func(variables []byte) (string, error) { return tpl.compiled.Render(variables, c.Clock, limits) }
	p := Prompt{}
	if p.Text, err = render(joinObjects(named, given)); err == nil && t.plainMessages {
		p.plain, err = t.userText(named, given, p.Text, render)
	}
	return p, err
}

// openTag marks the end of the message that is to be continued, as transformers marks it: the space
// shows whether the template trims.
const openTag = "CONTINUE_FINAL_MESSAGE_TAG "

// renderOpen renders the chat up to the end of the last message's content.
func (t *Tokenizer) renderOpen(tpl *template, c Chat) (Prompt, error) {
	if len(c.Messages) == 0 || c.AddGenerationPrompt {
		return Prompt{}, fmt.Errorf("%w: a message can be continued where there is one, and no generation prompt", jinja.ErrTemplate)
	}
	c.Messages = slices.Clone(c.Messages)
	last := &c.Messages[len(c.Messages)-1]
	if last.Content == "" && len(last.ToolCalls) > 0 {
		return Prompt{}, fmt.Errorf("%w: the last message has no content to continue, only tool calls", jinja.ErrTemplate)
	}
	final := strings.TrimFunc(tpl.form(last.Role).last(last), isPythonSpace)
	last.Content += openTag
	p, err := t.render(tpl, c)
	if err != nil {
		return Prompt{}, err
	}
	tag := strings.TrimSpace(openTag)
	at := strings.LastIndex(p.Text, tag)
	if at < 0 || !strings.Contains(p.Text, final) {
		return Prompt{}, fmt.Errorf("%w: it does not show the last message, so it cannot be continued", jinja.ErrTemplate)
	}
	end := p.Text[:at]
	if !strings.HasPrefix(p.Text[at:], openTag) {
		end = strings.TrimRightFunc(end, isPythonSpace)
	}
	p.Text = end
	return p, nil
}

// isPythonSpace is what Python's str.strip removes.
func isPythonSpace(r rune) bool { return unicode.IsSpace(r) || r >= 0x1c && r <= 0x1f }

// variables is the template's context as JSON, in a fixed order: the variables that name the model's tokens, and all
// others.
func (t *Tokenizer) variables(tpl *template, c Chat) (named, given []byte, err error) {
	tokens := maps.Clone(t.special.text)
	all := map[string]any{"tools": nil, "documents": nil}
	maps.Copy(all, c.Args)
	for name := range c.Args {
		delete(tokens, name)
	}
	if c.Tools != nil {
		all["tools"] = c.Tools
	}
	all["messages"] = templateMessages(tpl, &c)
	all["add_generation_prompt"] = c.AddGenerationPrompt
	for i, m := range c.Messages {
		if err := t.checkText(m.Content); err != nil {
			return nil, nil, fmt.Errorf("messages[%d].content: %w", i, err)
		}
	}
	if named, err = api.Marshal(tokens); err == nil {
		given, err = api.Marshal(all)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("%w: variables: %w", jinja.ErrTemplate, err)
	}
	return named, given, nil
}

// templateMessage spells a message as the OpenAI API does, which is what templates read. A turn
// that only calls tools has no content, unless Chat.EmptyContent is set.
type templateMessage struct {
	Thinking   string `json:"thinking,omitempty"` // the reasoning, under the name that the templates of gpt-oss read
	Role       string `json:"role"`
	Content    any    `json:"content,omitempty"` // string or []textPart
	Reasoning  string `json:"reasoning_content,omitempty"`
	Name       string `json:"name,omitempty"`
	ToolCalls  []any  `json:"tool_calls,omitempty"`
	ToolCallID string `json:"tool_call_id,omitempty"`
}

func templateMessages(tpl *template, chat *Chat) []templateMessage {
	out := make([]templateMessage, len(chat.Messages))
	for i, m := range chat.Messages {
		out[i] = templateMessage{Thinking: m.Reasoning, Role: m.Role, Reasoning: m.Reasoning, Name: m.Name, ToolCallID: m.ToolCallID}
		for _, call := range m.ToolCalls {
			made := templateToolCall(call)
			if c, ok := made.(toolCall); ok && chat.TextArguments {
				c.Function.Arguments = quoted(c.Function.Arguments)
				made = c
			}
			out[i].ToolCalls = append(out[i].ToolCalls, made)
		}
		if m.Content != "" || len(m.ToolCalls) == 0 || chat.EmptyContent {
			out[i].Content = tpl.form(m.Role).content(&m)
		}
	}
	return out
}

// quoted returns arguments as a JSON string.
func quoted(arguments json.RawMessage) json.RawMessage {
	if len(arguments) > 0 && arguments[0] == '"' {
		return arguments
	}
	text, err := api.Marshal(string(arguments))
	if err != nil { // a string always has a JSON form
		return arguments
	}
	return text
}

// toolCall is a call of a function in the order in which the OpenAI API documents it.
type toolCall struct {
	ID       string `json:"id,omitempty"`
	Type     string `json:"type,omitempty"`
	Function *struct {
		Name      string          `json:"name"`
		Arguments json.RawMessage `json:"arguments"`
	} `json:"function"`
}

// templateToolCall is call as templates read it: its arguments are an object, where the API has the
// object's JSON as a string. What is no such call stays as it is.
func templateToolCall(call any) any {
	raw, err := api.Marshal(call)
	if err != nil {
		return call // rendering will say why
	}
	var c toolCall
	if json.Unmarshal(raw, &c) != nil || c.Function == nil || c.Function.Arguments == nil {
		return call
	}
	var text string
	if json.Unmarshal(c.Function.Arguments, &text) == nil {
		if object := bytes.TrimSpace([]byte(text)); len(object) > 0 && object[0] == '{' && json.Valid(object) {
			c.Function.Arguments = object
		}
	}
	return c
}
