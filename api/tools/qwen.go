package tools

import "strings"

// qwenXML is the format of Qwen3-Coder and Qwen3.5. Some models leave the outer markers out:
//
//	<tool_call>
//	<function=get_weather>
//	<parameter=city>
//	Paris
//	</parameter>
//	</function>
//	</tool_call>
func qwenXML() *dialect {
	const outer, outerEnd, begin, end = "<tool_call>", "</tool_call>", "<function=", "</function>"
	d := &dialect{name: "qwen3-xml", think: thinkTags(), special: []string{outer, outerEnd}}
	d.shows = func(template string) bool {
		return strings.Contains(template, begin) && strings.Contains(template, "<parameter=")
	}
	var inner, name step
	d.start = contentUntil(func(which int) step { return []step{inner, name}[which] }, outer, begin)
	params := paramSyntax{begin: "<parameter=", keyEnd: ">", valueEnd: "</parameter>", callEnd: end, lines: true}
	name = head(func(p *Parser, text string, _ int) step {
		if !p.named(text) {
			return nil
		}
		return params.arguments(closing(outerEnd, d.start, d.start), d.start)
	}, d.start, ">")
	inner = literal(begin, &name, d.start)
	d.grammar = func(g *lark, t *Tool) callRule {
		return callRule{
			begin: []string{outer}, trigger: outer,
			body: g.join(g.text("\n"+begin+t.Name+">\n"), g.params(t, func(key string) (before, after []string) {
				return []string{"<parameter=" + key + ">\n"}, []string{"\n</parameter>\n"}
			}), g.text(end+"\n"), g.mark(outerEnd)),
			gap: "\n",
		}
	}
	return d
}
