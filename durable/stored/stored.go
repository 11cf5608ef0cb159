// Package stored keeps the responses of the Responses API, so that a client can retrieve and continue them, and runs responses in the
// background. It wraps what runs calls. A response is an object of its tenant. It must not know HTTP.
package stored

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/call"
	"github.com/millrace/millrace/api/codec"
	"github.com/millrace/millrace/api/responses"
	"github.com/millrace/millrace/durable"
	"github.com/millrace/millrace/durable/callpb"
	"github.com/millrace/millrace/durable/objects"
)

// off runs calls where no response is stored.
type off struct{ call.Runner }

// Off returns a runner that stores nothing. What needs a stored response is a 400.
func Off(inner call.Runner) call.Runner { return off{inner} }

// Run implements call.Runner.
func (o off) Run(ctx context.Context, c *call.Call) (call.Answer, error) {
	const resend = "found one where no responses are stored (--response-store 0, no JetStream, or a line of a batch), expected none: send the conversation in input"
	switch w := responses.Wanted(c); {
	case w.Previous != "":
		return nil, api.Invalid("previous_response_id", "previous_response_id: %s", resend)
	case w.Background:
		return nil,
			api.Invalid("background",
				"background: found true where no responses are stored (--response-store 0, no JetStream, or a line of a batch), expected false")
	}
	responses.NotStored(c)
	return o.Runner.Run(ctx, c)
}

// Objects are the stored responses. objects.Store implements it.
type Objects interface {
	Info(ctx context.Context, tenant, id string) (objects.Object, error)
	Changed(tenant, id string) (changed <-chan struct{}, stop func())
	PutFree(ctx context.Context, tenant, id string, fields map[string]string, expires time.Time, content io.Reader) (objects.Object, error)
	Get(ctx context.Context, tenant, id string) (objects.Object, io.ReadCloser, error)
	Delete(ctx context.Context, tenant, id string) error
	Reserve(tenant string, size int64) (release func(), err error)
}

// Options are what a Store needs.
type Options struct {
	Logger  zerolog.Logger
	Calls   call.Runner                                // runs the calls
	Forget  func(ctx context.Context, id string) error // removes the log of an ended call; nil: there are no logs
	Keys    durable.Keys
	Objects Objects
	Work    jetstream.Stream    // the queue of responses in the background
	Publish jetstream.Publisher // into it
	Ready   func() error        // nil if calls can run here now
	Lease   time.Duration       // a response runs elsewhere if its gateway gave no sign of life for this time; 0: 30 s
}

// Store runs calls and keeps their responses. It implements call.Runner.
type Store struct {
	opts  Options
	stop  context.CancelFunc
	tasks sync.WaitGroup
	loads chan struct{} // has a value for each record that is being read
}

// mostLoads is the number of records that are read at once. JetStream sends ahead, and closes a connection that does not keep up.
const mostLoads = 2

// New returns a store that also runs responses in the background, until it is closed.
func New(opts Options) *Store {
	if opts.Lease == 0 {
		opts.Lease = 30 * time.Second
	}
	ctx, stop := context.WithCancel(context.Background())
	s := &Store{opts: opts, stop: stop, loads: make(chan struct{}, mostLoads)}
	s.tasks.Go(func() { s.work(ctx) })
	return s
}

// Close stops what runs in the background here. Other gateways continue it.
func (s *Store) Close() {
	s.stop()
	s.tasks.Wait()
}

// record is a stored response.
type record struct {
	Status   string            `json:"status"`
	Creation string            `json:"creation,omitempty"` // of the response, random: an id may be used again after its deletion
	Hash     string            `json:"hash,omitempty"`     // of the call, see callpb.Fingerprint
	Response json.RawMessage   `json:"response"`
	Items    []json.RawMessage `json:"items"`              // of the input
	Messages json.RawMessage   `json:"messages,omitempty"` // the conversation with the answer
	Call     []byte            `json:"call,omitempty"`     // of a response in the background that has not ended
}

// States of a response.
const (
	queued     = "queued"
	inProgress = "in_progress"
	cancelled  = "cancelled"
	failed     = "failed"
)

func (r *record) runs() bool { return runs(r.Status) }

func runs(status string) bool { return status == queued || status == inProgress }

// Fields of an object, which can be read without the record.
const (
	fieldStatus   = "status"
	fieldCreation = "creation"
)

