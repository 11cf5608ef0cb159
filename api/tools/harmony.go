package tools

import (
	"slices"
	"strings"
)

// The markers of Harmony.
const (
	harmonyStart     = "<|start|>"
	harmonyChannel   = "<|channel|>"
	harmonyConstrain = "<|constrain|>"
	harmonyMessage   = "<|message|>"
	harmonyEnd       = "<|end|>"
	harmonyCall      = "<|call|>"
	harmonyReturn    = "<|return|>"
)

// harmony is the format of GPT-OSS. An answer is a list of messages, each with a channel. Reasoning is in the
// channel analysis, and a message to a function is a call. A message to another recipient, such as a built-in tool, is for no user: it is
// reasoning, too.
//
//	<|channel|>analysis<|message|>The user wants the weather.<|end|>
//	<|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"city": "Paris"}<|call|>
//	<|start|>assistant<|channel|>final<|message|>It rains.<|return|>
func harmony() *dialect {
	d := &dialect{name: "harmony", always: true, special: []string{
		harmonyStart, harmonyChannel, harmonyConstrain, harmonyMessage, harmonyEnd, harmonyCall, harmonyReturn}}
	d.shows = func(template string) bool {
		return strings.Contains(template, harmonyChannel) && strings.Contains(template, harmonyMessage)
	}
	var between, content, reasoning step
	header := harmonyHead(&between, &content, &reasoning)
	d.start = func(p *Parser) step {
		if m, _ := p.afterSpace("to="); m == maybe {
			return nil
		} else if m == yes {
			p.openCall()
			return header
		}
		return between
	}
	// Text between messages is content: a model may leave the header out.
	between = contentUntil(func(which int) step {
		if which < 2 {
			return header
		}
		return func(p *Parser) step {
			p.dropCall()
			return between
		}
	}, harmonyStart, harmonyChannel, harmonyEnd, harmonyCall, harmonyReturn, harmonyMessage, harmonyConstrain)
	content, reasoning = bodyOf(Content, &between), bodyOf(Reasoning, &between)
	d.grammar = func(g *lark, t *Tool) callRule {
		const to = "to=functions." // in other text it means the same
		return callRule{
			begin: []string{harmonyChannel, "commentary " + to}, trigger: to, single: true,
			body: g.join(g.text(t.Name+" "), g.mark(harmonyConstrain), g.text("json"), g.mark(harmonyMessage), g.schema(t)),
		}
	}
	return d
}

// harmonyHead returns the step of a message's header, after its first marker.
func harmonyHead(between, content, reasoning *step) step {
	whole := head(func(p *Parser, _ string, _ int) step {
		to, channel := harmonyHeader(p.call.raw.String())
		switch {
		case to != "" && p.named(strings.TrimPrefix(to, "functions.")):
			return arguments(closing(harmonyCall, *between, *between))
		case to != "" && p.o.tool(strings.TrimPrefix(to, "functions.")) != nil: // a further call
			return nil
		case to != "" && to != "assistant" && to != "user" && to != "all":
			channel = "analysis"
		}
		p.dropCall()
		if channel == "analysis" {
			p.reasons = true
			return *reasoning
		}
		return *content
	}, bodyOf(Content, between), harmonyMessage)
	return func(p *Parser) step {
		at, which := p.find(harmonyMessage)
		switch {
		case at <= maxName && (which >= 0 || !p.final):
			return whole(p)
		case !strings.Contains(p.call.raw.String(), "<|"):
			return p.fail(*content)
		case at <= maxName && cutHeader(p.in):
			p.consume(len(p.in))
		}
		p.dropCall() // a stray marker
		return *content
	}
}

// bodyOf returns the step of a message's text, which is of a kind.
func bodyOf(kind Kind, between *step) step {
	return func(p *Parser) step {
		ends := []string{harmonyEnd, harmonyStart, harmonyCall, harmonyReturn, harmonyChannel}
		strays := []string{harmonyMessage, harmonyConstrain}
		at, which := p.find(slices.Concat(ends, strays)...)
		p.spaced(kind, p.consume(at))
		switch i := which - len(ends); {
		case which < 0:
			return nil
		case i >= 0:
			p.consume(len(strays[i]))
			p.drop()
			return bodyOf(kind, between)
		}
		if p.reasons {
			p.endReasoning()
		}
		return *between
	}
}

// cutHeader reports whether the text at the end of an answer, after a marker, is the beginning of a header.
func cutHeader(text string) bool {
	text, _, _ = strings.Cut(text, "<")
	words := strings.Fields(text)
	if len(words) == 0 {
		return true
	}
	return slices.ContainsFunc([]string{"assistant", "analysis", "commentary", "final", "to="}, func(known string) bool {
		return words[0] == known || len(words) == 1 && strings.HasPrefix(known, words[0]) || known == "to=" &&
			strings.HasPrefix(words[0], known)
	})
}

// harmonyHeader returns the recipient and the channel of a message, from the text before its content.
func harmonyHeader(text string) (to, channel string) {
	header := strings.NewReplacer(harmonyConstrain, " ", harmonyStart, " ", harmonyMessage, " ").Replace(text)
	before, after, _ := strings.Cut(header, harmonyChannel)
	for i, word := range strings.Fields(after) {
		if recipient, ok := strings.CutPrefix(word, "to="); ok {
			to = recipient
		} else if i == 0 {
			channel = word
		}
	}
	for word := range strings.FieldsSeq(before) {
		if recipient, ok := strings.CutPrefix(word, "to="); ok {
			to = recipient
		}
	}
	return to, channel
}
