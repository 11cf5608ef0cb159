package tools

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// Parser splits the text of one choice into deltas. It has no state but that of its text, so the same
// text gives the same deltas, however it is cut into pieces (adjacent deltas of one kind may be cut
// differently). No text is lost, except for the markers and the white space around them.
type Parser struct {
	o     Options
	in    string // text that no step has consumed
	final bool   // no text follows
	next  step
	out   []Delta
	calls int // calls that have begun
	ids   []string
	ended int // calls that are complete

	reasons bool // the text so far ends inside reasoning

	space string // white space at the end of the content: it is dropped before a marker
	trim  bool   // white space before the next content is dropped
	// before and after are the white space that was dropped around markers. Text of the same kind that continues gets one of them, so that
	// no words are glued together.
	before, after string
	said          [2]bool // of Content and Reasoning: some has come out

	thought     bool    // reasoning has begun, or the content has one of its markers
	interrupted bool    // calls stand inside reasoning whose end marker has not come
	suspect     suspect // text of reasoning that may be the calls at the end of the answer

	call call
}

// call is the call in hand.
type call struct {
	raw       strings.Builder // its text, which becomes content if it is not a call
	open      bool            // raw collects the consumed text
	begun     bool            // Begin has come out
	id, name  string
	tool      *Tool
	arguments strings.Builder // text so far
	sent      int             // bytes of arguments that have come out
	key       string          // of the value in hand
	scan      valueScan       // of the value in hand
	text      bool            // the value in hand is a string, whatever its text
	value     strings.Builder // text of the value in hand, where it has to be converted as a whole
}

// step consumes text of p.in and returns the next step, or nil if it needs more text. What it consumes must
// not depend on text that has not come yet.
type step func(p *Parser) step

// NewParser returns a parser for the answer of one choice.
func NewParser(o Options) *Parser {
	p := &Parser{o: o}
	switch d := o.Format.dialect; {
	case d == nil:
		p.next = contentOnly
	case d.nested != nil && o.Thinking && o.Format.thinks:
		p.next = insideReasoning
	case !o.Format.thinks || d.always || d.nested != nil:
		p.next = d.start
	case o.Thinking:
		p.next = reasoningGoesOn
	default:
		p.next = beforeReasoning
	}
	return p
}

// Push takes the next piece of text, and returns the deltas that it completes.
func (p *Parser) Push(text string) []Delta {
	p.in += text
	return p.run()
}

// Close takes the end of the text. The parser accepts no text after it.
func (p *Parser) Close() []Delta {
	p.final = true
	out := p.run()
	p.closeSuspect()
	rest := p.consume(len(p.in))
	if p.call.open {
		p.giveBack()
	} else {
		p.content(rest)
	}
	if !p.trim && !p.reasons {
		p.emit(Delta{Kind: Content, Text: p.space})
	}
	return append(out, p.take()...)
}

// Calls returns the number of complete calls.
func (p *Parser) Calls() int { return p.ended }

// Reasons reports whether the text so far ends inside reasoning.
func (p *Parser) Reasons() bool { return p.reasons }

// run runs steps until one needs more text.
func (p *Parser) run() []Delta {
	const mostIdle = 16 // steps in a row that consume nothing
	for idle := 0; idle < mostIdle; idle++ {
		before := len(p.in)
		next := p.next(p)
		if next == nil {
			break
		}
		p.next = next
		if len(p.in) < before {
			idle = 0
		}
	}
	return p.take()
}

func (p *Parser) take() []Delta {
	out := p.out
	p.out = nil
	return out
}

// consume removes n bytes from the input and returns them.
func (p *Parser) consume(n int) string {
	text := p.in[:n]
	p.in = p.in[n:]
	if p.call.open {
		p.call.raw.WriteString(text)
	}
	return text
}

// skipSpace consumes white space. It returns false if more may follow.
func (p *Parser) skipSpace() bool {
	p.consume(len(p.in) - len(strings.TrimLeft(p.in, whiteSpace)))
	return p.in != "" || p.final
}

