package resume

import (
	"errors"
	"fmt"
	"time"

	"github.com/millrace/millrace/api"
)

// errGap: the log lacks events, which only happens when its beginning expired.
var errGap = errors.New("resume: the log lacks events")

// state is what a log says, record by record. It has no clock and does no I/O.
type state struct {
	call  *callRecord // nil: the log's beginning was not seen
	owner string      // node that owns the call; "" when it gave it up
	token uint64      // of that ownership
	begin uint64      // stream sequence of the call record
	last  uint64      // of the newest record
	made  time.Time   // when the stream was that has these sequences; zero in a state of our own writing
	taken int         // how often the call was taken over
	known uint64      // events, from 1 on
	done  bool
}

// apply takes the next entry and returns the events that are new. A call record in the middle begins the log anew, with
// events that are known already (see session.rewrite). Events of a writer that
// does not own the call (any more) count for nothing.
func (s *state) apply(e entry) ([]api.Event, error) {
	s.last = e.last
	switch r := e.record; {
	case r == nil:
		return nil, nil
	case r.call != nil:
		s.call, s.owner, s.token, s.begin = r.call, r.call.owner, r.token, e.first
		return nil, nil
	case s.call == nil:
		return nil, nil // the end of a log whose beginning expired, until it begins anew
	case r.owner != nil:
		s.owner, s.token = *r.owner, r.token
		s.taken++
		return nil, nil
	case r.token != s.token:
		return nil, nil
	default:
		return s.events(r.events)
	}
}

// events passes on what is not known yet.
func (s *state) events(events []api.Event) ([]api.Event, error) {
	for i, ev := range events {
		if ev.Seq <= s.known {
			continue
		}
		if ev.Seq != s.known+1 || s.done {
			return nil, fmt.Errorf("%w: event %d after %d", errGap, ev.Seq, s.known)
		}
		for _, ev := range events[i:] {
			if ev.Seq != s.known+1 || s.done {
				return nil, fmt.Errorf("%w: event %d after %d", errGap, ev.Seq, s.known)
			}
			s.known, s.done = ev.Seq, ev.Done
		}
		return events[i:], nil
	}
	return nil, nil
}
