package durable

import (
	"errors"
	"time"

	"github.com/millrace/millrace/api"
)

// errGap: the log lacks records. They were evicted or have expired.
var errGap = errors.New("resume: the log lacks records")

// state is what a log says, record by record. It has no clock and does no I/O.
type state struct {
	tenant, id string // of the call whose log this is to be

	call      *callRecord // nil: the log's beginning was not seen
	log       logID       // of call
	owner     string      // node that owns the call; "" when it gave it up
	token     uint64      // of that ownership
	writer    uint64      // token of the newest record
	begin     uint64      // stream sequence of the call record
	last      uint64      // stream sequence of the newest record
	bytes     int64       // that the log takes, from begin on
	created   time.Time   // creation of the stream that has these sequences; zero in a state of our own writing
	takeovers int         // how often the call was taken over
	known     uint64      // events, from 1 on
	copied    uint64      // of them, those since begin
	gap       bool        // events after known are missing, until the log begins anew
	done      bool
}

// apply takes the next entry and returns the events that are new. A call record in the
// middle begins the log anew, with events that are known already (see session.rewrite).
// Events of a writer that does not own the call (any more) count for nothing. An error
// says that the records are not this call's: errNotOurs, errReplaced, errOutgrown.
func (s *state) apply(e entry) ([]api.Event, error) {
	s.last = e.last
	r := e.record
	if r == nil {
		return nil, nil
	}
	s.writer = r.token
	s.bytes += e.bytes
	switch {
	case s.call != nil && r.log != s.log:
		return nil, errReplaced
	case r.call != nil:
		return nil, s.start(r, e)
	case r.closed:
		return nil, errOutgrown
	case s.call == nil:
		return nil, nil // the end of a log whose beginning is missing, until it begins anew
	case r.owner != nil:
		s.owner, s.token = *r.owner, r.token
		s.takeovers++
		return nil, nil
	case r.token != s.token:
		return nil, nil
	}
	return s.events(r.events), nil
}

// start applies a call record.
func (s *state) start(r *record, e entry) error {
	if !r.call.belongs(s.tenant, s.id) {
		return errNotOurs
	}
	if s.call != nil && !s.call.same(r.call) {
		return errReplaced
	}
	s.call, s.log, s.owner, s.token = r.call, r.log, r.call.owner, r.token
	s.begin, s.bytes, s.copied, s.gap = e.first, e.bytes, 0, false
	return nil
}

// events passes on what is not known yet, up to a gap.
func (s *state) events(events []api.Event) (added []api.Event) {
	for i, ev := range events {
		if ev.Seq == s.copied+1 {
			s.copied++
		}
		switch {
		case s.gap || ev.Seq <= s.known:
		case ev.Seq != s.known+1 || s.done:
			s.gap = true
		default:
			s.known, s.done = ev.Seq, ev.Done
			added = append(added, events[i])
		}
	}
	return added
}

// whole is nil where the log was read from its beginning without a gap.
func (s *state) whole() error {
	if s.call == nil || s.gap {
		return errGap
	}
	return nil
}
