package tools

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf16"
)

// pythonic is the format of Llama 3.2 and Llama 4:
//
//	[get_weather(city="Paris"), get_time(zone="CET")]
//	<|python_start|>[get_weather(city="Paris")]<|python_end|>
func pythonic() *dialect {
	const begin, end = "<|python_start|>", "<|python_end|>"
	d := &dialect{name: "pythonic", think: thinkTags(), special: []string{begin, end}, calls: []string{begin}}
	d.shows = func(template string) bool {
		return strings.Contains(template, begin) || strings.Contains(template, "[func_name1(")
	}
	var marked, name, argument, key, value, after, between step
	back := contentUntil(func(which int) step { return []step{name, marked}[which] }, "[", begin)
	d.start = back
	marked = literal("[", &name, back)
	name = func(p *Parser) step {
		if !p.skipSpace() {
			return nil
		}
		for i := range p.o.Tools { // the name of a tool only, so that other text in brackets is not held back
			switch t := p.o.Tools[i].Name; p.begins(t + "(") {
			case maybe:
				return nil
			case yes:
				if p.consume(len(t) + 1); p.named(t) {
					return argument
				}
				return p.fail(back)
			case no:
			}
		}
		return p.fail(back)
	}
	argument = func(p *Parser) step {
		switch {
		case !p.skipSpace():
			return nil
		case strings.HasPrefix(p.in, ")"):
			p.consume(1)
			if p.call.arguments.Len() == 0 {
				p.argue("{")
			}
			p.argue("}")
			if !p.endCall() {
				return back
			}
			p.openCall()
			return between
		case strings.HasPrefix(p.in, ",") && p.call.arguments.Len() > 0:
			p.consume(1)
		}
		return key
	}
	key = head(func(p *Parser, text string, _ int) step {
		if _, known := p.call.tool.properties()[text]; !known && !isIdentifier(text) {
			return nil
		}
		p.call.key = text
		p.call.value.Reset()
		p.call.scan = valueScan{}
		return value
	}, back, "=")
	value = func(p *Parser) step {
		n, done := p.call.scan.python(p.in)
		p.call.value.WriteString(p.consume(n))
		if !done {
			return nil
		}
		text, ok := pythonValue(strings.TrimSpace(p.call.value.String()))
		if !ok {
			return p.fail(back)
		}
		p.argue(separator(p.call.arguments.Len()) + quote(p.call.key) + ": " + text)
		return argument
	}
	between = func(p *Parser) step {
		switch {
		case !p.skipSpace():
			return nil
		case strings.HasPrefix(p.in, ","):
			p.consume(1)
			return name
		case strings.HasPrefix(p.in, "]"):
			p.consume(1)
			return after
		}
		return p.fail(back)
	}
	after = func(p *Parser) step {
		m, space := p.afterSpace(end)
		switch m {
		case maybe:
			return nil
		case yes:
			p.consume(space + len(end))
		case no:
		}
		p.dropCall()
		return back
	}
	d.grammar = func(g *lark, t *Tool) callRule {
		return callRule{begin: []string{"["}, listEnd: "]", gap: ", ", body: g.join(g.text(t.Name+"("), g.keywords(t), g.text(")"))}
	}
	return d
}

