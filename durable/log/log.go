// Package log has the logs of calls.
//
// A log is one subject of a JetStream memory stream. Its first record is the call, the others are the
// call's events in order. A client gets an event only after its record is acknowledged. So the log has
// all events that any client has seen, and a process that takes a call over continues after them. Each
// record is written on the condition that the log ends with the record that the writer knows. A
// process that takes a call over writes its ownership into the log, and the next write of the previous
// owner fails. Quotas divide the stream among tenants.
//
// It must not know how a call runs, or when one is taken over.
package log

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/durable"
)

// ErrRestart means that the log is not the one that was read: it was lost, and perhaps written again.
var ErrRestart = errors.New("durable: found another log, expected the one that was read")

// BatchEvents is the largest number of events in a record.
const BatchEvents = 256

// unknownSeq is a stream sequence that no record has.
const unknownSeq = math.MaxUint64

// Log is the log of one call as a process knows it: what it has read or written, and its right to write. It is not safe for concurrent use,
// but for Name, Call and Load.
type Log struct {
	State // the records that were read or written

	store    *Store
	name     string
	call     *CallRecord // that begins the log; set before the others use it, and never changed
	shown    *api.Buffer // events that readers have seen, from which a lost log is written again
	token    uint64      // of this process's ownership
	reserved int64       // bytes reserved in the quota
	closed   bool        // the answer continues without a log
	first    []byte      // the encoded record that will begin a new log
}

// Log returns the log of a tenant's call, of which nothing is read or written yet. shown are the events that readers see: they are added
// after they are written, or when they are read.
func (s *Store) Log(tenant, id string, shown *api.Buffer) *Log {
	return &Log{store: s, name: Name(tenant, id), State: State{Tenant: tenant, ID: id}, shown: shown, token: rand.Uint64()}
}

// Name returns the name of the log.
func (l *Log) Name() string { return l.name }

// Call returns the record that begins the log. It is set by Prepare and Adopt.
func (l *Log) Call() *CallRecord { return l.call }

// Closed reports whether the answer has outgrown its tenant's quota and continues without a log.
func (l *Log) Closed() bool { return l.closed }

// Load reads the whole log and returns its events, without a change of l. The error is ErrNoLog if there is none, and ErrGap if records are
// missing; the State then has the others. ErrNotOurs, ErrReplaced and ErrOutgrown are those of State.Apply.
func (l *Log) Load(ctx context.Context) (*State, []api.Event, error) {
	st := &State{Tenant: l.Tenant, ID: l.ID}
	events, err := l.store.journal.load(ctx, l.name, st)
	return st, events, err
}

// Adopt continues at what Load has read.
func (l *Log) Adopt(st *State) { l.State, l.call = *st, st.Call }

// Reset prepares to read the log from its beginning. Events that were shown stay known.
func (l *Log) Reset() {
	l.State = State{Tenant: l.Tenant, ID: l.ID, Call: l.call, Log: l.Log, Owner: l.Owner, Token: l.Token,
		Takeovers: l.Takeovers, Known: uint64(l.shown.Len())}
}

// Tail returns a reader of the records after those that were read. The error is ErrNoLog without a stream of logs, and ErrRestart if it is
// another one.
func (l *Log) Tail(ctx context.Context) (*Tail, error) {
	from := uint64(0)
	if l.Last > 0 {
		from = l.Last + 1
	}
	t, err := l.store.journal.tail(ctx, from, l.name)
	if err != nil {
		return nil, err
	}
	if from > 0 && !t.created.Equal(l.Created) {
		t.Stop()
		return nil, ErrRestart
	}
	l.Created = t.created
	return t, nil
}

// Unchanged returns ErrRestart if a log without new records is not the one that was read. After a restart of the NATS server it is another
// log, which may be as long.
func (l *Log) Unchanged(ctx context.Context) error {
	newest, created, err := l.store.journal.newestOf(ctx, l.name)
	if err == nil && (newest != l.Last || !created.Equal(l.Created)) {
		return ErrRestart
	}
	return nil
}

