package tokenizer

import (
	"strings"
	"time"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/tokenizer/jinja"
)

// contentForm is how a template reads the content of a role's messages.
type contentForm uint8

const (
	textForm  contentForm = iota // a string only. Text parts are joined
	bothForms                    // a string, or a list of parts: it gets what the client sent
	partsForm                    // a list of parts only. A string becomes a list of one
)

// textPart is a part of a content.
type textPart struct {
	Type string `json:"type"`
	Text string `json:"text"`
}

// content is the content of a message in the form that a template reads: a string or a list of parts.
func (f contentForm) content(m *api.Message) any {
	if parts := m.TextParts(); parts != nil && f != textForm {
		list := make([]textPart, len(parts))
		for i, text := range parts {
			list[i] = textPart{Type: "text", Text: text}
		}
		return list
	}
	if f == partsForm {
		return []textPart{{Type: "text", Text: m.Content}}
	}
	return m.Content
}

// last is the text at the end of a message's content in the form: the whole of it, or that of the last part.
func (f contentForm) last(m *api.Message) string {
	if parts := m.TextParts(); len(parts) > 0 && f != textForm {
		return parts[len(parts)-1]
	}
	return m.Content
}

// form is how the template reads the content of a role's messages. A role of which no trial worked has the user's.
func (t *template) form(role string) contentForm {
	if form, tried := t.forms[role]; tried {
		return form
	}
	return t.forms["user"]
}

// trialLimits bounds a trial of findForms.
var trialLimits = jinja.Limits{Steps: 1_000_000, Output: 1 << 20, Memory: 16 << 20, Allocated: 128 << 20}

// Marks in the content of a trial. A template that prints the first but not the second has read the text of a part,
// and not printed the part whole.
const (
	shownMark  = "millraceshown"
	hiddenMark = "millracehidden"
)

// findForms renders short chats to find out which forms of content a template reads, for each role. vLLM reads the
// template's syntax for that, which misses content that a macro iterates over.
func (t *Tokenizer) findForms(tpl *template) {
	tpl.forms = map[string]contentForm{}
	for _, role := range []string{"user", "system", "assistant", "tool"} {
		text, parts := t.shows(tpl, role, textForm), t.shows(tpl, role, partsForm)
		switch {
		case text && parts:
			tpl.forms[role] = bothForms
		case parts:
			tpl.forms[role] = partsForm
		case text:
			tpl.forms[role] = textForm
		}
	}
}

// shows reports whether the template prints the content of a role's message in a form.
func (t *Tokenizer) shows(tpl *template, role string, form contentForm) bool {
	for _, chat := range trials(role) {
		messages := make([]any, len(chat))
		for i, r := range chat {
			message := map[string]any{"role": r, "content": tpl.form(r).content(&api.Message{Content: "x"})}
			switch {
			case r == role && form == partsForm:
				message["content"] = []any{map[string]string{"type": "text", "text": shownMark, "millrace": hiddenMark}}
			case r == role:
				message["content"] = shownMark
			case r == "assistant" && role == "tool":
				message["content"] = ""
				message["tool_calls"] = []any{trialCall}
			}
			if r == "tool" {
				message["name"], message["tool_call_id"] = "f", "call00001"
			}
			messages[i] = message
		}
		all := map[string]any{"messages": messages, "add_generation_prompt": true, "tools": nil, "documents": nil}
		for name, text := range t.special.text {
			all[name] = text
		}
		variables, err := api.Marshal(all)
		if err != nil {
			return false
		}
		text, err := tpl.compiled.Render(variables, time.Unix(0, 0), trialLimits)
		if err == nil && strings.Contains(text, shownMark) && !strings.Contains(text, hiddenMark) {
			return true
		}
	}
	return false
}

// trialCall is a call of a tool that needs no arguments.
var trialCall = map[string]any{
	"id": "call00001", "type": "function", "function": map[string]any{"name": "f", "arguments": map[string]any{}},
}

// trials are the roles of the chats in which a role's content is tried: the first one that works decides.
func trials(role string) [][]string {
	switch role {
	case "system":
		return [][]string{{"system", "user"}}
	case "assistant":
		return [][]string{{"user", "assistant", "user"}, {"user", "assistant"}}
	case "tool":
		return [][]string{{"user", "assistant", "tool"}}
	default:
		return [][]string{{"user"}, {"system", "user"}}
	}
}
