package calls

import (
	"errors"
	"time"

	"github.com/millrace/millrace/api"
)

// errGap means that the log lacks records. They were evicted or have expired.
var errGap = errors.New("durable: found a gap in the log")

// state is the content of a log, applied record by record. It has no clock and does no I/O.
type state struct {
	tenant, id string // of the call that the log must belong to

	call      *callRecord // nil until the log's first record was applied
	log       logID       // of call
	owner     string      // node that owns the call; "" if the last owner released it
	token     uint64      // of that ownership
	writer    uint64      // token of the newest record
	begin     uint64      // stream sequence of the call record
	last      uint64      // stream sequence of the newest record
	bytes     int64       // size of the log from begin on
	created   time.Time   // creation of the stream that has these sequences; zero if this process wrote the log
	takeovers int         // number of takeovers
	known     uint64      // sequence number of the newest event; events count from 1
	copied    uint64      // the newest event that the log has since begin
	gap       bool        // events after known are missing, until the log is rewritten
	done      bool
}

// apply applies the next entry and returns the new events. A call record in the middle begins a
// rewritten log (see session.rewrite), which repeats known events. Events of a writer that does not
// own the call are ignored. The error is errNotOurs, errReplaced or errOutgrown if the log does not
// have this call.
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
		return nil, nil // the beginning is missing: skip records until the log is rewritten
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
	s.call, s.log, s.owner, s.token = r.call, r.log, r.call.owner, r.token
	s.begin, s.bytes, s.copied, s.gap = e.first, e.bytes, 0, false
	return nil
}

// events returns the events that are new, up to a gap.
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

// whole returns nil if the log was read from its beginning without a gap.
func (s *state) whole() error {
	if s.call == nil || s.gap {
		return errGap
	}
	return nil
}
