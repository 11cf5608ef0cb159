package stored

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/call"
	"github.com/millrace/millrace/api/responses"
	"github.com/millrace/millrace/durable"
	"github.com/millrace/millrace/durable/batch"
	"github.com/millrace/millrace/durable/callpb"
)

// A response in the background is a message of the work queue. A gateway takes it and runs its call with a log, so that another gateway
// that gets the message later continues the call where the log ends.

const (
	subject  = batch.WorkSubject + "response."
	consumer = "responses"
	most     = 16 // that run in one gateway
)

// pending returns the record of a call without an answer.
func pending(c *call.Call, status string) (*record, error) {
	body, err := responses.EncodeStatus(c, status, nil)
	if err != nil {
		return nil, err
	}
	items, err := responses.InputItems(c)
	return &record{Status: status, Response: body, Items: items}, err
}

// background is the answer of a call that runs in the background. Its client may leave.
type background struct {
	s    *Store
	call *call.Call
	body []byte
}

func (b *background) Call() *call.Call { return b.call }

func (b *background) Resumable() bool { return false }

// Body implements call.Bodied.
func (b *background) Body() []byte { return b.body }

func (b *background) Cancel(ctx context.Context) error {
	_, err := b.s.CancelResponse(ctx, responses.IDOf(b.call))
	return err
}

func (b *background) Close() {}

// Events returns the events of the call once a gateway runs it.
func (b *background) Events(ctx context.Context) call.EventStream {
	out := call.NewQueue(1)
	go func() {
		defer out.Close()
		a, err := b.s.attach(ctx, responses.IDOf(b.call))
		if err != nil {
			out.Send(ctx, api.Event{Seq: 1, Finish: api.FinishError, Err: err, Done: true})
			return
		}
		defer a.Close()
		for ev := range call.All(ctx, a.Events(ctx)) {
			if !out.Send(ctx, ev) {
				return
			}
		}
	}()
	return out
}

// Follow returns the answer of a response in the background of the caller, from its first event. An error is an *api.Error: 404 for an
// unknown response, 410 if its events are gone.
func (s *Store) Follow(ctx context.Context, id string) (call.Answer, error) {
	r, err := s.load(ctx, api.TenantFrom(ctx), id)
	if err != nil {
		return nil, err
	}
	if !r.runs() {
		return s.attach(ctx, id)
	}
	c, err := callpb.Decode(responses.CallID(id), r.Call)
	if err != nil {
		return nil, err
	}
	return &background{s: s, call: c, body: r.Response}, nil
}

// attach is Follow for a response that a gateway runs. It waits until one does.
func (s *Store) attach(ctx context.Context, id string) (call.Answer, error) {
	for ctx.Err() == nil {
		changed, stop := s.opts.Objects.Changed(api.TenantFrom(ctx), id)
		a, err := s.attachOnce(ctx, id)
		if a == nil && err == nil {
			const late = time.Second // the notice of a change may be lost
			durable.Pause(ctx, late, changed)
		}
		stop()
		if a != nil || err != nil {
			return a, err
		}
	}
	return nil, api.AsError(ctx.Err())
}

// attachOnce returns nil if nobody runs the response yet.
func (s *Store) attachOnce(ctx context.Context, id string) (call.Answer, error) {
	status, _, err := s.status(ctx, api.TenantFrom(ctx), id)
	if err != nil {
		return nil, err
	}
	if status != queued { // else nobody runs it, and the search for its log would delay who does
		a, err := s.opts.Calls.Attach(ctx, responses.CallID(id))
		var missing *api.Error
		if err == nil || !errors.As(err, &missing) || missing.Code != api.CodeNotFound {
			return a, err
		}
	}
	if !runs(status) {
		return nil, &api.Error{Code: http.StatusGone, Reason: "stream_expired",
			Message: "the stream of response " + id + " has expired: retrieve the response without stream"}
	}
	return nil, nil
}

