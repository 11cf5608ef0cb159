package tools

import "strings"

// hermes is the format of Hermes 2 Pro, Qwen2.5 and Qwen3:
//
//	<tool_call>
//	{"name": "get_weather", "arguments": {"city": "Paris"}}
//	</tool_call>
func hermes() *dialect {
	d := &dialect{name: "hermes", think: thinkTags(), special: []string{"<tool_call>", "</tool_call>"}}
	d.shows = func(template string) bool { return strings.Contains(template, "<tool_call>") }
	var begin step
	d.start = contentUntil(func(int) step { return begin }, "<tool_call>")
	begin = jsonCall(closing("</tool_call>", d.start, d.start), d.start)
	d.grammar = func(g *lark, t *Tool) callRule {
		return callRule{
			begin: []string{"<tool_call>"}, trigger: "<tool_call>",
			body: g.join(g.text("\n"+`{"name": `+quote(t.Name)+`, "arguments": `), g.schema(t), g.text("}\n"), g.mark("</tool_call>")),
			gap:  "\n",
		}
	}
	return d
}
