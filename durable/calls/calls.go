// Package calls keeps the answers of calls in logs, so that a client whose gateway died resumes its
// stream at another gateway. A gateway leads a call, which it runs and whose log it writes, or follows
// the log that another one writes, and takes the call over when that one is dead.
// See docs/decisions/stream-resume.md.
//
// It must not know a wire format, how an answer is made, or how a log is stored.
package calls

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nuid"
	"github.com/rs/zerolog"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/call"
	"github.com/millrace/millrace/durable"
	"github.com/millrace/millrace/durable/callpb"
	"github.com/millrace/millrace/durable/log"
	"github.com/millrace/millrace/tracing"
)

// Options are the settings of Calls. The zero value of a field means the default in its comment.
type Options struct {
	Logger   zerolog.Logger
	Keys     durable.Keys  // API keys; their tenants share the quota of logs. nil: the server has no keys
	Always   bool          // streams without "stream_resume" are resumable too
	Keep     time.Duration // how long a log can be read after its call's end; default 30 s
	Age      time.Duration // time between two rewrites of a running call's log, whose records live at least twice as long; default 1 min
	MaxBytes int64         // size of the stream of logs; default 256 MiB
	Window   time.Duration // how long a call without a reader runs; default 30 s
	Outage   time.Duration // longest outage of JetStream that a call survives; default 1 min
	Watch    time.Duration // time between two queries to the gateway that runs a call; default 500 ms
	Answer   time.Duration // timeout of such a query; default 250 ms
	Timeout  time.Duration // timeout of one JetStream request; default 2 s
	Rejoin   time.Duration // how long a new call waits for JetStream, and a reader for a lost log; default 10 s
}

func (o *Options) defaults() {
	if o.MaxBytes == 0 {
		o.MaxBytes = 256 << 20
	}
	for _, d := range []struct {
		value    *time.Duration
		fallback time.Duration
	}{{&o.Keep, 30 * time.Second}, {&o.Age, time.Minute}, {&o.Window, 30 * time.Second}, {&o.Outage, time.Minute},
		{&o.Watch, 500 * time.Millisecond}, {&o.Answer, 250 * time.Millisecond}, {&o.Timeout, 2 * time.Second},
		{&o.Rejoin, 10 * time.Second}} {
		if *d.value == 0 {
			*d.value = d.fallback
		}
	}
}

// tenants returns the number of tenants that share the quota.
func (o *Options) tenants() int {
	if o.Keys == nil {
		return 1
	}
	return o.Keys.Tenants()
}

// errQuotaUsed means that the quota of the call's tenant is used up.
var errQuotaUsed = errors.New("durable: the tenant's quota of logs is used up")

// Calls runs the resumable calls of one process. It implements call.Runner.
type Calls struct {
	nc          *nats.Conn
	direct      *call.Direct
	opts        Options
	node        string // name of this process, new at each start
	logs        *log.Store
	peers       *peers
	metrics     *metrics
	ctx         context.Context
	stop        context.CancelFunc
	running     sync.WaitGroup
	maintenance sync.WaitGroup
	restores    chan query   // queries about ended calls whose logs are missing or have gaps
	reconnected atomic.Int64 // time of the last reconnection, Unix nanoseconds

	mu       sync.Mutex
	sessions map[string]*session // by Name
	draining bool
}

// New returns a runner that keeps the answers of resumable calls and passes all other calls to direct.
// It creates the stream of logs, which needs JetStream. The caller closes the connection after Calls.
func New(nc *nats.Conn, direct *call.Direct, opts Options) (*Calls, error) {
	opts.defaults()
	const queries = 64
	c := &Calls{nc: nc, direct: direct, opts: opts, node: nuid.Next(), metrics: newMetrics(),
		sessions: map[string]*session{}, restores: make(chan query, queries)}
	c.ctx, c.stop = context.WithCancel(context.Background())
	var err error
	if c.logs, err = log.OpenStore(c.ctx, nc, log.StoreOptions{Logger: opts.Logger, Node: c.node, Tenants: opts.tenants,
		Keep: opts.Keep, Age: opts.Age, MaxBytes: opts.MaxBytes, Outage: opts.Outage, Timeout: opts.Timeout}); err != nil {
		c.stop()
		return nil, err
	}
	if c.peers, err = newPeers(c); err != nil {
		c.stop()
		return nil, fmt.Errorf("durable: %w", err)
	}
	c.maintenance.Go(c.maintainLogs)
	c.maintenance.Go(func() { c.logs.Run(c.ctx.Done()) })
	return c, nil
}

// Run implements call.Runner. It keeps the answer of a call that is to be resumable, see wants. If the
// tenant's quota is used up, the call runs without a log, or fails if "stream_resume" is true. If the
// tenant has a log with the call's ID, the call is not run: the answer is read from that log, or is a
// 409 if that log has another call.
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

// wants reports whether a call is to be resumable: by its request, or by Options.Always if it streams.
func (c *Calls) wants(cl *call.Call) bool {
	switch cl.Resume {
	case call.ResumeNo:
		return false
	case call.ResumeUnset:
		return c.opts.Always && cl.Stream
	case call.ResumeAuto, call.ResumeYes:
	}
	return true
}

