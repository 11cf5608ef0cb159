package tools

import "strings"

// llamaJSON is the format of Llama 3.1 to 3.3. A call is the whole answer, and several are separated by
// semicolons:
//
//	{"name": "get_weather", "parameters": {"city": "Paris"}}
func llamaJSON() *dialect {
	d := &dialect{name: "llama3-json", think: thinkTags(), special: []string{pythonTag}}
	d.shows = func(template string) bool {
		return strings.Contains(template, pythonTag) || strings.Contains(template, `{"name": function name, "parameters":`)
	}
	var object, after step
	d.start = func(p *Parser) step {
		if m, space := p.afterSpace(pythonTag); m != no {
			if m == maybe {
				return nil
			}
			p.openCall()
			p.consume(space + len(pythonTag))
			return object
		}
		if m, space := p.afterSpace("{"); m == yes {
			p.openCall()
			p.consume(space)
			return object
		}
		return contentOnly
	}
	object = jsonCall(func(p *Parser) step {
		if !p.endCall() {
			return contentOnly
		}
		return after
	}, contentOnly)
	after = func(p *Parser) step {
		text := strings.TrimLeft(p.in, whiteSpace+";")
		switch {
		case text == "" && !p.final:
			return nil
		case strings.HasPrefix(text, "{"):
			p.openCall()
			p.consume(len(p.in) - len(text))
			return object
		}
		return contentOnly
	}
	d.grammar = func(g *lark, t *Tool) callRule {
		return callRule{
			begin: []string{"{"},
			body:  g.join(g.text(`"name": `+quote(t.Name)+`, "parameters": `), g.schema(t), g.text("}")),
			gap:   "; ",
		}
	}
	return d
}

const pythonTag = "<|python_tag|>"
