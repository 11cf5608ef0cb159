package tools

import (
	"encoding/json"
	"slices"
	"strings"
)

// valueScan finds the end of a JSON value that arrives in pieces. It does not check the value.
type valueScan struct {
	depth   int
	text    bool // inside a string
	escaped bool // after a backslash
	scalar  bool // a number or a word, which ends before a delimiter
	quote   byte // Python: the quote that ends the string; 0: not inside one
}

// next returns the length of the part of text that belongs to the value, and whether the value ends there.
func (s *valueScan) next(text string) (n int, done bool) {
	for n = range len(text) {
		c := text[n]
		switch {
		case s.escaped:
			s.escaped = false
			continue
		case s.text:
			s.escaped = c == '\\'
			if s.text = c != '"'; !s.text && s.depth == 0 {
				return n + 1, true
			}
			continue
		case s.scalar:
			if strings.IndexByte(",]}", c) >= 0 || strings.IndexByte(whiteSpace, c) >= 0 {
				return n, true
			}
			continue
		}
		switch c {
		case '"':
			s.text = true
		case '{', '[':
			s.depth++
		case '}', ']':
			if s.depth--; s.depth <= 0 {
				return n + 1, true
			}
		default:
			s.scalar = s.depth == 0
		}
	}
	return len(text), false
}

// arguments returns the step of a JSON value that is the arguments of the call in hand.
func arguments(then step) step {
	self := func(p *Parser) step {
		n, done := p.call.scan.next(p.in)
		p.argue(p.consume(n))
		if !done {
			return nil
		}
		p.call.scan = valueScan{}
		return then
	}
	return func(p *Parser) step {
		if !p.skipSpace() {
			return nil
		}
		return self
	}
}

// maxName bounds the text of a name or a key, in bytes.
const maxName = 1024

// jsonText consumes a JSON string.
func (p *Parser) jsonText() (text string, m match) {
	var s valueScan
	n, done := s.next(p.in[:min(len(p.in), maxName)])
	switch {
	case p.in != "" && p.in[0] != '"':
		return "", no
	case !done && n < maxName && !p.final:
		return "", maybe
	case !done || json.Unmarshal([]byte(p.in[:n]), &text) != nil:
		return "", no
	}
	p.consume(n)
	return text, yes
}

// jsonCall returns the step of {"name": NAME, "arguments": OBJECT}, in any order and with further fields.
// It continues with then after the object, and with back where the text is none.
func jsonCall(then, back step) step {
	var key, colon, value, other, comma step
	key = func(p *Parser) step {
		if !p.skipSpace() {
			return nil
		}
		text, m := p.jsonText()
		switch p.call.key = text; m {
		case yes:
			return colon
		case maybe:
			return nil
		case no:
		}
		return p.fail(back)
	}
	colon = literal(":", &value, back)
	value = func(p *Parser) step {
		if !p.skipSpace() {
			return nil
		}
		switch c := &p.call; c.key {
		case "name":
			text, m := p.jsonText()
			switch {
			case m == maybe:
				return nil
			case m == no || c.name != "" || !p.named(text):
				return p.fail(back)
			}
			return comma
		case "arguments", "parameters":
			if c.arguments.Len() > 0 {
				return p.fail(back)
			}
			return arguments(comma)
		}
		return other
	}
	other = func(p *Parser) step {
		n, done := p.call.scan.next(p.in)
		p.consume(n)
		if !done {
			return nil
		}
		p.call.scan = valueScan{}
		return comma
	}
	comma = func(p *Parser) step {
		if !p.skipSpace() {
			return nil
		}
		switch {
		case strings.HasPrefix(p.in, ","):
			p.consume(1)
			return key
		case strings.HasPrefix(p.in, "}") && p.call.name != "":
			p.consume(1)
			return then
		}
		return p.fail(back)
	}
	return literal("{", &key, back)
}

// jsonList returns the step of a list of calls in the form of jsonCall, after the bracket that begins it. It continues with back after the
// list, and where the text is none.
func jsonList(back step) step {
	var between step
	object := jsonCall(func(p *Parser) step {
		if !p.endCall() {
			return back
		}
		p.openCall()
		return between
	}, back)
	between = func(p *Parser) step {
		switch {
		case !p.skipSpace():
			return nil
		case strings.HasPrefix(p.in, ","):
			p.consume(1)
			return object
		case strings.HasPrefix(p.in, "]"):
			p.consume(1)
			p.dropCall()
			return back
		}
		return p.fail(back)
	}
	return object
}

// literal returns the step of white space and a text.
func literal(text string, then *step, back step) step {
	return func(p *Parser) step {
		if !p.skipSpace() {
			return nil
		}
		switch p.begins(text) {
		case yes:
			p.consume(len(text))
			return *then
		case maybe:
			return nil
		case no:
		}
		return p.fail(back)
	}
}

// closing returns the step that ends the call in hand, at its end marker or without it. It continues with back
// if the call is not valid.
func closing(marker string, then, back step) step {
	return func(p *Parser) step {
		switch m, space := p.afterSpace(marker); {
		case m == maybe:
			return nil
		case m == yes:
			p.consume(space + len(marker))
		case p.ends(marker):
			p.consume(len(p.in))
		}
		if !p.endCall() {
			return back
		}
		return then
	}
}

// ends reports whether the end of the text cuts one of several markers.
func (p *Parser) ends(markers ...string) bool {
	rest := strings.TrimLeft(p.in, whiteSpace)
	return p.final && slices.ContainsFunc(markers, func(m string) bool { return strings.HasPrefix(m, rest) })
}

// quote returns text as a JSON string. It keeps all bytes that need no escape, so that text may be cut
// anywhere.
func quote(text string) string { return `"` + escape(text) + `"` }

func escape(text string) string {
	var b strings.Builder
	for i := range len(text) {
		switch c := text[i]; {
		case c == '"' || c == '\\':
			b.WriteByte('\\')
			b.WriteByte(c)
		case c == '\n':
			b.WriteString(`\n`)
		case c == '\t':
			b.WriteString(`\t`)
		case c == '\r':
			b.WriteString(`\r`)
		case c < ' ' || c == 0x7f:
			const hex = "0123456789abcdef"
			b.WriteString(`\u00`)
			b.WriteByte(hex[c>>4])
			b.WriteByte(hex[c&0xf])
		default:
			b.WriteByte(c)
		}
	}
	return b.String()
}
