package tools

import "strings"

// mistral is the format of Mistral's models. The first form is that of tokenizers before version 11:
//
//	[TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Paris"}}]
//	[TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}
//	[TOOL_CALLS]get_weather[CALL_ID]a1b2c3d4e[ARGS]{"city": "Paris"}
func mistral() *dialect {
	const tag, idTag, argsTag = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"
	d := &dialect{name: "mistral", special: []string{tag, idTag, argsTag}}
	d.think, d.calls = plainTags("[THINK]", "[/THINK]"), []string{tag}
	d.shows = func(template string) bool { return strings.Contains(template, tag) }
	d.id = func(answer string, choice, call int) string { return hashID(answer, choice, call)[:9] } // templates refuse others
	var begin, id step
	d.start = contentUntil(func(int) step { return begin }, tag)
	object := jsonList(d.start)
	single := arguments(func(p *Parser) step {
		p.endCall()
		return d.start
	})
	name := head(func(p *Parser, text string, which int) step {
		switch {
		case !p.named(text):
			return nil
		case which == 0:
			return id
		}
		return single
	}, d.start, idTag, argsTag, "{")
	id = head(func(p *Parser, text string, _ int) step {
		p.call.id = text
		return single
	}, d.start, argsTag)
	begin = func(p *Parser) step {
		switch {
		case !p.skipSpace():
			return nil
		case strings.HasPrefix(p.in, "["):
			p.consume(1)
			return object
		}
		return name
	}
	d.grammar = func(g *lark, t *Tool) callRule {
		if g.special(argsTag) {
			return callRule{begin: []string{tag}, trigger: tag, body: g.join(g.text(t.Name), g.mark(argsTag), g.schema(t))}
		}
		return callRule{
			begin: []string{tag}, trigger: tag, listBegin: "[", listEnd: "]", gap: ", ",
			body: g.join(g.text(`{"name": `+quote(t.Name)+`, "arguments": `), g.schema(t), g.text("}")),
		}
	}
	return d
}
