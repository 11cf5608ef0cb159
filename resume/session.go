package resume

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/openai/wire"
	"github.com/millrace/millrace/auth"
	"github.com/millrace/millrace/tracing"
)

// session is one call in this process. Its goroutine either leads (it runs the
// call and writes the log) or follows (it reads the log that another gateway
// writes), and goes from the one to the other:
//
//	follow -> lead    the owner is dead, and our ownership is in the log
//	lead -> follow    another ownership is in the log
//
// Readers see the tape in both cases.
type session struct {
	c    *Calls
	id   string
	tape *tape
	ctx  context.Context
	stop context.CancelFunc
	poke chan struct{} // holds a value when the fields below have changed

	opened chan struct{} // closed when the next three are set
	record *callRecord
	call   *wire.Call
	failed error // why there is no answer to read

	state state     // of the session's goroutine
	token uint64    // of our own ownership
	heard time.Time // when the log or its owner was last there, while we follow

	mu        sync.Mutex
	leading   bool
	readers   int
	seen      time.Time // the last sign of a reader that is gone, or at another gateway
	cancelled bool
	leaving   bool // the process hands its calls over
	doubted   bool // the log may be lost, and we lead
}

// Why a session's goroutine changes what it does.
var (
	errOwnerDead = errors.New("resume: the owner is gone")
	errRestart   = errors.New("resume: the log is another one")
	errUnread    = errors.New("resume: no reader is left")
	errLeaving   = errors.New("resume: the process is stopping")
)

var errCancelled = &api.Error{Code: api.CodeUnavailable, Reason: "cancelled", Message: "cancelled by the client"}

// newSession is for a call that the bearer of key asks for: in its name, and within
// its limits, the call runs here.
func newSession(c *Calls, id string, key *auth.Key) *session {
	s := &session{c: c, id: id, tape: newTape(), poke: make(chan struct{}, 1), opened: make(chan struct{}), token: rand.Uint64()}
	ctx := c.ctx
	if key != nil {
		ctx = auth.WithKey(ctx, key)
	}
	s.ctx, s.stop = context.WithCancel(ctx)
	c.metrics.sessions.Inc()
	return s
}

// begin makes s the session of a new call, or of the one that has its id already.
func (s *session) begin(ctx context.Context, rec *callRecord, call *wire.Call) {
	rec.owner = s.c.node
	s.setLeading(true)
	st, events, err := s.create(ctx, rec)
	switch {
	case err != nil:
		s.fail(unavailable(err))
		return
	case st.token != s.token:
		s.setLeading(false)
		s.adopt(st, events)
		return
	}
	s.state, s.record, s.call = *st, rec, call
	run, stop := context.WithCancelCause(tracing.With(s.ctx, rec.trace))
	answer, err := call.RunFrom(run, s.c.engine, call.Progress(nil), 0)
	if err != nil {
		stop(nil)
		s.erase()
		s.fail(err)
		return
	}
	s.open()
	s.c.running.Go(func() { s.run(answer, stop) })
}

// create writes the call's record, or returns the state of the log that is there. While JetStream
// is away, for an election it may be, a new call waits as those that run do.
func (s *session) create(ctx context.Context, rec *callRecord) (*state, []api.Event, error) {
	const attempts = 3 // where the log that is there cannot be read
	for begin, try := time.Now(), 1; ; try++ {
		first, last, err := s.c.journal.publish(ctx, s.id, &record{token: s.token, call: rec}, 0)
		if err == nil {
			return &state{call: rec, owner: s.c.node, token: s.token, begin: first, last: last}, nil, nil
		}
		if errors.Is(err, errFenced) {
			st, events, loaded := s.c.journal.load(ctx, s.id)
			if loaded == nil {
				return st, events, nil
			}
			err = loaded
		} else if ensured := s.c.journal.ensure(ctx); ensured != nil {
			err = ensured
		}
		switch {
		case s.isLeaving():
			return nil, nil, errStopping(s.id)
		case errors.Is(err, errAway) && waits(ctx, begin, s.c.opts.Rejoin):
		case !errors.Is(err, errAway) && try < attempts:
		default:
			return nil, nil, err
		}
	}
}

// find makes s a session of a call that has a log, or of one that another gateway has
// in its memory and whose log was lost: that one writes it again. Right after such a loss
// the gateway may not be there yet.
func (s *session) find() {
	for begin := time.Now(); ; {
		st, events, err := s.c.journal.load(s.ctx, s.id)
		if err == nil {
			s.adopt(st, events)
			return
		}
		passes := errors.Is(err, errAway) ||
			errors.Is(err, errNoLog) && (s.c.peers.have(s.ctx, s.id) || s.c.journal.young(s.ctx))
		switch {
		case s.isLeaving():
			s.fail(errStopping(s.id))
		case passes && waits(s.ctx, begin, s.c.opts.Rejoin):
			continue
		case errors.Is(err, errNoLog):
			s.fail(s.c.notFound(s.id))
		case errors.Is(err, errGap):
			s.fail(expired(s.id))
		default:
			s.fail(unavailable(err))
		}
		return
	}
}

