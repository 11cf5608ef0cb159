package call

import (
	"context"

	"github.com/millrace/millrace/api"
)

// Runner runs calls. The interfaces know this one type: whether an answer outlives its
// connection is decided where the process is wired.
type Runner interface {
	// Run starts a call and returns a reader of its answer. Errors are *api.Error.
	Run(ctx context.Context, c *Call) (Answer, error)
	// Attach returns a reader of the answer to a resumable call that the caller of ctx has
	// started, at this gateway or another one. Errors are *api.Error: 404 for an unknown
	// call, 410 for one whose beginning has expired.
	Attach(ctx context.Context, id string) (Answer, error)
	// Cancel ends a resumable call, wherever it runs. A call that has ended stays as it is.
	Cancel(ctx context.Context, id string) error
}

// Answer reads the answer to a call from its first event.
type Answer interface {
	// Call returns the call as it was started.
	Call() *Call
	// Resumable reports whether a client can come back to the answer by the call's ID.
	Resumable() bool
	// Events returns the events from the first one. The channel closes after Done, or early
	// when ctx ends.
	Events(ctx context.Context) <-chan api.Event
	// Cancel ends the call and waits until it has ended or ctx ends.
	Cancel(ctx context.Context) error
	// Close releases the reader. It must be called. A call that is not resumable ends with it.
	Close()
}

// Direct runs calls at an engine. A call ends with its connection, and nobody can come back
// to its answer.
type Direct struct{ engine api.Engine }

// NewDirect returns a runner for the calls of an engine.
func NewDirect(engine api.Engine) *Direct { return &Direct{engine} }

// Engine returns the engine that computes the answers.
func (d *Direct) Engine() api.Engine { return d.engine }

// Run implements Runner.
func (d *Direct) Run(ctx context.Context, c *Call) (Answer, error) {
	if c.Resume == ResumeYes {
		return nil, api.Invalid("stream_resume", `stream_resume: not available on this server (--stream-resume, JetStream), expected false or "auto"`)
	}
	for _, r := range c.Requests {
		r.Buffered = !c.Stream // and no log keeps the events
	}
	ctx, cancel := context.WithCancel(ctx)
	events, err := d.Continue(ctx, c, c.Progress(nil), 0)
	if err != nil {
		cancel()
		return nil, err
	}
	return &direct{call: c, events: events, cancel: cancel}, nil
}

// Attach implements Runner: there is nothing to come back to.
func (d *Direct) Attach(context.Context, string) (Answer, error) { return nil, errNotKept() }

// Cancel implements Runner, as Attach.
func (d *Direct) Cancel(context.Context, string) error { return errNotKept() }

func errNotKept() error {
	return &api.Error{Code: api.CodeNotFound, Reason: "stream_not_found",
		Message: "streams cannot be resumed on this server (--stream-resume, JetStream)"}
}

// direct is the answer to a call that nothing keeps. It has one reader.
type direct struct {
	call   *Call
	events <-chan api.Event
	cancel context.CancelFunc
}

func (a *direct) Call() *Call { return a.call }

func (a *direct) Resumable() bool { return false }

// Events implements Answer. The context of Run bounds it: there is one reader.
func (a *direct) Events(context.Context) <-chan api.Event { return a.events }

func (a *direct) Cancel(context.Context) error {
	a.Close()
	return nil
}

func (a *direct) Close() { a.cancel() }
