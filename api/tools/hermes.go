package tools

import (
	"regexp"
	"slices"
	"strings"
	"sync"
)

// hermes is the format of Hermes 2 Pro, Qwen2.5 and Qwen3:
//
//	<tool_call>
//	{"name": "get_weather", "arguments": {"city": "Paris"}}
//	</tool_call>
func hermes() *dialect {
	d := &dialect{name: "hermes", think: thinkTags(), special: []string{"<tool_call>", "</tool_call>"}, calls: []string{"<tool_call>"}}
	d.shows = func(template string) bool {
		return hermesCall().MatchString(template) && !slices.ContainsFunc(otherCalls(), func(marker string) bool {
			return strings.Contains(template, marker)
		})
	}
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

// hermesCall matches the text by which a template writes or explains a call: the marker, and a JSON object before any other tag.
var hermesCall = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`<tool_call>[^<]{0,800}?(\{\s*\\?["'](name|arguments|id|type|function)\b|tojson|\{\{[^<]*</tool_call>)`)
})

// otherCalls returns what templates of formats that are not known have around such a marker.
func otherCalls() []string {
	return []string{"<tool_calls>", ":tool_call>", "<invoke", "<function=", "<arg_key>", "<tool_sep>"}
}