// adopt follows a log from where it was read to.
func (s *session) adopt(st *state, events []api.Event) {
	call, err := s.decode(st.call)
	if err != nil {
		s.fail(err)
		return
	}
	s.state, s.record, s.call = *st, st.call, call
	s.tape.add(events)
	s.heard = time.Now()
	s.open()
	if st.done {
		s.end()
		return
	}
	s.c.running.Go(func() { s.run(nil, nil) })
}

// decode decodes the call again: this gateway's model of that name may be loading.
func (s *session) decode(r *callRecord) (*wire.Call, error) {
	var served []api.Model
	for _, m := range s.c.engine.Models() {
		if m.ID == r.model {
			served = append(served, m)
		}
	}
	return wire.DecodeAgain(r.kind, r.id, r.body, served, r.arrival)
}

func (s *session) open() { close(s.opened) }

// fail ends a session that never had an answer.
func (s *session) fail(err error) {
	s.failed = err
	s.open()
	s.end()
}

// end leaves the session to the readers that it has.
func (s *session) end() {
	s.stop()
	s.c.forget(s)
	s.c.metrics.sessions.Dec()
}

// erase forgets that the call was there, so that it can be sent again.
func (s *session) erase() {
	if err := s.c.journal.purge(s.c.ctx, s.id, 0); err != nil {
		s.c.opts.Logger.Warn().Err(err).Str("id", s.id).Msg("resume: the log of a refused call stays")
	}
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
		if time.Since(s.heard) > s.c.opts.Outage {
			s.tape.end(unavailable(err))
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
	owns, err := s.c.peers.ask(s.ctx, s.state.owner, question{ID: s.id, Cancel: s.isCancelled()})
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
		s.tape.end(errStopping(s.id))
		return true
	case errors.As(err, &said):
		s.tape.end(said)
		return true
	}
	return false
}

// restart reads the log from its beginning again; what is known stays known.
func (s *session) restart() {
	s.state = state{call: s.record, owner: s.state.owner, token: s.state.token, taken: s.state.taken,
		known: uint64(len(s.tape.all()))}
}

func newToken() uint64 { return rand.Uint64() }

// takeOver writes our ownership into the log, or the whole log if that is lost,
// and goes on with the call behind what its readers have.
func (s *session) takeOver() (<-chan api.Event, context.CancelCauseFunc, error) {
	s.token = newToken()
	newest, made, err := s.c.journal.newestOf(s.ctx, s.id)
	if err != nil {
		return nil, nil, err
	}
	switch {
	case newest == 0:
		err = s.rewrite(0)
	case !made.Equal(s.state.made):
		err = errRestart
	default:
		node := s.c.node
		_, s.state.last, err = s.c.journal.publish(s.ctx, s.id, &record{token: s.token, owner: &node}, s.state.last)
	}
	if err != nil {
		return nil, nil, err
	}
	s.state.owner, s.state.token = s.c.node, s.token
	s.state.taken++
	s.setLeading(true)
	s.c.metrics.takeovers.Inc()
	s.c.opts.Logger.Info().Str("id", s.id).Uint64("events", s.state.known).Msg("resume: call taken over")
	return s.resubmit()
}

// resubmit runs the call from where it stopped. A refusal (no room, a model that
// loads) is not the client's: it is tried again for a while.
func (s *session) resubmit() (<-chan api.Event, context.CancelCauseFunc, error) {
	begin := time.Now()
	for {
		run, stop := context.WithCancelCause(tracing.With(s.ctx, s.record.trace))
		call, err := s.decode(s.record)
		if err == nil {
			var answer <-chan api.Event
			if answer, err = call.RunFrom(run, s.c.engine, call.Progress(s.tape.all()), s.state.taken); err == nil {
				return answer, stop, nil
			}
		}
		stop(nil)
		if again(err) && s.reason() == nil && waits(s.ctx, begin, s.c.opts.Outage) {
			continue
		}
		answer := make(chan api.Event, 1)
		answer <- api.Event{Seq: s.state.known + 1, Finish: api.FinishError, Err: wire.AsError(err), Done: true}
		return answer, func(error) {}, nil
	}
}

// again says whether a refusal passes by waiting.
func again(err error) bool {
	e := wire.AsError(err)
	return e.Code == api.CodeOverloaded || e.Code == api.CodeUnavailable
}

// waits a little before another try; false when the tries since begin have taken so long, or ctx ended.
func waits(ctx context.Context, begin time.Time, most time.Duration) bool {
	const pause = 100 * time.Millisecond
	return time.Since(begin) < most && sleep(ctx, pause)
}

// sleep waits; false when ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
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

func (s *session) isLeaving() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.leaving
}

func (s *session) isCancelled() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cancelled
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
	delete(s.c.sessions, s.id)
	return true
}
