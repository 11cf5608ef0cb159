package stored

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/call"
	"github.com/millrace/millrace/api/responses"
	"github.com/millrace/millrace/durable"
	"github.com/millrace/millrace/durable/objects"
)

// ticket is the message of a response. It is in the queue before the response is stored, so that of two responses with one id the second is
// refused.
type ticket struct {
	Tenant   string    `json:"tenant"`
	Key      string    `json:"key,omitempty"`
	ID       string    `json:"id"`
	Creation string    `json:"creation,omitempty"` // of the response
	At       time.Time `json:"at,omitzero"`        // when it was queued
}

func (t *ticket) subject() string { return subject + durable.TenantToken(t.Tenant) + "." + t.ID }

// owns reports whether the response with the creation is the ticket's. An earlier version stores none.
func (t *ticket) owns(creation string) bool { return creation == "" || creation == t.Creation }

// unqueue removes the ticket of a response. Who has it already finds that the response has ended.
func (s *Store) unqueue(ctx context.Context, tenant, id string) {
	s.opts.Work.Purge(context.WithoutCancel(ctx), jetstream.WithPurgeSubject((&ticket{Tenant: tenant, ID: id}).subject())) //nolint:errcheck // as above
}

// fresh reports whether the response may be on its way to the store.
func (t *ticket) fresh() bool { return time.Since(t.At) < 2*storeTime }

// errInUse is the error for another call with the id of a response.
func errInUse() error {
	return &api.Error{Code: http.StatusConflict, Param: "request_id", Reason: "request_id_in_use",
		Message: "request_id: in use by another response, expected a new one"}
}

// repeated returns the answer of the stored response that a call is, if the call was sent before. It returns nil if no response has its id,
// and a 409 if another call has it. The log of a call that streams has its events, if it has not expired: then the call joins it where
// calls run.
func (s *Store) repeated(ctx context.Context, tenant string, c *call.Call, hash string) (call.Answer, error) {
	r, err := s.load(ctx, tenant, responses.IDOf(c))
	if missing := (*api.Error)(nil); errors.As(err, &missing) && missing.Code == api.CodeNotFound {
		return nil, nil
	}
	switch {
	case err != nil:
		return nil, err
	case r.Hash != hash && (r.Hash != "" || responses.Wanted(c).Background):
		return nil, errInUse()
	case !responses.Wanted(c).Background && (c.Stream || r.Hash == ""):
		return nil, nil
	}
	return &background{s: s, call: c, body: r.Response}, nil
}

// enqueue puts a response into the queue and stores it.
func (s *Store) enqueue(ctx context.Context, tenant string, c *call.Call, encoded []byte, hash string) (call.Answer, error) {
	r, err := pending(c, queued)
	if err != nil {
		return nil, err
	}
	t := ticket{Tenant: tenant, ID: responses.IDOf(c), Creation: nuid.Next(), At: time.Now()}
	r.Call, r.Hash, r.Creation = encoded, hash, t.Creation
	if caller := api.CallerFrom(ctx); caller != nil {
		t.Key = caller.KeyID()
	}
	body, err := json.Marshal(t)
	if err != nil {
		return nil, err
	}
	if a, err := s.queue(ctx, &t, body, c, hash); a != nil || err != nil {
		return a, err
	}
	if err := s.save(ctx, tenant, t.ID, r); err != nil {
		s.unqueue(ctx, tenant, t.ID)
		return nil, err
	}
	return &background{s: s, call: c, body: r.Response}, nil
}

// queue puts the ticket of a call into the queue, unless another request with its id was first: then queue waits until that response is
// stored, and returns its answer.
func (s *Store) queue(ctx context.Context, t *ticket, body []byte, c *call.Call, hash string) (call.Answer, error) {
	const pause = 20 * time.Millisecond
	for end := time.Now().Add(storeTime); ; durable.Pause(ctx, pause, nil) {
		_, err := s.opts.Publish.Publish(ctx, t.subject(), body, jetstream.WithExpectLastSequencePerSubject(0))
		if err != nil && !durable.WrongLast(err) {
			return nil, objects.Unavailable("responses", err)
		}
		queued := err == nil
		if c.Named { // the other response may have been stored, or have ended, since it was searched for
			a, err := s.repeated(ctx, t.Tenant, c, hash)
			if queued && (a != nil || err != nil) {
				s.unqueue(ctx, t.Tenant, t.ID)
			}
			if a != nil || err != nil {
				return a, err
			}
		}
		switch {
		case queued:
			return nil, nil
		case ctx.Err() != nil:
			return nil, api.AsError(ctx.Err())
		case time.Now().After(end):
			return nil, errInUse()
		}
	}
}
