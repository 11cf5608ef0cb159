// Package durable keeps the answers of calls in a log, so that a client whose
// gateway died goes on at another one, where it stopped.
//
// A log is one subject of a JetStream memory stream. Its first record is the call
// itself, the others are the call's events in order. A client sees an event only
// when its record is acknowledged, so what any client has seen is in the log, and
// a gateway that takes a call over goes on behind exactly that. Each record is
// written on the condition that the last one is the one the writer knows: whoever
// takes a call over writes itself into the log, and the next write of the one
// before fails. See docs/decisions/stream-resume.md. The package must not know OpenAI's wire formats
// or how an answer is made.
package durable

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"
	"github.com/rs/zerolog"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/call"
	"github.com/millrace/millrace/tracing"
)

// Options of New. The zero value of each has the default that its comment names.
type Options struct {
	Logger    zerolog.Logger
	Keys      Keys          // whose tenants share the logs, and whose callers the calls run for; nil: no keys are in use
	Always    bool          // calls that stream and do not say "stream_resume" are resumable too
	Keep      time.Duration // so long a log can be read after its call's end; 30 s
	Age       time.Duration // a running call's log is written anew so often, and lives for twice as long by itself; 1 min
	MaxBytes  int64         // of all logs; 256 MiB
	Window    time.Duration // a call without a reader is cancelled after it; 30 s
	Outage    time.Duration // JetStream may be away so long before a call fails; 1 min
	Watch     time.Duration // between questions to the gateway that runs a call; 500 ms
	Answer    time.Duration // for that gateway to answer; 250 ms
	Timeout   time.Duration // of one question to JetStream; 2 s
	DecodeOld DecodeOld     // of the logs that the version before has begun; nil: they cannot be read
	Rejoin    time.Duration // so long a new call waits for JetStream, and an unknown one for its lost log to be written again; 10 s
}

func (o *Options) defaults() {
	if o.MaxBytes == 0 {
		o.MaxBytes = 256 << 20
	}
	for _, d := range []struct {
		value    *time.Duration
		fallback time.Duration
	}{{&o.Keep, 30 * time.Second}, {&o.Age, time.Minute}, {&o.Window, 30 * time.Second}, {&o.Outage, time.Minute},
		{&o.Watch, 500 * time.Millisecond}, {&o.Answer, 250 * time.Millisecond}, {&o.Timeout, 2 * time.Second}, {&o.Rejoin, 10 * time.Second}} {
		if *d.value == 0 {
			*d.value = d.fallback
		}
	}
}

// DecodeOld decodes the call of a log that the version before has begun: an OpenAI body, under the
// ID and with the arrival of the call. It goes with version 0.2.
type DecodeOld func(kind call.Kind, id string, body []byte, models []api.Model, arrival time.Time) (*call.Call, error)

// Keys are the API keys of the server.
type Keys interface {
	// Caller returns the holder of the key with an id, nil without one.
	Caller(id string) api.Caller
	// Tenants returns the number of tenants that have keys.
	Tenants() int
}

// tenants is how many tenants share the logs.
func (o *Options) tenants() int {
	if o.Keys == nil {
		return 1
	}
	return o.Keys.Tenants()
}

// errNoRoom: the tenant of a call keeps as much in the logs as it may.
var errQuotaUsed = errors.New("resume: the tenant's logs take all of their share")

// Calls are the resumable calls of one process. They implement call.Runner.
type Calls struct {
	nc          *nats.Conn
	direct      *call.Direct
	opts        Options
	node        string // this process; a new one has a new name
	journal     *journal
	peers       *peers
	metrics     *metrics
	ctx         context.Context
	stop        context.CancelFunc
	running     sync.WaitGroup
	recent      *recent
	maintenance sync.WaitGroup
	quota       *sharedQuota
	restores    chan query   // about ended calls whose logs others miss
	reconnected atomic.Int64 // when our connection came back, Unix nanoseconds

	mu       sync.Mutex
	sessions map[string]*session // by logName
	draining bool
}