// CancelResponse ends a response in the background of the caller, and returns its body. It does not change one that has ended.
//
// A mark of the cancellation is stored first. Who runs the response reads the mark after each change of the record, and cancels the
// response again if the change has undone it.
func (s *Store) CancelResponse(ctx context.Context, id string) ([]byte, error) {
	tenant := api.TenantFrom(ctx)
	r, err := s.load(ctx, tenant, id)
	if err != nil {
		return nil, err
	}
	if !r.runs() {
		var of struct {
			Background bool `json:"background"`
		}
		if json.Unmarshal(r.Response, &of) == nil && !of.Background {
			return nil, errNotBackground(id)
		}
		return r.Response, nil
	}
	if _, err := s.opts.Objects.PutFree(ctx, tenant, markOf(id, r.Creation), nil, time.Time{}, strings.NewReader("cancelled")); err != nil {
		return nil, err
	}
	if r, err = s.load(ctx, tenant, id); err != nil {
		return nil, err
	}
	if !r.runs() { // it has just ended
		return r.Response, nil
	}
	begun := r.Status == inProgress
	if r, err = s.cancelled(ctx, tenant, id, r); err != nil {
		return nil, err
	}
	s.unqueue(ctx, tenant, id)
	if begun { // else who takes it reads that it is cancelled
		s.opts.Calls.Cancel(ctx, responses.CallID(id)) //nolint:errcheck // it may have ended
	}
	return r.Response, nil
}

// markOf returns the name of the mark that a response was cancelled. No response has such an ID. A later response with the same id has
// another creation.
func markOf(id, creation string) string {
	return strings.TrimSuffix("cancelled-"+id+"-"+creation, "-") // an earlier version has no creation
}

// marked reports whether a response was cancelled.
func (s *Store) marked(ctx context.Context, tenant, id, creation string) (bool, error) {
	_, err := s.opts.Objects.Info(ctx, tenant, markOf(id, creation))
	var missing *api.Error
	if errors.As(err, &missing) && missing.Code == api.CodeNotFound {
		return false, nil
	}
	return err == nil, err
}

// cancelled stores that a response with the record was cancelled.
func (s *Store) cancelled(ctx context.Context, tenant, id string, was *record) (*record, error) {
	c, err := callpb.Decode(responses.CallID(id), was.Call)
	if err != nil {
		return nil, err
	}
	r, err := pending(c, cancelled)
	if err != nil {
		return nil, err
	}
	r.Creation, r.Hash = was.Creation, was.Hash
	return r, s.save(ctx, tenant, id, r)
}

// work takes responses from the queue until ctx ends.
func (s *Store) work(ctx context.Context) {
	places := make(chan struct{}, most)
	for ctx.Err() == nil {
		if s.opts.Ready() != nil { // others may be
			durable.Pause(ctx, time.Second, nil)
			continue
		}
		err := s.takeAll(ctx, places)
		if ctx.Err() == nil {
			s.opts.Logger.Debug().Err(err).Msg("stored: cannot take responses from the queue")
		}
		durable.Pause(ctx, time.Second, nil)
	}
}

func (s *Store) takeAll(ctx context.Context, places chan struct{}) error {
	c, err := s.opts.Work.CreateOrUpdateConsumer(ctx, jetstream.ConsumerConfig{
		Durable: consumer, FilterSubject: subject + ">", AckPolicy: jetstream.AckExplicitPolicy, AckWait: s.opts.Lease,
	})
	if err != nil {
		return err
	}
	for s.opts.Ready() == nil {
		select {
		case places <- struct{}{}:
		case <-ctx.Done():
			return ctx.Err()
		}
		m, err := next(ctx, c)
		if m == nil {
			<-places
			if err != nil {
				return err
			}
			continue
		}
		s.tasks.Go(func() {
			defer func() { <-places }()
			s.handle(ctx, m)
		})
	}
	return nil
}