// Prepare reserves space for a new log that begins with a call. It returns false if the tenant's quota is used up.
func (l *Log) Prepare(c *CallRecord) bool {
	l.call = c
	l.Log = NewID()
	l.first = (&Record{Log: l.Log, Token: l.token, Call: c}).encode()
	return l.reserve(l.store.journal.cost(len(l.first)))
}

// Create writes the first record of a prepared log. ErrFenced means that a log exists. While JetStream is unavailable, for example during
// an election, Create retries for up to wait, or until giveUp returns an error.
func (l *Log) Create(ctx context.Context, wait time.Duration, giveUp func() error) error {
	st := State{Tenant: l.Tenant, ID: l.ID, Call: l.call, Log: l.Log, Owner: l.store.opts.Node, Token: l.token,
		Bytes: l.store.journal.cost(len(l.first))}
	for begin := time.Now(); ; {
		var err error
		st.Begin, st.Last, err = l.store.journal.write(ctx, l.name, l.first, 0)
		if errors.Is(err, ErrFenced) && l.alreadyWritten(ctx, &st) {
			err = nil
		}
		if err == nil {
			l.State, l.first = st, nil
			return nil
		}
		if errors.Is(err, ErrFenced) || errors.Is(err, ErrFull) {
			return err
		}
		l.store.journal.ensure(ctx) //nolint:errcheck // the next try returns the error
		if err := giveUp(); err != nil {
			return err
		}
		if !RetryWait(ctx, begin, wait) {
			return err
		}
	}
}

// alreadyWritten reports whether the existing log is the one that Create has just begun with st, and
// only the acknowledgment was lost.
func (l *Log) alreadyWritten(ctx context.Context, st *State) bool {
	found, _, err := l.Load(ctx)
	if err != nil || found.Log != st.Log || found.Token != st.Token {
		return false
	}
	st.Begin, st.Last = found.Begin, found.Last
	return true
}

// Purge removes the records of the log before a stream sequence. 0 removes all of them.
func (l *Log) Purge(ctx context.Context, before uint64) error {
	return l.store.journal.purge(ctx, l.name, before)
}

// Erase removes the log of a refused call, so that a client can send the call again.
func (l *Log) Erase(ctx context.Context) {
	l.Free()
	if err := l.Purge(ctx, 0); err != nil {
		l.store.opts.Logger.Warn().Err(err).Str("id", l.ID).Msg("durable: could not remove the log of a refused call")
	}
}

// Keep keeps the records of the ended call in memory, to write its log again if it is lost.
func (l *Log) Keep() {
	e := &endedLog{log: l.name, quotaKey: l.quotaKey(l.name), initial: State{Tenant: l.Tenant, ID: l.ID}, last: l.Last, whole: true}
	if !l.closed {
		l.store.quota.reserve(e.quotaKey, l.Tenant, l.Bytes)
		e.records = l.records()
	}
	l.store.recent.add(e)
}

// records returns the call and all its events as the records of a rewritten log.
func (l *Log) records() [][]byte {
	call := *l.call
	call.Owner = l.store.opts.Node
	all := [][]byte{(&Record{Log: l.Log, Token: l.token, Call: &call}).encode()}
	for events := l.shown.Events(); len(events) > 0; {
		n := min(len(events), BatchEvents)
		all = append(all, (&Record{Log: l.Log, Token: l.token, Events: events[:n]}).encode())
		events = events[n:]
	}
	return all
}

