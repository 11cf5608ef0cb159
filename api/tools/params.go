package tools

import (
	"encoding/json"
	"slices"
	"strings"
)

// paramSyntax is how a format writes each argument of a call with its name and the text of its value.
type paramSyntax struct {
	begin, keyEnd string // around the name
	valueBegin    string // "": the value follows keyEnd
	valueEnd      string
	callEnd       string
	lines         bool // a newline at each end of a value does not belong to it
}

// arguments returns the step of all arguments of a call, up to and with callEnd.
func (s paramSyntax) arguments(then, back step) step {
	var next, key, open, value step
	next = func(p *Parser) step {
		if !p.skipSpace() {
			return nil
		}
		switch which, m := p.beginsAny(s.begin, s.callEnd); {
		case m == maybe:
			return nil
		case m == yes && which == 0:
			p.consume(len(s.begin))
			return key
		case m == yes:
			p.consume(len(s.callEnd))
			if p.call.arguments.Len() == 0 {
				p.argue("{")
			}
			p.argue("}")
			return then
		}
		return p.fail(back)
	}
	key = head(func(p *Parser, text string, _ int) step {
		p.call.key = text
		if s.valueBegin == "" {
			return open
		}
		return literal(s.valueBegin, &open, back)
	}, back, s.keyEnd)
	open = func(p *Parser) step {
		if s.lines {
			if p.in == "" && !p.final {
				return nil
			}
			if strings.HasPrefix(p.in, "\n") {
				p.consume(1)
			}
		}
		p.argue(separator(p.call.arguments.Len()) + quote(p.call.key) + ": ")
		p.call.value.Reset()
		if p.call.text = slices.Equal(types(p.call.schema()), []string{"string"}); p.call.text {
			p.argue(`"`)
		}
		return value
	}
	ends := []string{s.valueEnd}
	if s.lines {
		ends = []string{"\n" + s.valueEnd, s.valueEnd}
	}
	value = func(p *Parser) step {
		at, which := p.find(ends...)
		text := p.consume(at)
		if p.call.text {
			p.argue(escape(text))
		} else {
			p.call.value.WriteString(text)
		}
		if which < 0 {
			return nil
		}
		p.consume(len(ends[which]))
		if p.call.text {
			p.argue(`"`)
		} else {
			p.argue(convert(p.call.value.String(), p.call.schema()))
		}
		return next
	}
	return next
}

// separator is the text before the next member of an object of which n bytes have been written.
func separator(n int) string {
	if n == 0 {
		return "{"
	}
	return ", "
}

// schema returns the schema of the value in hand, nil if there is none.
func (c *call) schema() json.RawMessage { return c.tool.properties()[c.key] }

// convert returns the JSON of a value that a model wrote as text, in the type that its schema allows. Text
// that is of no such type is a string.
func convert(text string, schema json.RawMessage) string {
	trimmed := strings.TrimSpace(text)
	allowed := types(schema)
	value, ok := pythonValue(trimmed)
	if json.Valid([]byte(trimmed)) {
		value, ok = trimmed, true
	}
	if ok && fits(value, allowed) {
		return value
	}
	return quote(text)
}

// fits reports whether a JSON value is of one of the types. "" stands for any. Where a string is allowed, quotes
// belong to its text.
func fits(value string, allowed []string) bool {
	kind := typeOf(json.RawMessage(value))
	if kind == "string" {
		return !slices.Contains(allowed, kind) && slices.Contains(allowed, "")
	}
	return slices.Contains(allowed, kind) || slices.Contains(allowed, "") ||
		kind == "number" && slices.Contains(allowed, "integer") && strings.Trim(value, "-0123456789") == ""
}