const whiteSpace = " \t\r\n"

// match is whether the input begins with a text.
type match uint8

const (
	no match = iota
	yes
	maybe // the input is a beginning of it
)

func (p *Parser) begins(s string) match {
	switch {
	case strings.HasPrefix(p.in, s):
		return yes
	case !p.final && strings.HasPrefix(s, p.in):
		return maybe
	}
	return no
}

// beginsAny returns the index of the first of several texts that the input begins with.
func (p *Parser) beginsAny(all ...string) (int, match) {
	result := no
	for i, s := range all {
		switch p.begins(s) {
		case yes:
			if result == no {
				return i, yes
			}
		case maybe:
			result = maybe
		case no:
		}
	}
	return -1, result
}

// find returns the position and the index of the marker that comes first in the input. Without one, at
// is the length of the text that cannot be a part of a marker, and which is -1.
func (p *Parser) find(markers ...string) (at, which int) {
	at, which = len(p.in), -1
	for i, m := range markers {
		if k := strings.Index(p.in, m); k >= 0 && (k < at || k == at && which < 0) {
			at, which = k, i
		}
	}
	if p.final {
		return at, which
	}
	for _, m := range markers { // a marker that the end of the input may begin, before the one that was found
		if k := partial(p.in, m); k < at {
			at, which = k, -1
		}
	}
	return at, which
}

// partial returns the position from which the end of text is a proper beginning of marker, or len(text).
func partial(text, marker string) int {
	for n := min(len(marker)-1, len(text)); n > 0; n-- {
		if strings.HasSuffix(text, marker[:n]) {
			return len(text) - n
		}
	}
	return len(text)
}

// emit adds a delta. It joins adjacent texts of one kind.
func (p *Parser) emit(d Delta) {
	text := d.Kind == Content || d.Kind == Reasoning || d.Kind == Arguments
	if text && d.Text == "" {
		return
	}
	if n := len(p.out); text && n > 0 && p.out[n-1].Kind == d.Kind && p.out[n-1].Call == d.Call {
		p.out[n-1].Text += d.Text
		return
	}
	p.out = append(p.out, d)
}

// content emits text without the white space around markers.
func (p *Parser) content(text string) { p.spaced(Content, text) }

func (p *Parser) spaced(kind Kind, text string) {
	if p.trim {
		rest := strings.TrimLeft(text, whiteSpace)
		p.after += text[:len(text)-len(rest)]
		text = rest
	}
	if text == "" {
		return
	}
	if p.trim && p.said[kind] {
		p.emit(Delta{Kind: kind, Text: cmp.Or(p.before, p.after, "\n")})
	}
	if p.trim || kind == Content {
		p.before, p.after = "", ""
	}
	p.trim = false
	text = p.space + text
	kept := strings.TrimRight(text, whiteSpace)
	p.space = text[len(kept):]
	p.said[kind] = p.said[kind] || kept != ""
	p.emit(Delta{Kind: kind, Text: kept})
}

// drop drops the white space around a marker that has been consumed.
func (p *Parser) drop() {
	p.before = cmp.Or(p.before, p.space)
	p.space, p.trim = "", true
}

// contentOnly is the step of text without calls.
func contentOnly(p *Parser) step {
	at, which := p.find(p.strays()...)
	p.content(p.consume(at))
	if which < 0 {
		return nil
	}
	p.stray(which)
	return contentOnly
}

// contentUntil is the step of content up to one of the markers, each of which has its own next step.
// The marker is the beginning of a call.
func contentUntil(then func(which int) step, markers ...string) step {
	var self step
	self = func(p *Parser) step {
		at, which := p.find(slices.Concat(markers, p.strays())...)
		p.content(p.consume(at))
		switch {
		case which < 0:
			return nil
		case which >= len(markers):
			p.stray(which - len(markers))
			return self
		}
		p.openCall()
		p.consume(len(markers[which]))
		return then(which)
	}
	return self
}

