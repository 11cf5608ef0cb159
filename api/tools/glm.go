package tools

import "strings"

// glm is the format of GLM-4.5 to 4.7:
//
//	<tool_call>get_weather
//	<arg_key>city</arg_key>
//	<arg_value>Paris</arg_value>
//	</tool_call>
func glm() *dialect {
	const begin, end, key, keyEnd, value, valueEnd = "<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"
	d := &dialect{name: "glm", think: thinkTags(), special: []string{begin, end, key, keyEnd, value, valueEnd}, calls: []string{begin}}
	d.shows = func(template string) bool { return strings.Contains(template, key) }
	params := paramSyntax{begin: key, keyEnd: keyEnd, valueBegin: value, valueEnd: valueEnd, callEnd: end}
	var name step
	d.start = contentUntil(func(int) step { return name }, begin)
	finish := func(p *Parser) step {
		p.endCall()
		return d.start
	}
	name = func(p *Parser) step {
		if !p.skipSpace() {
			return nil
		}
		at, which := p.find("\n", key, end)
		if which < 0 && !p.final && at <= maxName {
			return nil
		}
		if which < 0 || !p.named(strings.TrimSpace(p.consume(at))) {
			return p.fail(d.start)
		}
		return params.arguments(finish, d.start)
	}
	d.grammar = func(g *lark, t *Tool) callRule {
		return callRule{
			begin: []string{begin}, trigger: begin,
			body: g.join(g.text(t.Name+"\n"), g.params(t, func(k string) (before, after []string) {
				return []string{key, k, keyEnd, "\n", value}, []string{valueEnd, "\n"}
			}), g.mark(end)),
			gap: "\n",
		}
	}
	return d
}