// New returns a runner that keeps the answers of resumable calls and leaves all other calls to
// direct. It makes the stream of the logs, which needs JetStream on the connection. The
// connection stays the caller's.
func New(nc *nats.Conn, direct *call.Direct, opts Options) (*Calls, error) {
	opts.defaults()
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, fmt.Errorf("resume: %w", err)
	}
	c := &Calls{nc: nc, direct: direct, opts: opts, node: nuid.Next(), metrics: newMetrics(), sessions: map[string]*session{},
		journal: &journal{js: js, maxAge: opts.Age + max(opts.Age, opts.Keep), maxBytes: opts.MaxBytes, replicas: 1, maxBody: int(nc.MaxPayload()) / 2, timeout: opts.Timeout}}
	c.journal.bytes = c.metrics.bytes
	const share, questions = 8, 64 // of the logs' memory, for what has ended
	c.recent, c.restores = newRecent(opts.Keep, int(opts.MaxBytes/share)), make(chan query, questions)
	c.quota = newSharedQuota(nc, c.node, opts.MaxBytes/2, opts.tenants, c.journal.maxAge) // the other half is for what rule 12 says
	const enough = 3                                                                      // servers of a cluster, for the log to outlive one of them
	if len(nc.Servers()) >= enough && nc.ConnectedClusterName() != "" {
		c.journal.replicas = enough
	}
	c.ctx, c.stop = context.WithCancel(context.Background())
	if err := c.journal.ensure(c.ctx); err != nil {
		return nil, fmt.Errorf("resume: the logs need JetStream: %w", err)
	}
	if c.peers, err = newPeers(c); err != nil {
		c.stop()
		return nil, fmt.Errorf("resume: %w", err)
	}
	c.maintenance.Go(c.maintainLogs)
	c.maintenance.Go(func() { c.quota.run(c.ctx.Done()) })
	return c, nil
}

// Run implements call.Runner. It keeps the answer of a call that asks for it, or of every call
// that streams. A call whose tenant keeps as much in the logs as it may runs without a log,
// unless it insists. A call whose ID its tenant's logs have already is not run again: the reader
// reads that log, if it is the same call.
func (c *Calls) Run(ctx context.Context, cl *call.Call) (call.Answer, error) {
	if !c.wants(cl) {
		return c.direct.Run(ctx, cl)
	}
	r, err := c.start(ctx, cl)
	switch {
	case errors.Is(err, errQuotaUsed) && cl.Resume == call.ResumeYes:
		return nil, errLogsFull(c.opts.Keep)
	case errors.Is(err, errQuotaUsed):
		return c.direct.Run(ctx, cl)
	case err != nil:
		return nil, err
	}
	return r, nil
}

// wants reports whether a call is to be resumable.
func (c *Calls) wants(cl *call.Call) bool {
	switch cl.Resume {
	case call.ResumeNo:
		return false
	case call.ResumeUnsaid:
		return c.opts.Always && cl.Stream
	case call.ResumeAuto, call.ResumeYes:
	}
	return true
}

// start runs a call with a log, or joins the one that runs under its ID.
func (c *Calls) start(ctx context.Context, cl *call.Call) (*Reader, error) {
	form, err := encodeCall(cl)
	if err != nil {
		return nil, api.AsError(err)
	}
	caller, tenant := callerAndTenant(ctx)
	r, err := c.join(ctx, cl.ID, func(s *session) {
		rec := &callRecord{encoded: form, id: cl.ID, tenant: tenant, owner: c.node, trace: tracing.Of(ctx)}
		if caller != nil {
			rec.key = caller.KeyID()
		}
		s.begin(ctx, rec, cl)
	})
	if err != nil {
		return nil, err
	}
	if !r.s.isSameCall(form) {
		r.Close()
		return nil, &api.Error{Code: http.StatusConflict, Param: "request_id", Reason: "request_id_in_use",
			Message: "request_id: in use by another request, expected a new one"}
	}
	return r, nil
}

// Attach implements call.Runner: 404 when there is no log of the call, 410 when it has expired.
func (c *Calls) Attach(ctx context.Context, id string) (call.Answer, error) {
	if !call.ValidID(id) {
		return nil, c.notFound(id)
	}
	r, err := c.join(ctx, id, func(s *session) { c.running.Go(s.find) })
	if err != nil {
		return nil, err
	}
	return r, nil
}

// join gives a reader of the session of the tenant's call. A new session is opened by first.
// Whoever finds one that fails gets no other's refusal, but a session of its own.
func (c *Calls) join(ctx context.Context, id string, first func(*session)) (*Reader, error) {
	caller, tenant := callerAndTenant(ctx)
	for {
		s, r, err := c.session(tenant, id, caller)
		if err != nil {
			return nil, err
		}
		if s != nil {
			first(s)
		}
		if err = r.ready(ctx); err == nil {
			return r, nil
		}
		r.Close()
		if s != nil || ctx.Err() != nil {
			return nil, err
		}
	}
}

// Cancel ends a call wherever it runs. A call that has ended stays as it is.
func (c *Calls) Cancel(ctx context.Context, id string) error {
	r, err := c.Attach(ctx, id)
	if err != nil {
		return err
	}
	defer r.Close()
	return r.Cancel(ctx)
}

// who returns the caller of ctx and its tenant; nil and "" without API keys.
func callerAndTenant(ctx context.Context) (api.Caller, string) {
	if c := api.CallerFrom(ctx); c != nil {
		return c, c.TenantName()
	}
	return nil, ""
}

// session returns a reader of the call's session and, when it is a new one, the
// session: the caller then has to begin or find it.
func (c *Calls) session(tenant, id string, caller api.Caller) (fresh *session, r *Reader, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.draining {
		return nil, nil, errStopping(id)
	}
	name := logName(tenant, id)
	s := c.sessions[name]
	if s == nil {
		s = newSession(c, tenant, id, caller)
		c.sessions[name], fresh = s, s
	}
	s.attach()
	return fresh, &Reader{s: s}, nil
}