// next returns the next message, nil if there is none for some time.
func next(ctx context.Context, c jetstream.Consumer) (jetstream.Msg, error) {
	const wait = 2 * time.Second
	got, err := c.Fetch(1, jetstream.FetchMaxWait(wait))
	if err != nil {
		return nil, err
	}
	select {
	case m := <-got.Messages():
		return m, got.Error()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// handle runs a response. Its message comes again if this gateway dies or stops first.
func (s *Store) handle(ctx context.Context, m jetstream.Msg) {
	var t ticket
	if json.Unmarshal(m.Data(), &t) != nil {
		m.Term() //nolint:errcheck // not ours
		return
	}
	running, stop := context.WithCancel(ctx)
	renewed := make(chan struct{})
	go func() {
		defer close(renewed)
		const renewals = 3
		tick := time.NewTicker(s.opts.Lease / renewals)
		defer tick.Stop()
		for {
			select {
			case <-running.Done():
				return
			case <-tick.C:
				m.InProgress() //nolint:errcheck // the next one may arrive
			}
		}
	}()
	done := s.run(running, &t)
	stop()
	<-renewed
	if done {
		m.Ack() //nolint:errcheck // else it comes again, and the response has ended
		return
	}
	const again = 100 * time.Millisecond // for a response that is not stored yet
	m.NakWithDelay(again)                //nolint:errcheck // else it comes again later
}

// run runs a response to its end and stores it. It returns false if another attempt has to do so.
func (s *Store) run(ctx context.Context, t *ticket) (done bool) {
	r, err := s.load(ctx, t.Tenant, t.ID)
	var missing *api.Error
	if errors.As(err, &missing) && missing.Code == api.CodeNotFound {
		return !t.fresh() // deleted, or not stored yet
	}
	if err != nil || !r.runs() {
		return err == nil
	}
	if !t.owns(r.Creation) {
		return !t.fresh() // the id was used again, or a deleted one is not replaced yet
	}
	if s.opts.Keys != nil {
		caller := s.opts.Keys.Caller(t.Key)
		if caller == nil || caller.TenantName() != t.Tenant {
			return s.fail(ctx, t, r, &api.Error{Code: api.CodeUnauthorized, Reason: "invalid_api_key",
				Message: "the API key that created the response is no longer valid"})
		}
		ctx = api.WithCaller(ctx, caller)
	}
	const longest = 5 * time.Second
	for wait := 100 * time.Millisecond; ; wait = min(2*wait, longest) {
		err := s.attempt(ctx, t, r)
		if err == nil {
			return true
		}
		if ctx.Err() != nil {
			return false
		}
		refused := api.AsError(err)
		if refused.Code != api.CodeOverloaded && refused.Code != api.CodeUnavailable {
			return s.fail(ctx, t, r, refused)
		}
		if status, creation, err := s.status(ctx, t.Tenant, t.ID); err == nil && (!runs(status) || !t.owns(creation)) ||
			err != nil && api.AsError(err).Code == api.CodeNotFound {
			return true // cancelled or deleted
		}
		durable.Pause(ctx, max(wait, min(refused.RetryAfter, longest)), nil)
	}
}

// attempt runs the call, or joins it where its log exists, and stores the answer unless the response was cancelled.
func (s *Store) attempt(ctx context.Context, t *ticket, r *record) error {
	c, err := callpb.Decode(responses.CallID(t.ID), r.Call)
	if err != nil {
		return err
	}
	c.Named, c.Resume = true, call.ResumeAuto
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	a, err := s.opts.Calls.Run(ctx, c)
	if err != nil {
		return err
	}
	defer a.Close()
	if ended, err := s.begin(ctx, t, c); err != nil || ended {
		return errors.Join(err, a.Cancel(ctx))
	}
	result, err := call.Collect(ctx, c, a.Events(ctx))
	if err != nil {
		return err
	}
	end, err := finishedResult(c, result)
	if err != nil {
		return err
	}
	return s.end(ctx, t, end)
}

// begin notes that a gateway runs the call, whose log exists from here on. It reports whether the response was cancelled or deleted.
func (s *Store) begin(ctx context.Context, t *ticket, c *call.Call) (ended bool, err error) {
	body, err := responses.EncodeStatus(c, inProgress, nil)
	if err != nil {
		return false, err
	}
	return s.change(ctx, t, func(r *record) *record {
		r.Status, r.Response = inProgress, body
		return r
	})
}

// end stores how a response ended, unless it was cancelled or deleted.
func (s *Store) end(ctx context.Context, t *ticket, r *record) error {
	_, err := s.change(ctx, t, func(*record) *record { return r })
	return err
}

// change changes the record of a response that runs. It reports whether the response was cancelled or deleted.
func (s *Store) change(ctx context.Context, t *ticket, f func(*record) *record) (ended bool, err error) {
	r, err := s.load(ctx, t.Tenant, t.ID)
	var missing *api.Error
	switch {
	case errors.As(err, &missing) && missing.Code == api.CodeNotFound, err == nil && (!r.runs() || !t.owns(r.Creation)):
		return true, nil
	case err != nil:
		return false, err
	}
	was := *r
	next := f(r)
	next.Creation, next.Hash = was.Creation, was.Hash
	if err := s.save(ctx, t.Tenant, t.ID, next); err != nil {
		return false, err
	}
	marked, err := s.marked(ctx, t.Tenant, t.ID, t.Creation)
	if err == nil && marked {
		_, err = s.cancelled(ctx, t.Tenant, t.ID, &was)
	}
	return marked, err
}

func (s *Store) fail(ctx context.Context, t *ticket, r *record, e *api.Error) (done bool) {
	c, err := callpb.Decode(responses.CallID(t.ID), r.Call)
	if err != nil {
		return true
	}
	end, err := pending(c, failed)
	if err == nil {
		end.Response, err = responses.EncodeStatus(c, failed, e)
	}
	return err == nil && s.end(ctx, t, end) == nil
}
