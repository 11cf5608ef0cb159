package calls

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/call"
	"github.com/millrace/millrace/durable"
	"github.com/millrace/millrace/durable/log"
)

// session is one call in this process. Its goroutine either leads (it runs the call and writes the log)
// or follows (it reads the log that another gateway writes). It changes between the two:
//
//	follow -> lead    the owner is dead, and the log has this gateway's ownership
//	lead -> follow    the log has another gateway's ownership
//
// Readers read the same event buffer in both cases.
type session struct {
	c      *Calls
	tenant string
	id     string
	log    *log.Log    // its name is the key in Calls.sessions
	caller api.Caller  // of the first request for the call here; nil without API keys
	buffer *api.Buffer // events that readers may read
	ctx    context.Context
	stop   context.CancelFunc
	wake   chan struct{} // has a value if a field under mu has changed

	opened chan struct{} // closed when the next two are set
	call   *call.Call
	failed error // why there is no answer

	lastContact time.Time     // while following: last sign of the log or of its owner. It and the log belong to the session's goroutine
	detached    chan struct{} // closed when the answer continues without a log

	mu         sync.Mutex
	leading    bool
	readers    int
	lastReader time.Time // last sign of a reader that is gone or at another gateway
	cancelled  bool
	draining   bool // the process hands over its calls
	recheckLog bool // the log may be lost
	recheckGap bool // another gateway found records missing
}

// Why a session stops leading or following.
var (
	errOwnerDead = errors.New("durable: the owner of the call is dead")
	errNoReaders = errors.New("durable: the call has no reader")
	errDraining  = errors.New("durable: the process is stopping")
)

var errCancelled = &api.Error{Code: api.CodeUnavailable, Reason: "cancelled", Message: "cancelled by the client"}

// newSession returns a session for a call of the caller's tenant.
func newSession(c *Calls, tenant, id string, caller api.Caller) *session {
	buffer := api.NewBuffer()
	s := &session{c: c, tenant: tenant, id: id, log: c.logs.Log(tenant, id, buffer), caller: caller, buffer: buffer,
		wake: make(chan struct{}, 1), opened: make(chan struct{}), detached: make(chan struct{})}
	s.ctx, s.stop = context.WithCancel(c.ctx)
	c.metrics.sessions.Inc()
	return s
}

// run leads and follows until the answer has ended or nobody reads it.
func (s *session) run(answer call.EventStream, stop context.CancelCauseFunc) {
	defer s.end()
	for {
		var err error
		if answer != nil {
			err = s.lead(answer, stop)
			answer = nil
			s.setLeading(false)
			if err != nil {
				s.log.Free() // the gateway that takes over counts the log
			}
			if errors.Is(err, log.ErrFenced) {
				s.c.metrics.fenced.Inc()
				s.c.opts.Logger.Warn().Str("id", s.id).Msg("durable: another gateway has taken the call over")
			}
		} else {
			if err = s.ownerGone(); err == nil {
				err = s.follow()
			}
			if errors.Is(err, errOwnerDead) {
				if answer, stop, err = s.takeOver(); err == nil {
					continue
				}
			}
		}
		if err == nil || s.ended(err) {
			return
		}
		if errors.Is(err, log.ErrGap) && !s.waitForRepair() {
			s.buffer.End(expired(s.id))
			return
		}
		if time.Since(s.lastContact) > s.c.opts.Outage {
			s.buffer.End(log.Unavailable(err))
			return
		}
		const pause = 20 * time.Millisecond
		durable.Pause(s.ctx, pause, nil)
		s.log.Reset()
	}
}

// ownerGone returns errOwnerDead if the log was read to its end and its owner does not run the call.
// Then the session can take the call over without following the log first.
func (s *session) ownerGone() error {
	if s.log.Last == 0 {
		return nil
	}
	owns, err := s.c.peers.owns(s.ctx, s.log.Owner, s.query())
	if err == nil && !owns {
		return errOwnerDead
	}
	return nil
}

// ended reports whether err ends the session without an end of its answer. If so, it ends the event
// buffer with the error for the readers.
func (s *session) ended(err error) bool {
	var refused *api.Error
	switch {
	case errors.Is(err, errNoReaders):
		return true
	case errors.Is(err, errDraining), s.ctx.Err() != nil:
		s.buffer.End(errStopping(s.id))
		return true
	case errors.Is(err, log.ErrReplaced), errors.Is(err, log.ErrNotOurs):
		s.buffer.End(expired(s.id))
		return true
	case errors.Is(err, log.ErrOutgrown):
		s.buffer.End(outgrown(s.id))
		return true
	case errors.As(err, &refused):
		s.buffer.End(refused)
		return true
	}
	return false
}

func (s *session) setLeading(leads bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leading = leads
	s.lastReader = time.Now()
	s.lastContact = s.lastReader
	if s.cancelled || s.draining {
		s.notify()
	}
}

func (s *session) attach() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.readers++
}

func (s *session) detach() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.readers--; s.readers == 0 {
		s.lastReader = time.Now()
		s.notify()
	}
}

// readerElsewhere notes that another gateway has a reader of the call, which may cancel it. It reports
// whether this gateway leads the call.
func (s *session) readerElsewhere(cancel bool) (leads bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lastReader = time.Now()
	if cancel && s.leading {
		s.cancelled = true
		s.notify()
	}
	return s.leading
}

func (s *session) cancel() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cancelled = true
	s.notify()
}

// drain hands the call over, because the process is stopping and another gateway is running.
func (s *session) drain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.draining = true
	s.notify()
}

// notify wakes the session's goroutine.
func (s *session) notify() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// endReason returns why the call has to end, or nil.
func (s *session) endReason() *api.Error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.cancelled:
		return errCancelled
	case s.readers == 0 && time.Since(s.lastReader) > s.c.opts.Window:
		return &api.Error{Code: api.CodeUnavailable, Reason: "cancelled",
			Message: "cancelled: the answer had no reader for " + s.c.opts.Window.String()}
	}
	return nil
}

func (s *session) isDraining() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.draining
}

// removeIfUnread removes a session without readers from the table, so that it gets no new ones. It
// returns false if the session has readers.
func (s *session) removeIfUnread() bool {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.readers > 0 {
		return false
	}
	delete(s.c.sessions, s.log.Name())
	return true
}
