package tools

import "strings"

// beforeReasoning is the step at the beginning of an answer that may begin with reasoning.
func beforeReasoning(p *Parser) step {
	d := p.o.Format.dialect
	switch m, space := p.afterSpace(d.think.open); m {
	case yes:
		p.consume(space + len(d.think.open))
		return insideReasoning
	case maybe:
		return nil
	case no:
	}
	return d.start
}

// reasoningGoesOn is the step of an answer whose prompt ends inside reasoning. Some models write the start
// marker again.
func reasoningGoesOn(p *Parser) step {
	p.reasons = true
	d := p.o.Format.dialect
	switch m, space := p.afterSpace(d.think.open); m {
	case yes:
		p.consume(space + len(d.think.open))
	case maybe:
		return nil
	case no:
	}
	return insideReasoning
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
	p.reasons, p.trim = true, true
	return reasoningText
}

func reasoningText(p *Parser) step {
	d := p.o.Format.dialect
	at, which := p.find(d.think.close)
	p.spaced(Reasoning, p.consume(at))
	if which < 0 {
		return nil
	}
	p.consume(len(d.think.close))
	p.endReasoning()
	return d.start
}

// endReasoning drops the white space at the end of reasoning and before what follows.
func (p *Parser) endReasoning() { p.space, p.trim, p.reasons = "", true, false }
