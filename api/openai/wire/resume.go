package wire

import (
	"time"

	"github.com/millrace/millrace/api"
)

// Resume is what a call's "stream_resume" asks for.
type Resume int

// Values of "stream_resume".
const (
	ResumeUnsaid Resume = iota
	ResumeNo            // false
	ResumeAuto          // "auto": where the server can
	ResumeYes           // true: or else it is refused
)

// maxRequestID bounds a request_id; it becomes a token of a NATS subject.
const maxRequestID = 64

// resumable reads "stream_resume" and, where it is not false, "request_id".
func (o *object) resumable(c *Call) (requestID string) {
	raw, ok := o.get("stream_resume")
	switch {
	case !ok:
		return ""
	case string(raw) == "false":
		c.Resume = ResumeNo
		return ""
	case string(raw) == "true":
		c.Resume = ResumeYes
	case string(raw) == `"auto"`:
		c.Resume = ResumeAuto
	default:
		o.expected("stream_resume", `true, false or "auto"`, raw)
	}
	o.str("request_id", &requestID)
	if requestID != "" && (len(requestID) > maxRequestID || !ValidID(requestID)) {
		o.fail("request_id", "expected 1 to %d letters, digits, '-' or '_', found %q", maxRequestID, snippet([]byte(requestID)))
	}
	return requestID
}

// ValidID says whether a call's id can name a log: letters, digits, '-' and '_'.
func ValidID(id string) bool {
	if id == "" || len(id) > maxRequestID+len("chatcmpl-") {
		return false
	}
	for _, c := range []byte(id) {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '-', c == '_':
		default:
			return false
		}
	}
	return true
}

// DecodeAgain decodes the body of a call that has its id already: with the same
// models it gives the same requests as the first time, random choices included.
func DecodeAgain(kind Kind, id string, body []byte, models []api.Model, arrival time.Time) (*Call, error) {
	if kind == Chat {
		return decodeChat(body, models, arrival, id)
	}
	return decodeCompletion(body, models, arrival, id)
}

// Progress is how far a call has come: what its events, in order, add up to.
type Progress struct {
	Seq     uint64    // of the last event
	Usage   api.Usage // of the requests that have ended
	Ended   []bool    // by request
	Pins    []api.Pin // by request; of the last event that said one
	Choices []ChoiceProgress
}

// ChoiceProgress is one choice's part of it.
type ChoiceProgress struct {
	Tokens []int32
	Events int // the echo's among them
	Finish api.Finish
}

// Progress adds up the events of a call.
func (c *Call) Progress(events []api.Event) *Progress {
	p := &Progress{Ended: make([]bool, len(c.Requests)), Pins: make([]api.Pin, len(c.Requests)), Choices: make([]ChoiceProgress, c.Choices())}
	for _, ev := range events {
		p.Seq = ev.Seq
		if ev.Choice < 0 || ev.Choice >= len(p.Choices) {
			continue
		}
		ch := &p.Choices[ev.Choice]
		ch.Events++
		ch.Tokens = append(ch.Tokens, ev.Tokens...)
		if ev.Finish != api.FinishNone {
			ch.Finish = ev.Finish
		}
		if ev.Pin != nil {
			p.Pins[ev.Choice/c.N] = *ev.Pin
		}
		if ev.Usage != nil {
			p.Usage, p.Ended[ev.Choice/c.N] = *ev.Usage, true
		}
	}
	return p
}

// begun says whether any event of choices [first, first+n) is there, the echo's apart.
func (p *Progress) begun(first, n int) bool {
	for _, ch := range p.Choices[first : first+n] {
		if len(ch.Tokens) > 0 || ch.Finish != api.FinishNone {
			return true
		}
	}
	return false
}
