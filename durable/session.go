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
	shown  *api.Buffer // the events that readers may see
	ctx    context.Context
	stop   context.CancelFunc
	poke   chan struct{} // holds a value when the fields below have changed

	opened chan struct{} // closed when the next four are set
	log    string        // name of the log; not the session's where a version before has written it
	record *callRecord
	call   *call.Call
	failed error // why there is no answer to read

	state  state         // of the session's goroutine
	token  uint64        // of our own ownership
	heard  time.Time     // when the log or its owner was last there, while we follow
	room   int64         // bytes that our log may take without asking
	closed bool          // we lead, and the answer continues without a log
	apart  chan struct{} // closed with it

	mu        sync.Mutex
	leading   bool
	readers   int
	seen      time.Time // the last sign of a reader that is gone, or at another gateway
	cancelled bool
	leaving   bool // the process hands its calls over
	doubted   bool // the log may be lost, and we lead
	holed     bool // somebody has read the log, and found records missing
}

// Why a session's goroutine changes what it does.
var (
	errOwnerDead = errors.New("resume: the owner is gone")
	errRestart   = errors.New("resume: the log is another one")
	errUnread    = errors.New("resume: no reader is left")
	errLeaving   = errors.New("resume: the process is stopping")
)

var errCancelled = &api.Error{Code: api.CodeUnavailable, Reason: "cancelled", Message: "cancelled by the client"}

// newSession returns a session for a call of the tenant that the caller belongs to.
func newSession(c *Calls, tenant, id string, caller api.Caller) *session {
	name := logName(tenant, id)
	s := &session{c: c, tenant: tenant, id: id, name: name, log: name, caller: caller, shown: api.NewBuffer(), poke: make(chan struct{}, 1),
		opened: make(chan struct{}), apart: make(chan struct{}), token: newToken()}
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
				s.shrink() // who takes the call over answers for its log
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
		if errors.Is(err, errGap) && !s.mended() {
			s.shown.End(expired(s.id))
			return
		}
		if time.Since(s.heard) > s.c.opts.Outage {
			s.shown.End(unavailable(err))
			return
		}
		const pause = 20 * time.Millisecond
		sleep(s.ctx, pause)
		s.restart()
	}
}

// ownerGone is errOwnerDead where nobody listens at the owner of a log that was read to its
// end: then it need not be followed first.
func (s *session) ownerGone() error {
	if s.state.last == 0 {
		return nil
	}
	owns, err := s.c.peers.ask(s.ctx, s.state.owner, s.question())
	if err == nil && !owns {
		return errOwnerDead
	}
	return nil
}

// ended handles what ends a session without an end of the answer.
func (s *session) ended(err error) bool {
	var said *api.Error
	switch {
	case errors.Is(err, errUnread):
		return true
	case errors.Is(err, errLeaving), s.ctx.Err() != nil:
		s.shown.End(errStopping(s.id))
		return true
	case errors.Is(err, errReplaced), errors.Is(err, errNotOurs):
		s.shown.End(expired(s.id))
		return true
	case errors.Is(err, errOutgrown):
		s.shown.End(outgrown(s.id))
		return true
	case errors.As(err, &said):
		s.shown.End(said)
		return true
	}
	return false
}

// never is a stream sequence that no record has.
const never = math.MaxUint64

func (s *session) setLeading(leads bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leading = leads
	s.seen = time.Now()
	s.heard = s.seen
	if s.cancelled || s.leaving {
		s.changed()
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
		s.seen = time.Now()
		s.changed()
	}
}

// watched: another gateway has a reader of the call, or wants it ended.
func (s *session) watched(cancel bool) (leads bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen = time.Now()
	if cancel && s.leading {
		s.cancelled = true
		s.changed()
	}
	return s.leading
}

func (s *session) cancel() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cancelled = true
	s.changed()
}

// moved: the process is stopping, and another one is there.
func (s *session) moved() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leaving = true
	s.changed()
}

func (s *session) changed() {
	select {
	case s.poke <- struct{}{}:
	default:
	}
}

// reason is why the call is to end, if it is.
func (s *session) reason() *api.Error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.cancelled:
		return errCancelled
	case s.readers == 0 && time.Since(s.seen) > s.c.opts.Window:
		return &api.Error{Code: api.CodeUnavailable, Reason: "cancelled",
			Message: "cancelled: nobody came back for the answer within " + s.c.opts.Window.String()}
	}
	return nil
}

// logs says whether the call has this log.
func (s *session) logs(log string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.log == log
}

func (s *session) isLeaving() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.leaving
}

// unread takes a session without readers out of the table, so that nobody can
// come to it any more; false when somebody is there.
func (s *session) unread() bool {
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