// status returns the status of a response and its creation, without the record.
func (s *Store) status(ctx context.Context, tenant, id string) (status, creation string, err error) {
	o, err := s.opts.Objects.Info(ctx, tenant, id)
	if status = o.Fields[fieldStatus]; err != nil || status != "" {
		return status, o.Fields[fieldCreation], err
	}
	r, err := s.load(ctx, tenant, id) // an earlier version has stored it
	if err != nil {
		return "", "", err
	}
	return r.Status, r.Creation, nil
}

const storeTime = 10 * time.Second

// load reads a response. It tries again if the response was replaced meanwhile.
func (s *Store) load(ctx context.Context, tenant, id string) (r *record, err error) {
	if responses.CallID(id) == "" {
		return nil, &api.Error{Code: api.CodeNotFound, Reason: "response_not_found",
			Message: fmt.Sprintf("no response %s: expected an id that begins with resp_", api.Quote(id))}
	}
	const most = 3
	for range most {
		var missing *api.Error
		if r, err = s.loadOnce(ctx, tenant, id); err == nil || ctx.Err() != nil || errors.As(err, &missing) &&
			missing.Code == api.CodeNotFound {
			break
		}
	}
	return r, err
}

func (s *Store) loadOnce(ctx context.Context, tenant, id string) (*record, error) {
	select {
	case s.loads <- struct{}{}:
		defer func() { <-s.loads }()
	case <-ctx.Done():
		return nil, api.AsError(ctx.Err())
	}
	_, from, err := s.opts.Objects.Get(ctx, tenant, id)
	if err != nil {
		return nil, err
	}
	defer from.Close()
	r := new(record)
	if err := json.NewDecoder(from).Decode(r); err != nil {
		return nil, objects.Unavailable("responses", err)
	}
	return r, nil
}

func (s *Store) save(ctx context.Context, tenant, id string, r *record) error {
	body, err := json.Marshal(r)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeTime)
	defer cancel()
	// Its share was reserved when the response began. A longer answer counts for the next response.
	_, err = s.opts.Objects.PutFree(ctx, tenant, id, map[string]string{fieldStatus: r.Status, fieldCreation: r.Creation}, time.Time{},
		bytes.NewReader(body))
	return err
}

// Run implements call.Runner. It stores the response of a call that wants it, before the client gets its end.
func (s *Store) Run(ctx context.Context, c *call.Call) (call.Answer, error) {
	w, tenant := responses.Wanted(c), api.TenantFrom(ctx)
	if w.Previous != "" {
		if err := s.restore(ctx, tenant, c, w.Previous); err != nil {
			return nil, err
		}
	}
	if !w.Store {
		return s.opts.Calls.Run(ctx, c)
	}
	encoded, err := callpb.Encode(c) // before it runs
	if err != nil {
		return nil, err
	}
	hash, err := callpb.Fingerprint(encoded)
	if err != nil {
		return nil, err
	}
	if c.Named {
		if a, err := s.repeated(ctx, tenant, c, hash); a != nil || err != nil {
			return a, err
		}
	}
	release, err := s.reserve(tenant, c)
	if err != nil {
		return nil, err
	}
	if w.Background {
		defer release()
		return s.enqueue(ctx, tenant, c, encoded, hash)
	}
	a, err := s.opts.Calls.Run(ctx, c)
	if err != nil {
		release()
		return nil, err
	}
	return &answer{Answer: a, s: s, tenant: tenant, hash: hash, release: release}, nil
}

// reserve sets aside what the response of a call needs of its tenant's share before the call runs. It bounds the bytes of the calls that
// run at once.
func (s *Store) reserve(tenant string, c *call.Call) (release func(), err error) {
	r, err := pending(c, inProgress)
	if err != nil {
		return nil, err
	}
	size := len(r.Response)
	for _, item := range r.Items {
		size += len(item)
	}
	for _, q := range c.Requests {
		for i := range q.Messages {
			size += len(q.Messages[i].Content)
		}
	}
	return s.opts.Objects.Reserve(tenant, int64(size))
}

// restore puts the conversation of the previous response before that of a call.
func (s *Store) restore(ctx context.Context, tenant string, c *call.Call, previous string) error {
	r, err := s.load(ctx, tenant, previous)
	if err != nil {
		e := *api.AsError(err)
		if e.Param = "previous_response_id"; e.Code == api.CodeNotFound {
			e.Reason = "previous_response_not_found"
		}
		return &e
	}
	if len(r.Messages) == 0 {
		return api.Invalid("previous_response_id", "previous_response_id: found a response with status %s, expected one with an answer",
			r.Status)
	}
	messages, _, _, err := api.DecodeChat(r.Messages, nil, nil)
	if err != nil {
		return err
	}
	responses.Continue(c, messages)
	return nil
}