// openCall begins to collect the text of what may be a call.
func (p *Parser) openCall() {
	p.call = call{open: true}
	p.call.raw.WriteString(p.space)
	p.before = cmp.Or(p.before, p.space)
	p.space = ""
}

// giveBack ends a call that is none: its text becomes content. A call that has begun stays as it is.
func (p *Parser) giveBack() {
	c := &p.call
	c.open = false
	if c.begun {
		p.trim = true
		return
	}
	p.content(c.raw.String())
	c.raw.Reset()
}

// dropCall ends a call that has text between calls only.
func (p *Parser) dropCall() {
	p.call.open, p.trim = false, true
	p.call.raw.Reset()
}

// fail gives the call back and returns the step that continues.
func (p *Parser) fail(next step) step {
	p.giveBack()
	return next
}

// named sets the name of the call in hand. It returns false if there is no such tool, or if there is to
// be no further call.
func (p *Parser) named(name string) bool {
	c := &p.call
	c.name, c.tool = name, p.o.tool(name)
	if c.tool == nil || p.o.Single && p.calls > 0 {
		return false
	}
	if !p.o.Held {
		p.begin()
		p.flushArguments()
	}
	return true
}

// begin emits the beginning of the call in hand.
func (p *Parser) begin() {
	c := &p.call
	if c.begun {
		return
	}
	c.begun = true
	if c.id == "" || slices.Contains(p.ids, c.id) {
		c.id = p.freshID()
	}
	p.ids = append(p.ids, c.id)
	p.emit(Delta{Kind: Begin, Call: p.calls, ID: c.id, Name: c.name})
	p.calls++
}

// freshID returns the ID of a call whose text has none, or one that an earlier call has. An ID of the model's is
// counted up.
func (p *Parser) freshID() string {
	head, _, counted := strings.Cut(p.call.id, ":")
	for n := p.calls; counted; n++ {
		if id := fmt.Sprintf("%s:%d", head, n); !slices.Contains(p.ids, id) {
			return id
		}
	}
	if p.o.Format.dialect.id != nil {
		return p.o.Format.dialect.id(p.o.ID, p.o.Choice, p.calls)
	}
	return callID(p.o.ID, p.o.Choice, p.calls)
}

// argue adds text to the arguments of the call in hand.
func (p *Parser) argue(text string) {
	p.call.arguments.WriteString(text)
	if p.call.begun {
		p.flushArguments()
	}
}

func (p *Parser) flushArguments() {
	c := &p.call
	p.emit(Delta{Kind: Arguments, Call: p.calls - 1, Text: c.arguments.String()[c.sent:]})
	c.sent = c.arguments.Len()
}

// endCall ends the call in hand. It returns false if it is not valid, and then gives it back.
func (p *Parser) endCall() bool {
	c := &p.call
	if !c.begun {
		unwrap(&c.arguments)
		if c.tool == nil || !isObject(c.arguments.String()) {
			p.giveBack()
			return false
		}
		p.begin()
		p.flushArguments()
	}
	if c.arguments.Len() == 0 {
		p.argue("{}")
	}
	p.emit(Delta{Kind: End, Call: p.calls - 1})
	p.ended++
	c.open = false
	c.raw.Reset()
	p.trim = true
	return true
}

// unwrap replaces what models write for an object of arguments: nothing, null, or the object as a string.
func unwrap(arguments *strings.Builder) {
	text := arguments.String()
	var inner string
	switch {
	case text == "" || text == "null":
		inner = "{}"
	case json.Unmarshal([]byte(text), &inner) != nil:
		return
	}
	arguments.Reset()
	arguments.WriteString(inner)
}

func isObject(text string) bool {
	return strings.HasPrefix(strings.TrimLeft(text, whiteSpace), "{") && json.Valid([]byte(text))
}

// callID returns the ID of a call. Every gateway makes the same one of the same answer.
func callID(answer string, choice, call int) string {
	return "call_" + hashID(answer, choice, call)[:24]
}

func hashID(answer string, choice, call int) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s/%d/%d", answer, choice, call))
	return hex.EncodeToString(sum[:])
}
