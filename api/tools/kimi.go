package tools

import (
	"strings"
)

// kimi is the format of Kimi K2. The text has the ID of a call, which the template expects back:
//
//	<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>
//	{"city": "Paris"}<|tool_call_end|><|tool_calls_section_end|>
func kimi() *dialect {
	const begin, end = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
	const callBegin, argumentBegin, callEnd = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"
	d := &dialect{name: "kimi", think: thinkTags(), special: []string{begin, end, callBegin, argumentBegin, callEnd},
		calls: []string{begin, callBegin}, interrupts: true}
	d.shows = func(template string) bool { return strings.Contains(template, begin) }
	d.start = section{begin, callBegin, callEnd, end, func(then, back step) step {
		return head(func(p *Parser, id string, _ int) step {
			name, _, _ := strings.Cut(strings.TrimPrefix(id, "functions."), ":")
			if p.call.id = id; !p.named(name) {
				return nil
			}
			return arguments(then)
		}, back, argumentBegin)
	}}.start()
	d.grammar = func(g *lark, t *Tool) callRule {
		return callRule{
			begin: []string{begin}, trigger: begin, end: end,
			body: g.join(g.mark(callBegin), g.text("functions."+t.Name+":"), "/[0-9]{1,3}/", g.mark(argumentBegin), g.schema(t),
				g.mark(callEnd)),
		}
	}
	return d
}
