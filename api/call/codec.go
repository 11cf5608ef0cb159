package call

import (
	"time"

	"github.com/millrace/millrace/api"
)

// Codec is the wire format of one kind of call. Its functions are pure.
type Codec struct {
	// Decode decodes the body of a call. Its error is an *api.Error that names the field.
	Decode func(body []byte, models []api.Model, arrival time.Time) (*Call, error)
	// Encode returns the body of a whole answer. fingerprint is the digest of a request without a numerics digest.
	Encode func(c *Call, r *Result, fingerprint string) ([]byte, error)
	// Stream returns the encoder of a streamed answer.
	Stream func(c *Call, fingerprint string) Encoder
	// Error returns the body of an error.
	Error func(e *api.Error) []byte
	// StreamError returns the chunk of an error in a stream. nil: Error.
	StreamError func(e *api.Error) []byte
	// Frames is how the chunks of a stream follow each other over HTTP.
	Frames Frames
}

// ErrorInStream returns the chunk of an error in a stream.
func (c *Codec) ErrorInStream(e *api.Error) []byte {
	if c.StreamError != nil {
		return c.StreamError(e)
	}
	return c.Error(e)
}

// Encoder encodes the events of one answer as chunks. The slices that a method returns are valid until the next call.
type Encoder interface {
	// Observe reads what the chunks before the first event need of it.
	Observe(ev api.Event)
	// Open returns the chunks before those of the first event.
	Open() [][]byte
	// Encode returns the chunks of an event, which must not have a Failure. There may be none.
	Encode(ev api.Event) [][]byte
}

// Failer is an Encoder whose streams end with chunks of their own after an error, in place of that of Codec.ErrorInStream.
type Failer interface {
	// Fail returns the chunks of an error, at least one.
	Fail(e *api.Error) [][]byte
}

// ErrorChunks returns the chunks that end a stream with an error.
func (c *Codec) ErrorChunks(enc Encoder, e *api.Error) [][]byte {
	if f, ok := enc.(Failer); ok {
		return f.Fail(e)
	}
	return [][]byte{c.ErrorInStream(e)}
}

// Frames is how the chunks of a stream follow each other over HTTP.
type Frames int

// The values of Frames.
const (
	Events      Frames = iota // server-sent events; [DONE] is the last one
	NamedEvents               // server-sent events with the "type" of each chunk as their name
	Lines                     // a line for each chunk
)
