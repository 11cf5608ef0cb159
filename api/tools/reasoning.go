package tools

import (
	"slices"
	"strings"
)

// beforeReasoning is the step at the beginning of an answer that may begin with reasoning.
func beforeReasoning(p *Parser) step {
	d := p.o.Format.dialect
	return p.either(d.think.open, reasoningGoesOn, d.start)
}

// either returns a step after a marker and the white space before it, which are consumed, or another one where the input begins otherwise.
func (p *Parser) either(marker string, after, otherwise step) step {
	switch m, space := p.afterSpace(marker); m {
	case yes:
		p.consume(space + len(marker))
		return after
	case maybe:
		return nil
	case no:
	}
	return otherwise
}

// reasoningGoesOn is the step after the start marker of reasoning, in the prompt or in the answer. Some models write it
// again.
func reasoningGoesOn(p *Parser) step {
	p.reasons = true
	return p.either(p.o.Format.dialect.think.open, reasoningGoesOn, insideReasoning)
}

// afterSpace reports whether s follows the white space at the beginning of the input, whose length it
// returns.
func (p *Parser) afterSpace(s string) (m match, space int) {
	text := strings.TrimLeft(p.in, whiteSpace)
	space = len(p.in) - len(text)
	switch {
	case strings.HasPrefix(text, s):
		return yes, space
	case !p.final && strings.HasPrefix(s, text):
		return maybe, space
	}
	return no, space
}

// insideReasoning is the step of reasoning up to its end marker.
func insideReasoning(p *Parser) step {
	p.thought, p.reasons, p.trim = true, true, true
	return reasoningText
}

func reasoningText(p *Parser) step {
	d := p.o.Format.dialect
	marks := []string{d.think.close}
	if d.think.again != "" {
		marks = append(marks, d.think.again)
	}
	if len(p.o.Tools) > 0 {
		marks = append(marks, d.calls...)
	}
	at, which := p.find(marks...)
	if text := p.consume(at); !p.suspect.take(text) {
		return p.releaseSuspect()
	} else if p.suspect.parser == nil {
		p.spaced(Reasoning, text)
	}
	switch {
	case which < 0:
		return nil
	case which == 0:
		p.spaced(Reasoning, p.suspect.end())
		p.consume(len(d.think.close))
		p.endReasoning()
		return afterReasoning
	case marks[which] == d.think.again:
		p.spaced(Reasoning, p.suspect.end())
		p.consume(len(d.think.again))
		p.drop()
		return d.nested
	case d.interrupts:
		p.interrupted = true
		p.endReasoning()
		return d.start
	}
	if p.suspect.parser == nil {
		p.suspect.begin(p.o)
	}
	if !p.suspect.take(p.consume(len(marks[which]))) {
		return p.releaseSuspect()
	}
	return reasoningText
}

// afterReasoning is the step after the end marker of reasoning, which some models write twice.
func afterReasoning(p *Parser) step {
	d := p.o.Format.dialect
	return p.either(d.think.close, afterReasoning, d.start)
}

// endReasoning drops the white space at the end of reasoning and before what follows.
func (p *Parser) endReasoning() { p.space, p.trim, p.reasons = "", true, false }

// suspect is the text of reasoning from the marker of a call on. It is calls if nothing but calls follows up to the end of the
// answer. The zero value has no text.
type suspect struct {
	parser *Parser // of the calls; nil: there is no such text
	text   strings.Builder
	deltas []Delta // of complete calls
}

// begin begins at the marker of a call.
func (s *suspect) begin(o Options) {
	o.Format.thinks, o.Held, o.Thinking = false, true, false
	*s = suspect{parser: NewParser(o)}
}

// take adds text. It returns false if the text is not calls alone.
func (s *suspect) take(text string) bool {
	if s.parser == nil {
		return true
	}
	s.text.WriteString(text)
	s.deltas = append(s.deltas, s.parser.Push(text)...)
	return !slices.ContainsFunc(s.deltas, isContent)
}

// end returns the text, which is reasoning.
func (s *suspect) end() string {
	text := s.text.String()
	*s = suspect{}
	return text
}

func isContent(d Delta) bool { return d.Kind == Content && strings.Trim(d.Text, whiteSpace) != "" }

// releaseSuspect makes the marker at the beginning of the suspect text reasoning, and the rest of it input again.
func (p *Parser) releaseSuspect() step {
	text := p.suspect.end()
	marks := p.o.Format.dialect.calls
	i := slices.IndexFunc(marks, func(m string) bool { return strings.HasPrefix(text, m) })
	p.spaced(Reasoning, marks[i])
	p.in = text[len(marks[i]):] + p.in
	return reasoningText
}

// closeSuspect ends the suspect text at the end of the answer.
func (p *Parser) closeSuspect() {
	sub := p.suspect.parser
	if sub == nil {
		return
	}
	deltas := slices.Concat(p.suspect.deltas, sub.Close())
	text := p.suspect.end()
	if sub.ended == 0 || slices.ContainsFunc(deltas, isContent) {
		p.spaced(Reasoning, text)
		return
	}
	p.endReasoning()
	p.calls, p.ended, p.ids = sub.calls, sub.ended, sub.ids
	for _, d := range deltas {
		if d.Kind != Content {
			p.emit(d)
		}
	}
}

// strays returns the markers of reasoning that may stand in content: the end marker of a model that leaves the start marker out, and the
// start marker, after which both are content.
func (p *Parser) strays() []string {
	d := p.o.Format.dialect
	if d == nil || !p.o.Format.thinks || p.thought || d.always || d.nested != nil {
		return nil
	}
	return []string{d.think.close, d.think.open}
}

// stray consumes one of the markers of strays, at the beginning of the input. What is before an end marker has come out as content
// already, so that only the marker is dropped.
func (p *Parser) stray(which int) {
	marker := p.strays()[which]
	p.thought = true
	if text := p.consume(len(marker)); which > 0 {
		p.content(text)
		return
	}
	p.drop()
}

// afterInterruption returns the step of the text after calls inside reasoning. It is reasoning if the end marker follows, else content. The
// step continues with then at one of the markers of calls.
func afterInterruption(then step, calls ...string) step {
	return func(p *Parser) step {
		if !p.call.open {
			p.openCall()
		}
		d := p.o.Format.dialect
		at, which := p.find(append([]string{d.think.close}, calls...)...)
		p.consume(at)
		switch {
		case which < 0:
			return nil
		case which > 0:
			p.giveBack()
			return then
		}
		text := p.call.raw.String()
		p.dropCall()
		p.spaced(Reasoning, text)
		p.consume(len(d.think.close))
		p.interrupted = false
		p.endReasoning()
		return afterReasoning
	}
}