// start runs a call with a log, or joins the call that has its ID.
func (c *Calls) start(ctx context.Context, cl *call.Call) (*Reader, error) {
	encoded, err := callpb.Encode(cl)
	if err != nil {
		return nil, api.AsError(err)
	}
	caller, tenant := api.CallerFrom(ctx), api.TenantFrom(ctx)
	r, err := c.join(ctx, cl.ID, func(s *session) {
		rec := &log.CallRecord{Encoded: encoded, ID: cl.ID, Tenant: tenant, Owner: c.node, Trace: tracing.Of(ctx)}
		if caller != nil {
			rec.Key = caller.KeyID()
		}
		s.begin(ctx, rec, cl)
	})
	if err != nil {
		return nil, err
	}
	if !r.s.isSameCall(encoded) {
		r.Close()
		return nil, &api.Error{Code: http.StatusConflict, Param: "request_id", Reason: "request_id_in_use",
			Message: "request_id: in use by another request, expected a new one"}
	}
	return r, nil
}

// Attach implements call.Runner. The error is a 404 if the call has no log, and a 410 if the log has
// expired.
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

// join returns a reader of the session of the tenant's call. It calls first to open a new session. If a
// session that another request opened fails, join opens its own instead of returning that error.
func (c *Calls) join(ctx context.Context, id string, first func(*session)) (*Reader, error) {
	caller, tenant := api.CallerFrom(ctx), api.TenantFrom(ctx)
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

// Cancel cancels a call at whichever gateway runs it. It does not change a call that has ended.
func (c *Calls) Cancel(ctx context.Context, id string) error {
	r, err := c.Attach(ctx, id)
	if err != nil {
		return err
	}
	defer r.Close()
	return r.Cancel(ctx)
}

// Forget removes the log of an ended call of the caller, so that its id is free. Other gateways may read the answer until they have
// noticed.
func (c *Calls) Forget(ctx context.Context, id string) error {
	tenant := api.TenantFrom(ctx)
	if err := c.logs.Remove(ctx, tenant, id); err != nil {
		return log.Unavailable(err)
	}
	return nil
}

// session returns a reader of the call's session. fresh is the session if it is new: then the caller
// has to open it with begin or find.
func (c *Calls) session(tenant, id string, caller api.Caller) (fresh *session, r *Reader, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.draining {
		return nil, nil, errStopping(id)
	}
	name := log.Name(tenant, id)
	s := c.sessions[name]
	if s == nil {
		s = newSession(c, tenant, id, caller)
		c.sessions[name], fresh = s, s
	}
	s.attach()
	return fresh, &Reader{s: s}, nil
}

// remove removes an ended session from the table.
func (c *Calls) remove(s *session) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sessions[s.log.Name()] == s {
		delete(c.sessions, s.log.Name())
	}
}

// lookup returns the session of the call that has the log of this name, or nil.
func (c *Calls) lookup(name string) *session {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.sessions[name]
}

func (c *Calls) all() []*session {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Collect(maps.Values(c.sessions))
}

// Drain hands the running calls over to the other gateways. Their readers get an error 503 "moved" and
// resume there. Without another gateway, Drain does nothing and the calls keep running.
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
		case <-s.detached: // without a log no gateway can take it over
		}
	}
}

// Close ends every session. It cancels running calls without an end in their logs, so another gateway
// can take them over.
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
		"no stream %s: it was not resumable, or it ended more than %s ago; send the request again", api.Quote(id), c.opts.Keep)}
}

func expired(id string) *api.Error {
	return &api.Error{Code: http.StatusGone, Reason: "stream_expired",
		Message: fmt.Sprintf("the beginning of stream %q has expired; send the request again", id)}
}

// lost is the error for a call that nobody has after a restart of the NATS server, whose memory has the logs.
func lost(id string) *api.Error {
	return &api.Error{Code: http.StatusGone, Reason: "stream_lost", Message: fmt.Sprintf(
		"no stream %q: the NATS server lost its logs in a restart, and no gateway has the stream; send the request again", id)}
}

func outgrown(id string) *api.Error {
	return &api.Error{Code: http.StatusGone, Reason: "stream_expired",
		Message: fmt.Sprintf("the log of stream %q was closed: it exceeded its tenant's share", id)}
}

// errLogsFull is the error for a call that requires a log. A log is removed keep after its call's end.
func errLogsFull(keep time.Duration) *api.Error {
	return &api.Error{Code: api.CodeOverloaded, Param: "stream_resume", Reason: "stream_logs_full", RetryAfter: keep,
		Message: fmt.Sprintf(`stream_resume: the tenant's share of the logs is used up, and a log is removed %s after its call's end; `+
			`try again then, or with "auto"`, keep)}
}

func errStopping(id string) *api.Error {
	return &api.Error{Code: api.CodeUnavailable, Reason: "moved", RetryAfter: time.Second,
		Message: fmt.Sprintf("this gateway is stopping: resume stream %q at another one", id)}
}

var _ call.Runner = (*Calls)(nil)

// Reader reads a call's answer from its beginning. The call keeps running while it has a Reader. It
// implements call.Answer.
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

// Call returns the call that is read.
func (r *Reader) Call() *call.Call { return r.s.call }

// Events returns the call's events, from the first one to Done, or until ctx ends.
func (r *Reader) Events(ctx context.Context) call.EventStream {
	events := r.s.buffer.Reader()
	context.AfterFunc(ctx, events.Close)
	return events
}

// Cancel ends the call and waits until it has ended.
func (r *Reader) Cancel(ctx context.Context) error {
	r.s.cancel()
	for range call.All(ctx, r.Events(ctx)) { //nolint:revive // until the end
	}
	return ctx.Err()
}

// Close releases the reader. Without readers the call runs for Options.Window and is then cancelled.
func (r *Reader) Close() { r.once.Do(r.s.detach) }