// untilOutage retries while JetStream is unavailable, for up to StoreOptions.Outage.
func (l *Log) untilOutage(ctx context.Context, try func() error) error {
	start, pause := time.Now(), 20*time.Millisecond
	for {
		err := try()
		if err == nil || errors.Is(err, ErrFenced) || errors.Is(err, ErrFull) {
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if time.Since(start) > l.store.opts.Outage {
			return Unavailable(err)
		}
		l.store.journal.ensure(ctx) //nolint:errcheck // the next try returns the error
		durable.Pause(ctx, pause, nil)
		pause = min(2*pause, time.Second)
	}
}

// Append appends one record of events, and retries while JetStream is unavailable. ErrFenced means that another process owns the call, and
// ErrFull that the tenant's quota or the stream has no space: then Close.
func (l *Log) Append(ctx context.Context, events []api.Event) error {
	return l.untilOutage(ctx, func() error { return l.write(ctx, events) })
}

// write appends one record. It finds out why the log does not end with this process's last record, if so: the record was written and only
// its acknowledgment was lost, the log was lost and has to be written again, or another process owns the call.
func (l *Log) write(ctx context.Context, events []api.Event) error {
	for {
		body := (&Record{Log: l.Log, Token: l.token, Events: events}).encode()
		cost := l.store.journal.cost(len(body))
		if !l.reserve(l.Bytes + cost) {
			return ErrFull
		}
		_, last, err := l.store.journal.write(ctx, l.name, body, l.Last)
		if err == nil {
			l.Last = last
			l.Bytes += cost
			return nil
		}
		if !errors.Is(err, ErrFenced) {
			return err
		}
		written, err := l.resync(ctx)
		if err != nil {
			return err
		}
		for len(events) > 0 && events[0].Seq <= written {
			events = events[1:]
		}
		if len(events) == 0 {
			return nil
		}
	}
}

// reserve reserves quota for a log of the given size in bytes, rounded up to a step if possible.
func (l *Log) reserve(bytes int64) bool {
	if bytes <= l.reserved {
		return true
	}
	reserved, ok := l.store.quota.reserveLog(l.quotaKey(l.name), l.Tenant, bytes)
	if ok {
		l.reserved = reserved
	}
	return ok
}

// Free frees the quota of a log that is not this process's, or does not exist.
func (l *Log) Free() {
	l.store.quota.free(l.quotaKey(l.name))
	l.reserved = 0
}

// Close ends the log of a running call that has no quota left. Readers at this process get the whole
// answer, others get ErrOutgrown.
func (l *Log) Close(ctx context.Context) error {
	last := l.Last
	if last == unknownSeq {
		st, _, err := l.Load(ctx)
		if err != nil && !errors.Is(err, ErrGap) {
			return err
		} else if st.Writer != l.token {
			return ErrFenced
		}
		last = st.Last
	}
	l.purgeBefore(ctx, last) // all but the newest record, on which the next one depends
	err := l.untilOutage(ctx, func() (err error) {
		_, l.Last, err = l.store.journal.publish(ctx, l.name, &Record{Log: l.Log, Token: l.token, Closed: true}, last)
		if errors.Is(err, ErrFenced) {
			if st, _, found := l.Load(ctx); errors.Is(found, ErrOutgrown) && st.Writer == l.token {
				l.Last, err = st.Last, nil // only the acknowledgment was lost
			}
		}
		return err
	})
	if err != nil {
		return err
	}
	l.purgeBefore(ctx, l.Last)
	l.closed = true
	l.Free()
	l.store.metrics.closed.Inc()
	l.store.opts.Logger.Warn().Str("id", l.ID).Int64("bytes", l.Bytes).
		Msg("durable: log closed: it exceeded its tenant's quota, and the stream cannot be resumed")
	return nil
}

// purgeBefore removes the records before a stream sequence. If that fails, they expire.
func (l *Log) purgeBefore(ctx context.Context, before uint64) {
	if err := l.Purge(ctx, before); err != nil {
		l.store.opts.Logger.Debug().Err(err).Str("id", l.ID).Msg("durable: unneeded records could not be removed and will expire")
	}
}

// resync reads this process's own log again and rewrites it if it is damaged. written is the last
// event in it.
func (l *Log) resync(ctx context.Context) (written uint64, err error) {
	shown := uint64(l.shown.Len())
	st, _, err := l.Load(ctx)
	var after uint64
	switch {
	case errors.Is(err, ErrNoLog):
	case errors.Is(err, ErrNotOurs), errors.Is(err, ErrReplaced):
		return 0, ErrFenced
	case err != nil && !errors.Is(err, ErrGap):
		return 0, err
	case st.Writer != l.token || st.Call != nil && st.Log != l.Log:
		return 0, ErrFenced
	case err == nil && st.Known >= shown && st.copied == st.Known:
		l.Last, l.Begin, l.Bytes = st.Last, st.Begin, st.Bytes
		return st.Known, nil
	default:
		after = st.Last
	}
	l.store.opts.Logger.Warn().Str("id", l.ID).Uint64("events", shown).Msg("durable: log lost, writing it again from memory")
	err = l.rewrite(ctx, after)
	if errors.Is(err, ErrFenced) {
		// Another process has written, or a replica answered that lacks records. The next try knows.
		return 0, fmt.Errorf("%w: a log does not end where it was read", ErrNoJetStream)
	}
	if err != nil {
		return 0, err
	}
	if after > 0 {
		l.purgeBefore(ctx, l.Begin)
	}
	return shown, nil
}

// rewrite writes the call and all its events again, after the stream sequence after. Until it has
// succeeded the log's end is unknown, so no other write can succeed.
func (l *Log) rewrite(ctx context.Context, after uint64) error {
	l.Last = unknownSeq
	var begin uint64
	var bytes int64
	last := after
	for i, body := range l.records() {
		first, end, err := l.store.journal.write(ctx, l.name, body, last)
		if err != nil {
			return err
		}
		bytes += l.store.journal.cost(len(body))
		if last = end; i == 0 {
			begin = first
		}
	}
	l.Last, l.Begin, l.Bytes = last, begin, bytes
	l.store.metrics.rewritten.Inc()
	return nil
}

// Refresh rewrites the log before its oldest records expire.
func (l *Log) Refresh(ctx context.Context) error {
	if l.closed {
		return nil
	}
	return l.untilOutage(ctx, func() error {
		if err := l.rewrite(ctx, l.Last); err != nil {
			if !errors.Is(err, ErrFenced) {
				return err
			}
			if _, err := l.resync(ctx); err != nil {
				return err
			}
		}
		return l.Purge(ctx, l.Begin)
	})
}

// Verify writes the log of a call that runs here again if it is lost. If gap is set, another process found records missing.
func (l *Log) Verify(ctx context.Context, gap bool) error {
	if l.closed {
		return nil
	}
	return l.untilOutage(ctx, func() error {
		newest, err := l.store.journal.newest(ctx, l.name)
		if err != nil || newest == l.Last && !gap {
			return err
		}
		_, err = l.resync(ctx)
		return err
	})
}

// TakeOver makes this process the owner of the call.
func (l *Log) TakeOver(ctx context.Context) error {
	l.token = rand.Uint64()
	size := l.Bytes // without the record of this takeover, for which the last owner reserved nothing
	if err := l.own(ctx); err != nil {
		return err
	}
	l.reserved = l.store.quota.takeOver(l.quotaKey(l.name), l.Tenant, size, l.Owner)
	l.Owner, l.Token = l.store.opts.Node, l.token
	l.Takeovers++
	return nil
}

// own writes this process's ownership into the log that was read, or the whole log if it is lost.
func (l *Log) own(ctx context.Context) error {
	created, err := l.store.journal.creation(ctx)
	if err == nil && created.Equal(l.Created) {
		node := l.store.opts.Node
		body := (&Record{Log: l.Log, Token: l.token, Owner: &node}).encode()
		_, last, err := l.store.journal.write(ctx, l.name, body, l.Last)
		if err == nil {
			l.Last = last
			l.Bytes += l.store.journal.cost(len(body))
		}
		if !errors.Is(err, ErrFenced) {
			return err
		}
	}
	newest, err := l.store.journal.newest(ctx, l.name)
	switch {
	case err != nil:
		return err
	case newest == 0:
		return l.rewrite(ctx, 0)
	}
	return ErrRestart
}

// Release gives up the ownership of the call, so that another process can take it over.
func (l *Log) Release(ctx context.Context) {
	nobody := ""
	l.token = rand.Uint64()
	if _, _, err := l.store.journal.publish(ctx, l.name, &Record{Log: l.Log, Token: l.token, Owner: &nobody}, l.Last); err != nil {
		l.store.opts.Logger.Warn().Err(err).Str("id", l.ID).Msg("durable: could not release the call in its log")
	}
}
