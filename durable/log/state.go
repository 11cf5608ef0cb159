package log

import (
	"errors"
	"time"

	"github.com/millrace/millrace/api"
)

// ErrGap means that the log lacks records. They were evicted or have expired.
var ErrGap = errors.New("durable: found a gap in the log")

// State is the content of a log, applied record by record. It has no clock and does no I/O.
type State struct {
	Tenant, ID string // of the call that the log must belong to

	Call      *CallRecord // nil until the log's first record was applied
	Log       ID          // of call
	Owner     string      // node that owns the call; "" if the last owner released it
	Token     uint64      // of that ownership
	Writer    uint64      // token of the newest record
	Begin     uint64      // stream sequence of the call record
	Last      uint64      // stream sequence of the newest record
	Bytes     int64       // size of the log from begin on
	Created   time.Time   // creation of the stream that has these sequences; zero if this process wrote the log
	Takeovers int         // number of takeovers
	Known     uint64      // sequence number of the newest event; events count from 1
	copied    uint64      // the newest event that the log has since begin
	Gap       bool        // events after known are missing, until the log is rewritten
	Done      bool
}

// Apply applies the next entry and returns the new events. A call record in the middle begins a
// rewritten log (see Log.rewrite), which repeats known events. Events of a writer that does not
// own the call are ignored. The error is ErrNotOurs, ErrReplaced or ErrOutgrown if the log does not
// have this call.
func (s *State) Apply(e Entry) ([]api.Event, error) {
	s.Last = e.last
	r := e.Record
	if r == nil {
		return nil, nil
	}
	s.Writer = r.Token
	s.Bytes += e.bytes
	switch {
	case s.Call != nil && r.Log != s.Log:
		return nil, ErrReplaced
	case r.Call != nil:
		return nil, s.start(r, e)
	case r.Closed:
		return nil, ErrOutgrown
	case s.Call == nil:
		return nil, nil // the beginning is missing: skip records until the log is rewritten
	case r.Owner != nil:
		s.Owner, s.Token = *r.Owner, r.Token
		s.Takeovers++
		return nil, nil
	case r.Token != s.Token:
		return nil, nil
	}
	return s.events(r.Events), nil
}

// start applies a call record.
func (s *State) start(r *Record, e Entry) error {
	if !r.Call.belongs(s.Tenant, s.ID) {
		return ErrNotOurs
	}
	s.Call, s.Log, s.Owner, s.Token = r.Call, r.Log, r.Call.Owner, r.Token
	s.Begin, s.Bytes, s.copied, s.Gap = e.first, e.bytes, 0, false
	return nil
}

// events returns the events that are new, up to a gap.
func (s *State) events(events []api.Event) (added []api.Event) {
	for i, ev := range events {
		if ev.Seq == s.copied+1 {
			s.copied++
		}
		switch {
		case s.Gap || ev.Seq <= s.Known:
		case ev.Seq != s.Known+1 || s.Done:
			s.Gap = true
		default:
			s.Known, s.Done = ev.Seq, ev.Done
			added = append(added, events[i])
		}
	}
	return added
}

// whole returns nil if the log was read from its beginning without a gap.
func (s *State) whole() error {
	if s.Call == nil || s.Gap {
		return ErrGap
	}
	return nil
}
