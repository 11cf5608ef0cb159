package call

import (
	"context"

	"github.com/millrace/millrace/api"
)

// Runner runs calls. The interfaces know only this type. The main package chooses an implementation,
// and so whether an answer outlives its connection.
type Runner interface {
	// Run starts a call and returns a reader of its answer. An error is an *api.Error.
	Run(ctx context.Context, c *Call) (Answer, error)
	// Attach returns a reader of the answer to a resumable call of the same caller, which any
	// gateway may have started. An error is an *api.Error: 404 for an unknown call, 410 if the
	// beginning of the answer has expired.
	Attach(ctx context.Context, id string) (Answer, error)
	// Cancel ends a resumable call at whichever gateway runs it. It does nothing if the call has ended.
	Cancel(ctx context.Context, id string) error
}

// Answer reads the answer to a call from its first event.
type Answer interface {
	// Call returns the call.
	Call() *Call
	// Resumable reports whether a client can reconnect to the answer with the call's ID.
	Resumable() bool
	// Events returns all events, from the first one to Done, or until ctx ends.
	Events(ctx context.Context) EventStream
	// Cancel ends the call and waits until it has ended or ctx ends.
	Cancel(ctx context.Context) error
	// Close releases the reader, and must be called. It cancels a call that is not resumable.
	Close()
}

// Bodied is an Answer to a client that does not wait for the end of its call.
type Bodied interface {
	// Body returns the answer of a call that does not stream.
	Body() []byte
}

// Direct runs calls at an engine. A call ends with its connection, and a client cannot reconnect to
// its answer.
type Direct struct{ engine api.Engine }

// NewDirect returns a runner for the calls of an engine.
func NewDirect(engine api.Engine) *Direct { return &Direct{engine} }

// Engine returns the engine that computes the answers.
func (d *Direct) Engine() api.Engine { return d.engine }

// Run implements Runner.
func (d *Direct) Run(ctx context.Context, c *Call) (Answer, error) {
	if c.Resume == ResumeYes {
		return nil,
			api.Invalid("stream_resume",
				`stream_resume: found true on a server without --stream-resume and JetStream, expected false or "auto"`)
	}
	for _, r := range c.Requests {
		r.Buffered = !c.Stream // the reader is the only one, since no log keeps the events
	}
	ctx, cancel := context.WithCancel(ctx)
	events, err := d.Continue(ctx, c, c.Progress(nil), 0)
	if err != nil {
		cancel()
		return nil, err
	}
	return &direct{call: c, events: events, cancel: cancel}, nil
}

// Attach implements Runner. It fails, because no answer is kept.
func (d *Direct) Attach(context.Context, string) (Answer, error) { return nil, errNotKept() }

// Cancel implements Runner. It fails as Attach does.
func (d *Direct) Cancel(context.Context, string) error { return errNotKept() }

func errNotKept() error {
	return &api.Error{Code: api.CodeNotFound, Reason: "stream_not_found",
		Message: "streams cannot be resumed on this server (--stream-resume, JetStream)"}
}

// direct is an answer with one reader.
type direct struct {
	call   *Call
	events EventStream
	cancel context.CancelFunc
}

func (a *direct) Call() *Call { return a.call }

func (a *direct) Resumable() bool { return false }

// Events implements Answer. The context of Run bounds the events too, so the one here is not used.
func (a *direct) Events(context.Context) EventStream { return a.events }

func (a *direct) Cancel(context.Context) error {
	a.Close()
	return nil
}

func (a *direct) Close() { a.cancel() }
