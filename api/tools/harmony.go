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
	var between, header, content, reasoning step
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
	header = head(func(p *Parser, _ string, _ int) step {
		to, channel := harmonyHeader(p.call.raw.String())
		switch {
		case to != "" && p.named(strings.TrimPrefix(to, "functions.")):
			return arguments(closing(harmonyCall, between, between))
		case to != "" && p.o.tool(strings.TrimPrefix(to, "functions.")) != nil: // a further call
			return nil
		case to != "" && to != "assistant" && to != "user" && to != "all":
			channel = "analysis"
		}
		p.dropCall()
		if channel == "analysis" {
			p.reasons = true
			return reasoning
		}
		return content
	}, bodyOf(Content, &between), harmonyMessage)
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
