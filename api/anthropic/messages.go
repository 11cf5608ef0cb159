package anthropic

import (
	"fmt"
	"strings"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/call"
)

func (t *translation) addMessages(r *request) error {
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
		converted, err := t.convert(&r.Messages[i], fmt.Sprintf("messages[%d]", i), len(list))
		if err != nil {
			return err
		}
		list = append(list, converted...)
	}
	if r.Messages[len(r.Messages)-1].Role == "assistant" { // a prefilled answer
		t.out["continue_final_message"], t.out["add_generation_prompt"] = true, false
	}
	t.out["messages"] = list
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
	return api.Invalid(field, "%s: found %s, expected %s", field, api.Quote(found), expected)
}

// convert returns OpenAI's messages of the one at path. The results of tools are messages of their own, before the user's text. next is
// the number of the first one.
func (t *translation) convert(m *message, path string, next int) ([]any, error) {
	t.paths[fmt.Sprintf("messages[%d]", next)] = path
	switch {
	case !m.Content.given:
		return nil, api.Invalid(path+".content", "%s.content: found nothing, expected a string or a list of blocks", path)
	case m.Role == "assistant":
		return t.assistant(m, path+".content", next)
	case m.Role == "user":
		return t.user(m, path, next)
	case m.Role == "system":
		text, err := m.Content.text(path+".content", dropBilling)
		return []any{chat{"role": "system", "content": text}}, err
	}
	return nil, unsupported(path+".role", m.Role, `"user", "assistant" or "system"`)
}

func (t *translation) user(m *message, path string, next int) (list []any, err error) {
	var texts []string
	for i, b := range m.Content.blocks {
		at := fmt.Sprintf("%s.content[%d]", path, i)
		switch {
		case b.Type == "text" && b.Text != nil:
			texts = append(texts, *b.Text)
		case b.Type == "tool_result":
			text, err := t.result(&b.Content, at+".content")
			if err != nil {
				return nil, err
			}
			if b.ToolUseID == "" {
				return nil, api.Invalid(at+".tool_use_id", "%s.tool_use_id: found nothing, expected the id of a tool_use block", at)
			}
			t.paths[fmt.Sprintf("messages[%d]", next+len(list))] = at
			list = append(list, chat{"role": "tool", "tool_call_id": b.ToolUseID, "content": text})
		default:
			return nil, unsupported(at+".type", b.Type, "text or tool_result")
		}
	}
	if len(texts) > 0 || len(list) == 0 {
		t.paths[fmt.Sprintf("messages[%d]", next+len(list))] = path
		list = append(list, chat{"role": "user", "content": strings.Join(texts, "\n")})
	}
	return list, nil
}

// result returns the text of a tool's result. An image of it becomes a note: a tool of an agent may return one at any time, and a refusal
// would end the conversation.
func (t *translation) result(c *content, path string) (string, error) {
	const note = "(an image, which this model cannot see)"
	text := note
	for i := range c.blocks {
		if b := &c.blocks[i]; b.Type == "image" {
			t.ignored = append(t.ignored, call.Ignore(fmt.Sprintf("%s[%d]", path, i), b.Type))
			b.Type, b.Text = "text", &text
		}
	}
	return c.text(path, func(string) bool { return false })
}

// assistant returns a message of the assistant, which may be of another server: what ran there has no effect.
func (t *translation) assistant(m *message, path string, next int) ([]any, error) {
	var texts, thoughts []string
	var calls []any
	for i, b := range m.Content.blocks {
		at := fmt.Sprintf("%s[%d]", path, i)
		switch {
		case b.Type == "text" && b.Text != nil:
			texts = append(texts, *b.Text)
		case b.Type == "thinking":
			thoughts = append(thoughts, b.Thinking)
		case b.Type == "redacted_thinking": // only Anthropic's servers can read it
		case b.Type == "server_tool_use", b.Type == "mcp_tool_use", strings.HasSuffix(b.Type, "_tool_result"):
			t.ignored = append(t.ignored, call.Ignore(at, b.Type))
		case b.Type == "tool_use":
			if b.ID == "" || b.Name == "" {
				return nil, api.Invalid(at, "%s: found a tool_use block without id or name, expected both", at)
			}
			made := fmt.Sprintf("messages[%d].tool_calls[%d]", next, len(calls))
			t.paths[made], t.paths[made+".function"], t.paths[made+".function.arguments"] = at, at, at+".input"
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
