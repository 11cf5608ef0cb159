package tools

import "strings"

// head returns the step of text up to one of the ends, such as the name of a call. take gets the text
// without the white space around it. It returns the next step, or nil where the text is none: then the step
// continues with back. An end "{" belongs to what follows.
func head(take func(p *Parser, text string, which int) step, back step, ends ...string) step {
	return func(p *Parser) step {
		at, which := p.find(ends...)
		switch {
		case at > maxName, which < 0 && p.final:
			return p.fail(back)
		case which < 0:
			return nil
		}
		text := strings.TrimSpace(p.consume(at))
		if ends[which] != "{" {
			p.consume(len(ends[which]))
		}
		if next := take(p, text, which); next != nil {
			return next
		}
		return p.fail(back)
	}
}

// section is the layout of calls between markers, in which a call may also stand alone.
type section struct {
	begin, callBegin, callEnd, end string
	// call is the step after callBegin. It continues with then after the arguments, and with back where the
	// text is no call.
	call func(then, back step) step
}

// start returns the step of text with such sections.
func (s section) start() step {
	var start, first, call, next step
	text := contentUntil(func(which int) step { return []step{first, call}[which] }, s.begin, s.callBegin)
	interrupted := afterInterruption(text, s.begin, s.callBegin)
	start = func(p *Parser) step {
		if p.interrupted {
			return interrupted
		}
		return text
	}
	next = func(p *Parser) step {
		if !p.skipSpace() {
			return nil
		}
		switch which, m := p.beginsAny(s.callBegin, s.end); {
		case m == maybe:
			return nil
		case m == yes && which == 0:
			p.consume(len(s.callBegin))
			return call
		case m == yes:
			p.consume(len(s.end))
			p.dropCall()
			return start
		case p.ends(s.callBegin, s.end):
			p.consume(len(p.in))
			p.dropCall()
			return start
		}
		return p.fail(start)
	}
	call = s.call(closing(s.callEnd, func(p *Parser) step {
		p.openCall()
		return next
	}, start), start)
	first = literal(s.callBegin, &call, start)
	return start
}
