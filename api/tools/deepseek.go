package tools

import "strings"

// The markers of DeepSeek's calls. The bars and the low lines are not ASCII.
const (
	deepseekBegin     = "<｜tool▁calls▁begin｜>"
	deepseekEnd       = "<｜tool▁calls▁end｜>"
	deepseekCallBegin = "<｜tool▁call▁begin｜>"
	deepseekCallEnd   = "<｜tool▁call▁end｜>"
	deepseekSeparator = "<｜tool▁sep｜>"
)

// deepseek is the format of DeepSeek V3.1:
//
//	<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{"city": "Paris"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>
//
// It also reads the calls of deepseekV3.
func deepseek() *dialect {
	d := deepseekV3()
	d.name = "deepseek"
	d.shows = func(template string) bool { return strings.Contains(template, deepseekCallBegin) }
	d.grammar = func(g *lark, t *Tool) callRule {
		return callRule{
			begin: []string{deepseekBegin}, trigger: deepseekBegin, end: deepseekEnd,
			body: g.join(g.mark(deepseekCallBegin), g.text(t.Name), g.mark(deepseekSeparator), g.schema(t), g.mark(deepseekCallEnd)),
		}
	}
	return d
}

// deepseekV3 is the format of DeepSeek V3 and R1:
//
//	<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather
//	```json
//	{"city": "Paris"}
//	```<｜tool▁call▁end｜><｜tool▁calls▁end｜>
func deepseekV3() *dialect {
	d := &dialect{name: "deepseek-v3", think: thinkTags(), calls: []string{deepseekBegin, deepseekCallBegin}, special: []string{
		deepseekBegin, deepseekEnd, deepseekCallBegin, deepseekCallEnd, deepseekSeparator}}
	d.shows = func(template string) bool {
		return strings.Contains(template, deepseekCallBegin) && strings.Contains(template, "```json")
	}
	d.start = section{deepseekBegin, deepseekCallBegin, deepseekCallEnd, deepseekEnd, func(then, back step) step {
		fence := literal("```", &then, back)
		body := arguments(fence)
		name := head(func(p *Parser, name string, _ int) step {
			if !p.named(name) {
				return nil
			}
			return body
		}, back, "```json")
		return head(func(p *Parser, kind string, _ int) step {
			if kind == "function" && p.o.tool(kind) == nil {
				return name
			}
			if !p.named(kind) {
				return nil
			}
			return arguments(then)
		}, back, deepseekSeparator)
	}}.start()
	d.grammar = func(g *lark, t *Tool) callRule {
		return callRule{
			begin: []string{deepseekBegin}, trigger: deepseekBegin, end: deepseekEnd,
			body: g.join(g.mark(deepseekCallBegin), g.text("function"), g.mark(deepseekSeparator), g.text(t.Name+"\n```json\n"),
				g.schema(t),
				g.text("\n```"), g.mark(deepseekCallEnd)),
			gap: "\n",
		}
	}
	return d
}