// forget takes an ended session out of the table.
func (c *Calls) remove(s *session) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sessions[s.name] == s {
		delete(c.sessions, s.name)
	}
}

// lookup is the session of the call that has this log; nil: there is none here.
func (c *Calls) lookup(log string) *session {
	c.mu.Lock()
	s := c.sessions[log]
	c.mu.Unlock()
	if s != nil || strings.Contains(log, ".") {
		return s
	}
	for _, s := range c.all() { // of a version before
		if s.usesLog(log) {
			return s
		}
	}
	return nil
}

func (c *Calls) all() []*session {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Collect(maps.Values(c.sessions))
}

// Drain hands the running calls over to the other gateways, if there are any:
// their readers get an error 503 "moved" and go on there. Without another gateway
// it does nothing, and the calls run on.
func (c *Calls) Drain(ctx context.Context) {
	if !c.peers.othersExist(ctx) {
		return
	}
	c.mu.Lock()
	c.draining = true
	c.mu.Unlock()
	all := c.all()
	for _, s := range all {
		s.drain()
	}
	for _, s := range all {
		select {
		case <-s.ctx.Done():
		case <-s.detached: // nobody can take it over: it ends here
		}
	}
}

// Close ends every session. What runs is cancelled without an end in its log:
// another gateway may take it over.
func (c *Calls) Close() {
	c.mu.Lock()
	c.draining = true
	c.mu.Unlock()
	c.stop()
	c.running.Wait()
	c.maintenance.Wait()
	c.peers.close()
}

func (c *Calls) notFound(id string) *api.Error {
	return &api.Error{Code: api.CodeNotFound, Reason: "stream_not_found", Message: fmt.Sprintf(
		"no stream %q: it was not resumable, or has ended more than %s ago; send the request again", id, c.opts.Keep)}
}

func expired(id string) *api.Error {
	return &api.Error{Code: http.StatusGone, Reason: "stream_expired",
		Message: fmt.Sprintf("the beginning of stream %q has expired; send the request again", id)}
}

func outgrown(id string) *api.Error {
	return &api.Error{Code: http.StatusGone, Reason: "stream_expired",
		Message: fmt.Sprintf("the log of stream %q was closed: it had outgrown its tenant's share", id)}
}

// noRoom is for a call that insists on a log.
func errLogsFull(keep time.Duration) *api.Error {
	return &api.Error{Code: api.CodeOverloaded, Param: "stream_resume", Reason: "stream_logs_full", RetryAfter: keep,
		Message: fmt.Sprintf(`stream_resume: the tenant's streams take all of their share of the logs: a log goes %s after its call's end; `+
			`try again then, or with "auto"`, keep)}
}

func errStopping(id string) *api.Error {
	return &api.Error{Code: api.CodeUnavailable, Reason: "moved", RetryAfter: time.Second,
		Message: fmt.Sprintf("this gateway is stopping: stream %q goes on at another one", id)}
}

// unavailable is what a client is told when JetStream does not answer.
func unavailable(err error) *api.Error {
	if e, ok := errors.AsType[*api.Error](err); ok {
		return e
	}
	return &api.Error{Code: api.CodeUnavailable, Reason: "journal_unavailable", RetryAfter: time.Second,
		Message: "the log of resumable streams cannot be reached: try again, or without stream_resume"}
}

var _ call.Runner = (*Calls)(nil)

// Reader reads a call's answer from its beginning. It keeps the call alive. It implements
// call.Answer.
type Reader struct {
	s    *session
	once sync.Once
}

func (r *Reader) ready(ctx context.Context) error {
	select {
	case <-r.s.opened:
		return r.s.failed
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Resumable implements call.Answer.
func (r *Reader) Resumable() bool { return true }

// Call is the call that is read.
func (r *Reader) Call() *call.Call { return r.s.call }

// Events are the call's events from the first on. The channel closes after Done,
// or when ctx ends.
func (r *Reader) Events(ctx context.Context) <-chan api.Event {
	const buffer = 64
	out := make(chan api.Event, buffer)
	events := r.s.buffer.Reader()
	go func() {
		defer close(out)
		defer events.Close()
		for {
			ev, err := events.Next(ctx)
			if err != nil {
				return
			}
			select {
			case out <- ev:
			case <-ctx.Done():
				return
			}
		}
	}()
	return out
}

// Cancel ends the call and waits until it has ended.
func (r *Reader) Cancel(ctx context.Context) error {
	r.s.cancel()
	for range r.Events(ctx) { //nolint:revive // until the end
	}
	return ctx.Err()
}

// Close is needed. The call goes on for a while without readers.
func (r *Reader) Close() { r.once.Do(r.s.detach) }
