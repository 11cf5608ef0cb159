package tools

import (
	"regexp"
	"strings"
	"sync"
)

// llamaJSON is the format of Llama 3.1 to 3.3. A call is the whole answer, or follows a marker. Several are separated by
// semicolons, or are a list:
//
//	{"name": "get_weather", "parameters": {"city": "Paris"}}
func llamaJSON() *dialect {
	d := &dialect{name: "llama3-json", think: thinkTags(), special: []string{pythonTag}, calls: []string{pythonTag}}
	d.shows = func(template string) bool {
		return llamaCall().MatchString(template) && !strings.Contains(template, "<function=")
	}
	var first, object, after, next step
	text := contentUntil(func(int) step { return first }, pythonTag)
	d.start = func(p *Parser) step {
		m, _ := p.afterSpace(pythonTag)
		at := strings.TrimLeft(p.in, whiteSpace)
		switch {
		case m == maybe:
			return nil
		case at != "" && strings.IndexByte("{[", at[0]) >= 0:
			p.openCall()
			return first
		}
		return text
	}
	first = func(p *Parser) step {
		switch {
		case !p.skipSpace():
			return nil
		case strings.HasPrefix(p.in, "["):
			p.consume(1)
			return next
		}
		return object
	}
	object = jsonCall(func(p *Parser) step {
		if !p.endCall() {
			return text
		}
		return after
	}, text)
	after = func(p *Parser) step {
		rest := strings.TrimLeft(p.in, whiteSpace+";")
		switch {
		case rest == "" && !p.final:
			return nil
		case strings.HasPrefix(rest, "{"):
			p.openCall()
			p.consume(len(p.in) - len(rest))
			return object
		}
		return text
	}
	next = jsonList(text)
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

// llamaCall matches the text by which a template explains the calls of llamaJSON.
var llamaCall = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`\{\s*\\?"name\\?":\s*[^{}]{0,200}\\?"parameters\\?":`)
})
