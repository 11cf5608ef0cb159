package tools

import "strings"

// gemma is the format of Gemma 4. Keys have no quotes, and strings have their own:
//
//	<|tool_call>call:get_weather{city:<|"|>Paris<|"|>,days:3}<tool_call|>
func gemma() *dialect {
	d, call := gemmaCalls("gemma", "<|tool_call>", "<tool_call|>", `<|"|>`)
	const open, end = "<|channel>", "<channel|>"
	d.think = tags{open + "thought\n", end, []string{open, end}, open}
	d.nested = channelName(insideReasoning, insideReasoning)
	plain := d.start
	var channel step
	channels := contentUntil(func(which int) step {
		if which == 0 {
			return call
		}
		return func(p *Parser) step {
			p.dropCall()
			if which == 1 {
				return channel
			}
			return d.start
		}
	}, d.calls[0], open, end)
	d.start = func(p *Parser) step {
		if p.o.Format.thinks {
			return channels
		}
		return plain
	}
	channel = channelName(insideReasoning, d.start)
	return d
}

// channelName returns the step of the name of a channel, which continues with thought after the one of reasoning. Without it the marker
// before is a stray one, and the step continues with other.
func channelName(thought, other step) step {
	const name = "thought"
	return func(p *Parser) step {
		m, space := p.afterSpace(name)
		at := space + len(name)
		switch {
		case m == maybe, m == yes && at == len(p.in) && !p.final:
			return nil
		case m == yes && (at == len(p.in) || !isLetter(p.in[at])):
			p.consume(at)
			return thought
		}
		return other
	}
}

func isLetter(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '_' || c >= 0x80
}

// functionGemma is the format of FunctionGemma:
//
//	<start_function_call>call:get_weather{city:<escape>Paris<escape>,days:3}<end_function_call>
func functionGemma() *dialect {
	d, _ := gemmaCalls("functiongemma", "<start_function_call>", "<end_function_call>", "<escape>")
	return d
}

// gemmaCalls returns a dialect, and the step after the begin marker of a call.
func gemmaCalls(name, begin, end, delimiter string) (d *dialect, call step) {
	d = &dialect{name: name, think: thinkTags(), special: []string{begin, end, delimiter}, calls: []string{begin}}
	d.shows = func(template string) bool { return strings.Contains(template, begin) }
	var named step
	start := func(*Parser) step { return d.start } // gemma has another one
	d.start = contentUntil(func(int) step { return call }, begin)
	call = literal("call:", &named, start)
	var body step
	finish := closing(end, start, start)
	named = head(func(p *Parser, text string, _ int) step {
		if !p.named(text) {
			return nil
		}
		p.call.scan = valueScan{}
		p.call.value.Reset()
		return body
	}, start, "{")
	body = func(p *Parser) step {
		s := &p.call.scan
		for ended := false; !ended; {
			marks := []string{delimiter, "{", "}"}
			if s.text {
				marks = marks[:1]
			}
			at, which := p.find(marks...)
			p.call.value.WriteString(p.consume(at))
			if which < 0 {
				return nil
			}
			p.call.value.WriteString(p.consume(len(marks[which])))
			switch which {
			case 0:
				s.text = !s.text
			case 1:
				s.depth++
			default:
				s.depth--
				ended = s.depth == 0
			}
		}
		r := &gemmaReader{in: p.call.value.String(), delimiter: delimiter}
		r.value(0)
		if r.failed || r.in != "" {
			return p.fail(start)
		}
		p.argue(r.out.String())
		return finish
	}
	d.grammar = func(g *lark, t *Tool) callRule {
		values := gemmaGrammar{lark: g, delimiter: delimiter, references: make(map[string]string)}
		return callRule{begin: []string{begin}, trigger: begin, body: g.join(g.text("call:"+t.Name), values.arguments(t), g.mark(end))}
	}
	return d, call
}

// gemmaReader turns Gemma's values into JSON.
type gemmaReader struct {
	in        string
	delimiter string // around strings
	out       strings.Builder
	failed    bool
}

func (r *gemmaReader) space() { r.in = strings.TrimLeft(r.in, whiteSpace) }

func (r *gemmaReader) value(depth int) {
	r.space()
	if depth > maxNesting {
		r.failed = true
	}
	switch {
	case r.failed || r.in == "":
		r.failed = true
	case strings.HasPrefix(r.in, r.delimiter):
		r.text()
	case r.in[0] == '{':
		r.members(depth, "{", "}", true)
	case r.in[0] == '[':
		r.members(depth, "[", "]", false)
	default:
		r.word()
	}
}

func (r *gemmaReader) text() {
	text, rest, ok := strings.Cut(r.in[len(r.delimiter):], r.delimiter)
	r.failed = r.failed || !ok
	r.in = rest
	r.out.WriteString(quote(text))
}

func (r *gemmaReader) members(depth int, begin, end string, keys bool) {
	r.in = r.in[1:]
	r.out.WriteString(begin)
	for n := 0; !r.failed; n++ {
		if r.space(); strings.HasPrefix(r.in, end) {
			r.in = r.in[1:]
			break
		}
		if n > 0 {
			if !strings.HasPrefix(r.in, ",") {
				r.failed = true
				return
			}
			r.in = r.in[1:]
			r.out.WriteString(", ")
		}
		if keys {
			r.key()
		}
		r.value(depth + 1)
	}
	r.out.WriteString(end)
}

// key reads a key, with or without quotes, and the colon.
func (r *gemmaReader) key() {
	if r.space(); strings.HasPrefix(r.in, r.delimiter) {
		r.text()
		r.space()
		r.failed = r.failed || !strings.HasPrefix(r.in, ":")
		r.in = strings.TrimPrefix(r.in, ":")
	} else {
		key, rest, ok := strings.Cut(r.in, ":")
		r.failed = r.failed || !ok || key == ""
		r.in = rest
		r.out.WriteString(quote(strings.TrimSpace(key)))
	}
	r.out.WriteString(": ")
}

// word reads a number or a word. Words other than true, false and null are strings.
func (r *gemmaReader) word() {
	n := strings.IndexAny(r.in, ",]}")
	if n < 0 {
		n = len(r.in)
	}
	word := strings.TrimSpace(r.in[:n])
	r.in = r.in[n:]
	if text, ok := pythonValue(word); ok {
		r.out.WriteString(text)
	} else {
		r.out.WriteString(quote(word))
	}
}
