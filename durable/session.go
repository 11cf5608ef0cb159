package durable

import (
	"context"
	"errors"
	"math"
	"sync"
	"time"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/call"
)

// session is one call in this process. Its goroutine either leads (it runs the
// call and writes the log) or follows (it reads the log that another gateway
// writes), and goes from the one to the other:
//
//	follow -> lead    the owner is dead, and our ownership is in the log
//	lead -> follow    another ownership is in the log
//
// Readers see the same buffer in both cases.
type session struct {
	c      *Calls
	tenant string
	id     string
	name   string      // in the table of sessions: logName of the two
	caller api.Caller  // the first that requested the call here; nil without keys
	buffer *api.Buffer // the events that readers may see
	ctx    context.Context
	stop   context.CancelFunc
	wake   chan struct{} // holds a value when the fields below have changed

	opened chan struct{} // closed when the next four are set
	log    string        // name of the log; not the session's where a version before has written it
	record *callRecord
	call   *call.Call
	failed error // why there is no answer to read

	state       state         // of the session's goroutine
	token       uint64        // of our own ownership
	lastContact time.Time     // when the log or its owner was last there, while we follow
	reserved    int64         // bytes that our log may take without asking
	logClosed   bool          // we lead, and the answer continues without a log
	detached    chan struct{} // closed with it

	mu         sync.Mutex
	leading    bool
	readers    int
	lastReader time.Time // the last sign of a reader that is gone, or at another gateway
	cancelled  bool
	draining   bool // the process hands its calls over
	recheckLog bool // the log may be lost, and we lead
	recheckGap bool // somebody has read the log, and found records missing
}

// Why a session's goroutine changes what it does.
var (
	errOwnerDead = errors.New("resume: the owner is gone")
	errRestart   = errors.New("resume: the log is another one")
	errNoReaders = errors.New("resume: no reader is left")
	errDraining  = errors.New("resume: the process is stopping")
)

var errCancelled = &api.Error{Code: api.CodeUnavailable, Reason: "cancelled", Message: "cancelled by the client"}

// newSession returns a session for a call of the tenant that the caller belongs to.
func newSession(c *Calls, tenant, id string, caller api.Caller) *session {
	name := logName(tenant, id)
	s := &session{c: c, tenant: tenant, id: id, name: name, log: name, caller: caller, buffer: api.NewBuffer(), wake: make(chan struct{}, 1),
		opened: make(chan struct{}), detached: make(chan struct{}), token: newToken()}
	s.ctx, s.stop = context.WithCancel(c.ctx)
	c.metrics.sessions.Inc()
	return s
}

// run leads and follows until the answer has ended or nobody wants it.
func (s *session) run(answer <-chan api.Event, stop context.CancelCauseFunc) {
	defer s.end()
	for {
		var err error
		if answer != nil {
			err = s.lead(answer, stop)
			answer = nil
			s.setLeading(false)
			if err != nil {
				s.freeReservation() // who takes the call over answers for its log
			}
			if errors.Is(err, errFenced) {
				s.c.metrics.fenced.Inc()
				s.c.opts.Logger.Warn().Str("id", s.id).Msg("resume: another gateway has taken the call over")
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
		if errors.Is(err, errGap) && !s.waitForRepair() {
			s.buffer.End(expired(s.id))
			return
		}
		if time.Since(s.lastContact) > s.c.opts.Outage {
			s.buffer.End(unavailable(err))
			return
		}
		const pause = 20 * time.Millisecond
		sleep(s.ctx, pause)
		s.resetState()
	}
}

// ownerGone is errOwnerDead where nobody listens at the owner of a log that was read to its
// end: then it need not be followed first.
func (s *session) ownerGone() error {
	if s.state.last == 0 {
		return nil
	}
	owns, err := s.c.peers.owns(s.ctx, s.state.owner, s.query())
	if err == nil && !owns {
		return errOwnerDead
	}
	return nil
}

// ended handles what ends a session without an end of the answer.
func (s *session) ended(err error) bool {
	var said *api.Error
	switch {
	case errors.Is(err, errNoReaders):
		return true
	case errors.Is(err, errDraining), s.ctx.Err() != nil:
		s.buffer.End(errStopping(s.id))
		return true
	case errors.Is(err, errReplaced), errors.Is(err, errNotOurs):
		s.buffer.End(expired(s.id))
		return true
	case errors.Is(err, errOutgrown):
		s.buffer.End(outgrown(s.id))
		return true
	case errors.As(err, &said):
		s.buffer.End(said)
		return true
	}
	return false
}

// never is a stream sequence that no record has.
const unknownSeq = math.MaxUint64

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

// watched: another gateway has a reader of the call, or wants it ended.
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

// moved: the process is stopping, and another one is there.
func (s *session) drain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.draining = true
	s.notify()
}

func (s *session) notify() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// reason is why the call is to end, if it is.
func (s *session) endReason() *api.Error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.cancelled:
		return errCancelled
	case s.readers == 0 && time.Since(s.lastReader) > s.c.opts.Window:
		return &api.Error{Code: api.CodeUnavailable, Reason: "cancelled",
			Message: "cancelled: nobody came back for the answer within " + s.c.opts.Window.String()}
	}
	return nil
}

// logs says whether the call has this log.
func (s *session) usesLog(log string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.log == log
}

func (s *session) isDraining() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.draining
}

// unread takes a session without readers out of the table, so that nobody can
// come to it any more; false when somebody is there.
func (s *session) removeIfUnread() bool {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.readers > 0 {
		return false
	}
	delete(s.c.sessions, s.name)
	return true
}