func isIdentifier(text string) bool {
	return text != "" && strings.IndexFunc(text, func(r rune) bool {
		return r != '_' && r != '-' && r != '.' && (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && r < 0x80
	}) < 0
}

// python returns the length of the part of text that belongs to a Python literal, and whether the literal
// ends there: before a comma or a closing bracket.
func (s *valueScan) python(text string) (n int, done bool) {
	for n = range len(text) {
		c := text[n]
		switch {
		case s.escaped:
			s.escaped = false
		case s.quote != 0:
			s.escaped = c == '\\'
			if c == s.quote {
				s.quote = 0
			}
		case c == '"' || c == '\'':
			s.quote = c
		case strings.IndexByte("[{(", c) >= 0:
			s.depth++
		case s.depth == 0 && strings.IndexByte(",)]}", c) >= 0:
			return n, true
		case strings.IndexByte("]})", c) >= 0:
			s.depth--
		}
	}
	return len(text), false
}

// pythonValue returns the JSON of a Python literal: a string, a number, True, False, None, a list, a tuple or
// a dictionary, or the same in JSON. It returns false if text is no such literal.
func pythonValue(text string) (string, bool) {
	r := &pythonReader{in: text}
	r.value(0)
	return r.out.String(), !r.failed && strings.TrimSpace(r.in) == ""
}

type pythonReader struct {
	in     string
	out    strings.Builder
	failed bool
}

const maxNesting = 64

func (r *pythonReader) value(depth int) {
	r.space()
	if r.in == "" || depth > maxNesting {
		r.failed = true
		return
	}
	switch r.in[0] {
	case '"', '\'':
		r.text()
	case '[':
		r.list(depth, "[", "]")
	case '(':
		r.list(depth, "(", ")")
	case '{':
		r.object(depth)
	default:
		r.word()
	}
}

func (r *pythonReader) space() { r.in = strings.TrimLeft(r.in, whiteSpace) }

// skip consumes white space and a text. It returns false if another text follows.
func (r *pythonReader) skip(text string) bool {
	r.space()
	rest, ok := strings.CutPrefix(r.in, text)
	r.in = rest
	return ok
}

func (r *pythonReader) list(depth int, begin, end string) {
	r.skip(begin)
	r.out.WriteByte('[')
	for n := 0; !r.failed && !r.skip(end); n++ {
		if n > 0 {
			if !r.skip(",") {
				r.failed = true
				return
			}
			if r.skip(end) {
				break
			}
			r.out.WriteString(", ")
		}
		r.value(depth + 1)
	}
	r.out.WriteByte(']')
}

func (r *pythonReader) object(depth int) {
	r.skip("{")
	r.out.WriteByte('{')
	for n := 0; !r.failed && !r.skip("}"); n++ {
		if n > 0 {
			if !r.skip(",") {
				r.failed = true
				return
			}
			if r.skip("}") {
				break
			}
			r.out.WriteString(", ")
		}
		if r.space(); r.in == "" || r.in[0] != '"' && r.in[0] != '\'' {
			r.failed = true
			return
		}
		r.text()
		if !r.skip(":") {
			r.failed = true
			return
		}
		r.out.WriteString(": ")
		r.value(depth + 1)
	}
	r.out.WriteByte('}')
}

// text reads a string between two equal quotes.
func (r *pythonReader) text() {
	quoted := r.in[0]
	r.out.WriteByte('"')
	for i := 1; i < len(r.in); i++ {
		switch c := r.in[i]; {
		case c == quoted:
			r.in = r.in[i+1:]
			r.out.WriteByte('"')
			return
		case c == '\\' && i+1 < len(r.in):
			i += r.escape(r.in[i+1:])
		default:
			r.out.WriteString(escape(string([]byte{c})))
		}
	}
	r.failed = true
}

// escape writes what a backslash before text stands for, and returns the length of what it has read. Python keeps a backslash before
// other characters.
func (r *pythonReader) escape(text string) int {
	switch c := text[0]; c {
	case 'n', 't', 'r', 'b', 'f', '"', '\\':
		r.out.Write([]byte{'\\', c})
	case '\'', '/':
		r.out.WriteByte(c)
	case 'a':
		r.out.WriteString(escape("\a"))
	case 'v':
		r.out.WriteString(escape("\v"))
	case '\n':
	case 'x':
		return 1 + r.character(text[1:], 2, 16)
	case 'u':
		return 1 + r.character(text[1:], 4, 16)
	case 'U':
		return 1 + r.character(text[1:], 8, 16)
	case '0', '1', '2', '3', '4', '5', '6', '7':
		return r.character(text, min(3, len(text)-len(strings.TrimLeft(text, "01234567"))), 8)
	default:
		r.out.WriteString(`\\`)
		r.out.WriteString(escape(text[:1]))
	}
	return 1
}

// character writes the character whose number is the first digits of text, and returns their count.
func (r *pythonReader) character(text string, digits, base int) int {
	n, err := strconv.ParseUint(text[:min(digits, len(text))], base, 32)
	switch {
	case err != nil || digits > len(text) || n > unicode.MaxRune:
		r.failed = true
	case digits == 4 || utf16.IsSurrogate(rune(n)): // half of a pair stays an escape, which JSON has, too
		fmt.Fprintf(&r.out, `\u%04x`, n)
	default:
		r.out.WriteString(escape(string(rune(n))))
	}
	return min(digits, len(text))
}
func (r *pythonReader) word() {
	n := strings.IndexAny(r.in, ",:)]}"+whiteSpace)
	if n < 0 {
		n = len(r.in)
	}
	word := r.in[:n]
	r.in = r.in[n:]
	switch word {
	case "True", "true":
		r.out.WriteString("true")
	case "False", "false":
		r.out.WriteString("false")
	case "None", "null":
		r.out.WriteString("null")
	default:
		word = strings.ReplaceAll(word, "_", "")
		if !json.Valid([]byte(word)) {
			r.failed = true
		}
		r.out.WriteString(word)
	}
}
