// Package call runs the calls of the interfaces. A call is a request for each of its prompts, and its
// answer is one stream of events. It must not know a wire format, auth or the log of an answer.
package call

import (
	"time"

	"github.com/millrace/millrace/api"
)

// Kind is one of the generation endpoints.
type Kind int

// The kinds of generation calls.
const (
	Chat Kind = iota
	Completion
	Messages       // Anthropic's
	OllamaChat     // Ollama's /api/chat
	OllamaGenerate // Ollama's /api/generate
	Responses      // OpenAI's Responses API
)

// Call is a decoded generation call: a request for each prompt, and the form of the answer.
type Call struct {
	ID           string
	Named        bool // the client chose the ID, so another call may have the same one
	Kind         Kind
	Model        string
	Created      time.Time
	Stream       bool
	IncludeUsage bool // the stream ends with a chunk that has the usage
	TokenIDs     bool // the answer has token ids
	Echo         bool // each choice begins with the text of its prompt
	N            int  // choices per prompt
	Requests     []*api.Request
	Repeated     []byte  // fields of the request that its answer repeats, as JSON; only of the Responses API
	Resume       Resume  // whether the client can reconnect to the answer
	Parsing      Parsing // of a chat: how the text is split
}

// Choices returns the number of choices in the answer.
func (c *Call) Choices() int { return len(c.Requests) * c.N }

// Resume is the "stream_resume" of a call: whether a client can reconnect to the answer.
type Resume int

// The values of "stream_resume".
const (
	ResumeUnset Resume = iota // absent: the server decides
	ResumeNo                  // false
	ResumeAuto                // "auto": yes if the server can keep the answer
	ResumeYes                 // true: the call fails if the server cannot keep the answer
)

// MaxRequestID is the maximum length of an ID that a client chooses, in bytes. The ID becomes a token
// of a NATS subject.
const MaxRequestID = 64

// ValidID reports whether a call's id can name a log: it has only letters, digits, '-' and '_'.
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
