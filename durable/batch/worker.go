package batch

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nuid"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/call"
	"github.com/millrace/millrace/api/codec"
	"github.com/millrace/millrace/durable"
)

// worker runs lines of all batches in this gateway.
type worker struct {
	b        *Batches
	inFlight atomic.Int64
	lines    sync.WaitGroup
	last     string // tenant whose batch gave the last lines

	mu      sync.Mutex
	waiting map[string]int // lines that were refused for now, by tenant
}

// pause waits before a refused line is sent again. It takes no room meanwhile, and no further line of its tenant is taken.
func (w *worker) pause(ctx context.Context, tenant string, d time.Duration) {
	add := func(n int) {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.waiting[tenant] += n; w.waiting[tenant] == 0 {
			delete(w.waiting, tenant)
		}
	}
	add(1)
	w.inFlight.Add(-1)
	w.b.wake()
	durable.Pause(ctx, d, nil)
	w.inFlight.Add(1)
	add(-1)
	w.b.wake()
}

// waits reports whether a line of the tenant was refused for now.
func (w *worker) waits(tenant string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.waiting[tenant] > 0
}

// Pauses of the worker.
const (
	busyPause = 20 * time.Millisecond  // between two checks for room
	idlePause = 500 * time.Millisecond // between two checks of queues that were empty, without a change of a batch
	restPause = time.Minute            // as idlePause, while no batch runs
)

// run takes lines while there is room for some, until ctx ends. Batches take turns, tenant by tenant.
func (w *worker) run(ctx context.Context) {
	defer w.lines.Wait()
	dry := map[string]time.Time{} // batches without a line in the queue, and until when
	for ctx.Err() == nil {
		if len(w.b.catalog.running()) == 0 {
			durable.Pause(ctx, restPause, w.b.changed)
			continue
		}
		room := w.b.opts.Room() - int(w.inFlight.Load())
		if room <= 0 {
			durable.Pause(ctx, busyPause, nil)
			continue
		}
		r := w.choose(dry)
		if r == nil {
			durable.Pause(ctx, idlePause, w.b.changed)
			clear(dry)
			continue
		}
		const most = 16 // of one batch in a turn
		tasks, err := w.b.storage.take(ctx, r, min(room, most))
		if err != nil && ctx.Err() == nil {
			w.b.opts.Logger.Debug().Err(err).Str("batch", r.ID).Msg("batch: cannot take lines")
		}
		if len(tasks) == 0 {
			dry[r.ID] = time.Now().Add(idlePause)
		}
		for _, t := range tasks {
			w.inFlight.Add(1)
			w.lines.Go(func() {
				defer w.inFlight.Add(-1)
				w.line(ctx, r, t)
			})
		}
	}
}

// choose returns a batch that may have lines, nil if there is none: the oldest one of the tenant after the last tenant.
func (w *worker) choose(dry map[string]time.Time) *Record {
	now := time.Now()
	list := slices.DeleteFunc(w.b.catalog.running(), func(r *Record) bool { return now.Before(dry[r.ID]) || w.waits(r.Tenant) })
	if len(list) == 0 {
		return nil
	}
	slices.SortFunc(list, func(a, b *Record) int {
		if c := strings.Compare(a.Tenant, b.Tenant); c != 0 {
			return c
		}
		return olderFirst(a, b)
	})
	i := max(0, slices.IndexFunc(list, func(r *Record) bool { return r.Tenant > w.last }))
	w.last = list[i].Tenant
	return list[i]
}

// olderFirst compares batches of one tenant by the order in which their lines run.
func olderFirst(a, b *Record) int {
	if c := a.Created().Compare(b.Created()); c != 0 {
		return c
	}
	return strings.Compare(a.ID, b.ID)
}

// line runs a line and stores its result. The queue gives it out again if this gateway dies, or stops before the result is durable.
func (w *worker) line(ctx context.Context, r *Record, t task) {
	ctx, cancel := w.b.catalog.whileRuns(ctx, r.ID)
	defer cancel()
	var sign sync.WaitGroup
	sign.Go(func() { w.signOfLife(ctx, t.msg) })
	done := w.finish(ctx, r, &t)
	cancel()
	sign.Wait()
	if done {
		t.msg.Ack() //nolint:errcheck // else it is given out again, and its result is there
		return
	}
	t.msg.Nak() //nolint:errcheck // else it is given out again later
}

// signOfLife renews a lease until ctx ends.
func (w *worker) signOfLife(ctx context.Context, l lease) {
	const renewals = 3
	tick := time.NewTicker(w.b.opts.Lease / renewals)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			l.InProgress() //nolint:errcheck // the next one may arrive
		}
	}
}

// mostTries is how often a line is given out. After it, the line is considered the reason why its gateways died.
const mostTries = 32

// finish reports whether the line has a durable result, or needs none because its batch ends: then its keeper writes one.
func (w *worker) finish(ctx context.Context, r *Record, t *task) bool {
	if t.tries > 1 {
		if body, _, err := w.b.storage.result(ctx, r, t.line); err == nil && body != nil {
			return true
		}
	}
	l, fault := check(t.text, r.Endpoint)
	id := key(r.ID, t.line)
	var result *Result
	switch {
	case fault != nil: // the file was checked, so the queue's message is damaged
		result = unanswered(id, l.CustomID, *fault)
	case t.tries > mostTries:
		result = unanswered(id, l.CustomID, Fault{Code: "server_error", Message: "This request was not completed in many attempts."})
	default:
		result = w.answer(ctx, r, id, &l)
	}
	for result != nil {
		body, err := result.encode()
		if err == nil && len(body) > w.b.maxMessage {
			result = unanswered(id, l.CustomID, Fault{Code: "answer_too_large",
				Message: "The answer is larger than a message of the server's storage."})
			continue
		}
		if err == nil {
			_, err = w.b.storage.put(ctx, r, t.line, result.OK(), body)
		}
		if err == nil {
			return true
		}
		if ctx.Err() != nil {
			break
		}
		w.b.opts.Logger.Warn().Err(err).Str("batch", r.ID).Int("line", t.line).Msg("batch: could not store a result; trying again")
		durable.Pause(ctx, time.Second, nil)
	}
	return w.b.catalog.stopped(r.ID)
}

