package log

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/durable"
)

// StoreOptions are the settings of a Store. No field has a default.
type StoreOptions struct {
	Logger   zerolog.Logger
	Node     string        // name of this process
	Tenants  func() int    // number of tenants that share the quota
	Keep     time.Duration // how long a log can be read after its call's end
	Age      time.Duration // time between two rewrites of a running call's log, whose records live at least twice as long
	MaxBytes int64         // size of the stream of logs
	Outage   time.Duration // longest outage of JetStream that a write survives
	Timeout  time.Duration // timeout of one JetStream request
}

// Store has the logs of all calls: the stream, the quota of each tenant, and those logs that ended here of late.
type Store struct {
	opts    StoreOptions
	journal *journal
	quota   *sharedQuota
	recent  *recent
	metrics storeMetrics
}

// OpenStore creates the stream of logs if it is missing, which needs JetStream.
func OpenStore(ctx context.Context, nc *nats.Conn, opts StoreOptions) (*Store, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, fmt.Errorf("durable: %w", err)
	}
	s := &Store{opts: opts, metrics: newStoreMetrics()}
	s.journal = &journal{js: js, maxAge: opts.Age + max(opts.Age, opts.Keep), maxBytes: opts.MaxBytes, replicas: 1,
		maxBody: min(int(nc.MaxPayload())/2, bodyLimit), timeout: opts.Timeout, bytes: s.metrics.bytes}
	const share = 8 // ended calls keep records in memory, up to an eighth of the stream's size
	s.recent = newRecent(opts.Keep, int(opts.MaxBytes/share))
	// The other half of the stream is for rewritten logs and reports in flight.
	s.quota = newSharedQuota(nc, opts.Node, opts.MaxBytes/2, opts.Tenants, s.journal.maxAge)
	const replicas = 3 // the logs survive the loss of one server
	if len(nc.Servers()) >= replicas && nc.ConnectedClusterName() != "" {
		s.journal.replicas = replicas
	}
	if err := s.journal.open(ctx); err != nil {
		return nil, fmt.Errorf("durable: the logs need JetStream: %w", err)
	}
	return s, nil
}

// Run reports the use of the quota to the other processes until done is closed.
func (s *Store) Run(done <-chan struct{}) { s.quota.run(done) }

// Used applies another process's report of its use of the quota, which comes on UsedSubject.
func (s *Store) Used(m *nats.Msg) { s.quota.receive(m) }

// Ensure creates the stream if it is missing.
func (s *Store) Ensure(ctx context.Context) error { return s.journal.ensure(ctx) }

// RecentlyCreated reports whether the stream was created within a time or is missing. Then the owner of a missing log may be about to write
// it again.
func (s *Store) RecentlyCreated(ctx context.Context, within time.Duration) bool {
	return s.journal.recentlyCreated(ctx, within)
}

// RecentlyLost reports whether a stream that this process has used is gone since a minute at most.
func (s *Store) RecentlyLost(ctx context.Context) bool { return s.journal.recentlyLost(ctx) }

// Remove removes the log of a tenant's call.
func (s *Store) Remove(ctx context.Context, tenant, id string) error {
	err := s.journal.purge(ctx, Name(tenant, id), 0)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil
	}
	return err
}

// Sweep removes the logs of calls that ended here more than Keep ago. A log that cannot be removed now, or whose process dies, expires.
func (s *Store) Sweep(ctx context.Context) {
	for _, l := range s.recent.expired(time.Now()) {
		s.quota.free(l.quotaKey)
		if err := s.journal.purge(ctx, l.log, l.last+1); err != nil {
			s.opts.Logger.Debug().Err(err).Str("id", l.initial.ID).Msg("durable: could not remove the log of an ended call; it will expire")
		}
	}
}

// Ended reports whether the records of a log whose call ended here are in memory.
func (s *Store) Ended(log string) bool { return s.recent.get(log) != nil }

// Restore writes the log of a call that ended here again if it is lost. If gap is set, another process found records missing.
func (s *Store) Restore(ctx context.Context, log string, gap bool) {
	if l := s.recent.get(log); l != nil {
		s.restore(ctx, l, gap)
	}
}

// RestoreAll writes the logs of all calls that ended here again if they are lost.
func (s *Store) RestoreAll(ctx context.Context) {
	for _, l := range s.recent.all() {
		s.restore(ctx, l, false)
	}
}

func (s *Store) restore(ctx context.Context, l *endedLog, gap bool) {
	const pause = 100 * time.Millisecond
	for time.Now().Before(l.until) {
		err := s.rewriteEnded(ctx, l, gap)
		if err == nil || errors.Is(err, ErrFenced) { // fenced: another process has written it
			return
		}
		s.journal.ensure(ctx) //nolint:errcheck // the next try returns the error
		if !durable.Pause(ctx, pause, nil) {
			return
		}
	}
	s.opts.Logger.Warn().Str("id", l.initial.ID).Msg("durable: could not write the log of an ended call again")
}

func (s *Store) rewriteEnded(ctx context.Context, l *endedLog, gap bool) error {
	newest, err := s.journal.newest(ctx, l.log)
	if err != nil {
		return err
	}
	if gap && newest != 0 && newest == l.last {
		st := l.initial
		if _, err := s.journal.load(ctx, l.log, &st); !errors.Is(err, ErrGap) {
			return err
		}
	} else if newest != 0 && (l.whole || newest != l.last) {
		return nil
	}
	l.whole = false
	last := newest
	for _, record := range s.recent.records(l) {
		if _, last, err = s.journal.write(ctx, l.log, record, last); err != nil {
			return err
		}
		l.last = last
	}
	l.whole = true
	s.metrics.rewritten.Inc()
	return nil
}

// storeMetrics are the metrics of one process's logs.
type storeMetrics struct{ rewritten, bytes, closed prometheus.Counter }

func newStoreMetrics() storeMetrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "millrace_resume_" + name, Help: help})
	}
	return storeMetrics{
		rewritten: counter("rewritten_total", "Logs rewritten: lost with the NATS server, or refreshed before they expire."),
		closed:    counter("closed_total", "Calls whose log was closed while they ran: it exceeded their tenant's share."),
		bytes:     counter("journal_bytes_total", "Bytes of records written."),
	}
}

// Metrics are those of the logs.
func (s *Store) Metrics() []prometheus.Collector {
	return []prometheus.Collector{s.metrics.rewritten, s.metrics.bytes, s.metrics.closed}
}

// Unavailable returns the client's error for an error of JetStream.
func Unavailable(err error) *api.Error {
	if e, ok := errors.AsType[*api.Error](err); ok {
		return e
	}
	return &api.Error{Code: api.CodeUnavailable, Reason: "journal_unavailable", RetryAfter: time.Second,
		Message: "the log of resumable streams cannot be reached: try again, or without stream_resume"}
}

// RetryWait pauses before another try. It returns false if the tries since begin have taken limit, or
// ctx ended.
func RetryWait(ctx context.Context, begin time.Time, limit time.Duration) bool {
	const pause = 100 * time.Millisecond
	return time.Since(begin) < limit && durable.Pause(ctx, pause, nil)
}
