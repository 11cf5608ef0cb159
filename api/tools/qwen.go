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
	return functionXML("qwen3-xml", "<tool_call>", "</tool_call>", thinkTags())
}

// seedBudget is the marker by which Seed-OSS begins to write about its budget of reasoning. A prompt without a budget ends with it.
const seedBudget = "<seed:cot_budget_reflect>"

// seedOSS is the format of Seed-OSS. It is that of qwenXML with markers of its own:
//
//	<seed:tool_call>
//	<function=get_weather>
//	<parameter=city>Paris</parameter>
//	</function>
//	</seed:tool_call>
func seedOSS() *dialect {
	return functionXML("seed-oss", "<seed:tool_call>", "</seed:tool_call>", plainTags("<seed:think>", "</seed:think>"))
}

func functionXML(name, outer, outerEnd string, think tags) *dialect {
	const begin, end = "<function=", "</function>"
	d := &dialect{name: name, think: think, special: []string{outer, outerEnd}, calls: []string{outer, begin}}
	d.shows = func(template string) bool {
		return strings.Contains(template, outer) && strings.Contains(template, begin) && strings.Contains(template, "<parameter=")
	}
	var inner, function step
	d.start = contentUntil(func(which int) step { return []step{inner, function}[which] }, outer, begin)
	params := paramSyntax{begin: "<parameter=", keyEnd: ">", valueEnd: "</parameter>", callEnd: end, lines: true}
	function = head(func(p *Parser, text string, _ int) step {
		if !p.named(text) {
			return nil
		}
		return params.arguments(closing(outerEnd, d.start, d.start), d.start)
	}, d.start, ">")
	inner = literal(begin, &function, d.start)
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