// Waits before a line is sent again that was refused for now.
const (
	shortestRetry = 100 * time.Millisecond
	longestRetry  = 10 * time.Second
	mostFailures  = 3 // internal errors of one line
)

// answer runs a line until it has an answer or an error that another attempt would repeat. nil: ctx ended.
func (w *worker) answer(ctx context.Context, r *Record, id string, l *Line) *Result {
	e := w.b.endpoint(r.Endpoint)
	if e == nil {
		return unanswered(id, l.CustomID, Fault{Code: "server_error", Message: "The server no longer has the endpoint " + r.Endpoint + "."})
	}
	caller, err := w.b.callerOf(r)
	if err != nil {
		return failed(id, l, api.AsError(err), e.failure(api.AsError(err)))
	}
	if caller != nil {
		ctx = api.WithCaller(ctx, caller)
	}
	failures := 0
	for wait := shortestRetry; ; wait = min(2*wait, longestRetry) {
		body, err := e.run(ctx, id, l.Body, r.Created())
		if err == nil {
			return answered(id, l, body)
		}
		if ctx.Err() != nil {
			return nil
		}
		refused := api.AsError(err)
		if refused.Code == api.CodeInternal {
			failures++
		}
		if !again(refused) || failures >= mostFailures {
			return failed(id, l, refused, e.failure(refused))
		}
		w.pause(ctx, r.Tenant, min(max(wait, refused.RetryAfter), longestRetry))
		if ctx.Err() != nil {
			return nil
		}
	}
}

// again reports whether a line may succeed later that has failed with e.
func again(e *api.Error) bool {
	switch e.Code {
	case api.CodeOverloaded, api.CodeUnavailable, api.CodeInternal:
		return true
	case api.CodeInvalid, api.CodeUnauthorized, api.CodeNotFound, api.CodeTooLarge, api.CodeTimeout:
	}
	return false
}

// endpoint is what a batch's lines call.
type endpoint struct {
	failure func(*api.Error) []byte
	run     func(ctx context.Context, id string, body []byte, clock time.Time) ([]byte, error)
}

// Endpoints returns the paths that a batch may have: those of every POST that has one answer.
func Endpoints() (paths []string) {
	for _, e := range codec.Endpoints() {
		paths = append(paths, e.Path)
	}
	for _, u := range codec.Unaries() {
		if u.Method == http.MethodPost {
			paths = append(paths, u.Path)
		}
	}
	return paths
}

// endpoint returns the endpoint with a path, nil if there is none.
func (b *Batches) endpoint(path string) *endpoint {
	for _, e := range codec.Endpoints() {
		if e.Path == path {
			return &endpoint{e.Error, func(ctx context.Context, id string, body []byte, clock time.Time) ([]byte, error) {
				return b.generate(ctx, e.Codec, id, body, clock)
			}}
		}
	}
	for _, u := range codec.Unaries() {
		if u.Path == path && u.Method == http.MethodPost {
			return &endpoint{u.Error, func(ctx context.Context, _ string, body []byte, _ time.Time) ([]byte, error) {
				return u.Run(ctx, idle{b.opts.Engine}, body)
			}}
		}
	}
	return nil
}

// generate runs a line as a call with the lowest priority. Its ID, its seed and its clock come from the batch and the line, so that it has
// the same answer whenever it runs.
func (b *Batches) generate(ctx context.Context, format call.Codec, id string, body []byte, clock time.Time) ([]byte, error) {
	c, err := format.Decode(body, api.Visible(ctx, b.opts.Engine.Models()), clock)
	if err != nil {
		return nil, err
	}
	c.Rename(id)
	c.Stream, c.Resume, c.Named = false, call.ResumeNo, false
	for _, r := range c.Requests {
		r.ID += "." + nuid.Next() // an earlier attempt may still be ending
		r.Priority = api.PriorityIdle
		if !r.Deadline.IsZero() { // the timeout counts from the line's start, not from the batch's
			r.Deadline = time.Now().Add(r.Deadline.Sub(clock))
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	answer, err := b.opts.Calls.Run(ctx, c)
	if err != nil {
		return nil, err
	}
	defer answer.Close()
	result, err := call.Collect(ctx, c, answer.Events(ctx))
	if err != nil {
		return nil, err
	}
	return format.Encode(c, result, b.opts.Fingerprint)
}

// callerOf returns the holder of the key that a batch runs with, nil without API keys.
func (b *Batches) callerOf(r *Record) (api.Caller, error) {
	if b.opts.Keys == nil {
		return nil, nil
	}
	if c := b.opts.Keys.Caller(r.Key); c != nil && c.TenantName() == r.Tenant {
		return c, nil
	}
	return nil, errKeyGone
}

var errKeyGone = &api.Error{Code: api.CodeUnauthorized, Reason: "invalid_api_key",
	Message: "the API key that created the batch is no longer valid"}

var errLost = errors.New("batch: another gateway keeps the batch")