// Attach implements call.Runner.
func (s *Store) Attach(ctx context.Context, id string) (call.Answer, error) {
	a, err := s.opts.Calls.Attach(ctx, id)
	if err != nil {
		return nil, err
	}
	if w := responses.Wanted(a.Call()); w.Store && !w.Background { // a response in the background is stored by who runs it
		return &answer{Answer: a, s: s, tenant: api.TenantFrom(ctx), release: func() {}}, nil
	}
	return a, nil
}

// Cancel implements call.Runner.
func (s *Store) Cancel(ctx context.Context, id string) error { return s.opts.Calls.Cancel(ctx, id) }

var _ call.Runner = (*Store)(nil)

// answer is an answer whose response is stored at its end.
type answer struct {
	call.Answer
	s       *Store
	tenant  string
	hash    string // of the call; "" if another gateway began it
	release func() // gives the reservation back
}

// Close implements call.Answer.
func (a *answer) Close() {
	a.Answer.Close()
	a.release()
}

// Events implements call.Answer. The last event waits until the response is stored.
func (a *answer) Events(ctx context.Context) call.EventStream {
	in, out := a.Answer.Events(ctx), call.NewQueue(1)
	go func() {
		defer out.Close()
		var all []api.Event
		for ev := range call.All(ctx, in) {
			if all = append(all, ev); ev.Done && api.Failure(ev) == nil {
				if err := a.s.keep(ctx, a.tenant, a.hash, a.Call(), all); err != nil {
					a.s.opts.Logger.Warn().Err(err).Str("id", a.Call().ID).Msg("stored: could not store a response")
				}
				a.release()
			}
			if !out.Send(ctx, ev) {
				return
			}
		}
	}()
	return out
}

// keep stores the response that the events of a call are.
func (s *Store) keep(ctx context.Context, tenant, hash string, c *call.Call, events []api.Event) error {
	r, err := finished(ctx, c, events)
	if err != nil {
		return err
	}
	r.Hash = hash
	return s.save(ctx, tenant, responses.IDOf(c), r)
}

// finished returns the record of a call with its answer.
func finished(ctx context.Context, c *call.Call, events []api.Event) (*record, error) {
	result, err := call.Collect(context.WithoutCancel(ctx), c, call.EventsOf(events...))
	if err != nil {
		return nil, err
	}
	return finishedResult(c, result)
}

func finishedResult(c *call.Call, result *call.Result) (*record, error) {
	body, err := codec.Of(call.Responses).Encode(c, result, "")
	if err != nil {
		return nil, err
	}
	r := &record{Response: body}
	var status struct {
		Status string `json:"status"`
	}
	if err := json.Unmarshal(body, &status); err != nil {
		return nil, err
	}
	r.Status = status.Status
	if r.Messages, _, _, err = api.EncodeChat(responses.Conversation(c, result), nil, nil); err != nil {
		return nil, err
	}
	r.Items, err = responses.InputItems(c)
	return r, err
}

// Get returns the body of a response of the caller. An error is an *api.Error.
func (s *Store) Get(ctx context.Context, id string) ([]byte, error) {
	r, err := s.load(ctx, api.TenantFrom(ctx), id)
	if err != nil {
		return nil, err
	}
	return r.Response, nil
}

// Items returns the input items of a response of the caller, in their order. An error is an *api.Error.
func (s *Store) Items(ctx context.Context, id string) ([]json.RawMessage, error) {
	r, err := s.load(ctx, api.TenantFrom(ctx), id)
	if err != nil {
		return nil, err
	}
	return r.Items, nil
}

// Delete removes a response of the caller, and frees its id. One that runs in the background is cancelled. An error is an *api.Error.
func (s *Store) Delete(ctx context.Context, id string) error {
	r, err := s.load(ctx, api.TenantFrom(ctx), id)
	if err != nil {
		return err
	}
	if r.runs() {
		if _, err := s.CancelResponse(ctx, id); err != nil {
			return err
		}
	}
	if s.opts.Forget != nil {
		if err := s.opts.Forget(ctx, responses.CallID(id)); err != nil {
			return err
		}
	}
	s.unqueue(ctx, api.TenantFrom(ctx), id)
	return s.opts.Objects.Delete(ctx, api.TenantFrom(ctx), id)
}

// errNotBackground is the error for a response that runs for its own client.
func errNotBackground(id string) error {
	return &api.Error{Code: http.StatusBadRequest, Reason: "not_background",
		Message: fmt.Sprintf("response %q does not run in the background, expected one that does", id)}
}
