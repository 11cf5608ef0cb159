package tokenizer

import (
	"slices"
	"strings"

	"github.com/millrace/millrace/api"
)

// WithoutTools returns the messages for a template that knows no tools: calls are text of the assistant, as Hermes
// writes them, and results are text of the user. changed reports whether there are any.
func WithoutTools(messages []api.Message) (plain []api.Message, changed bool) {
	plain = slices.Clone(messages)
	for i := range plain {
		m := &plain[i]
		if m.Role == "tool" || len(m.ToolCalls) > 0 {
			m.Parts = nil
		}
		if m.Role == "tool" {
			m.Role, m.Content, m.ToolCallID, changed = "user", "<tool_response>\n"+m.Content+"\n</tool_response>", "", true
		}
		if len(m.ToolCalls) > 0 {
			changed = true
		}
		for _, c := range m.ToolCalls {
			m.Content = strings.TrimLeft(m.Content+"\n", "\n") + "<tool_call>\n" + callText(c) + "\n</tool_call>"
		}
		m.ToolCalls = nil
	}
	return plain, changed
}

// callText returns the name and the arguments of a call.
func callText(c any) string {
	made, ok := templateToolCall(c).(toolCall)
	if !ok || made.Function == nil {
		return ""
	}
	text, err := api.Marshal(made.Function)
	if err != nil {
		return ""
	}
	return string(text)
}
