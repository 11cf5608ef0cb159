// Package call runs the calls of the interfaces: one call is a request for each of its prompts,
// and its answer is one stream of events. It knows no wire format.
package call

import (
	"time"

	"github.com/millrace/millrace/api"
)

// Kind is which of the two generation interfaces a call came through.
type Kind int

// Kinds of generation calls.
const (
	Chat Kind = iota
	Completion
)

// Call is one decoded generation call: a request for each prompt, and how the
// answer is to look.
type Call struct {
	ID           string
	Named        bool // the client chose the ID: another call may have it already
	Kind         Kind
	Model        string
	Created      time.Time
	Stream       bool
	IncludeUsage bool // a last chunk with the usage
	TokenIDs     bool // token ids beside the text
	Echo         bool // each choice begins with its prompt's text
	N            int  // choices per prompt
	Requests     []*api.Request
	Resume       Resume // may the client come back to the answer?
}

// Choices is how many choices the answer has.
func (c *Call) Choices() int { return len(c.Requests) * c.N }

// Resume is what a call's "stream_resume" asks for.
type Resume int

// Values of "stream_resume".
const (
	ResumeUnset Resume = iota
	ResumeNo           // false
	ResumeAuto         // "auto": where the server can
	ResumeYes          // true: or else it is refused
)

// MaxRequestID is the largest length of an ID that a client chooses, in bytes. The ID becomes a
// token of a NATS subject.
const MaxRequestID = 64

// ValidID says whether a call's id can name a log: letters, digits, '-' and '_'.
func ValidID(id string) bool {
	if id == "" || len(id) > MaxRequestID+len("chatcmpl-") {
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
