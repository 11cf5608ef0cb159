package natsapi

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/call"
	"github.com/millrace/millrace/durable"
)

// cancelWait is for a cancelled call to end, wherever it runs.
const cancelWait = 10 * time.Second

// resumable runs a call whose client may stop listening and come back.
func (s *Service) resumable(ctx context.Context, r *reply, c *call.Call, body []byte) {
	reader, err := s.opts.Resume.Start(ctx, c, body)
	if errors.Is(err, durable.ErrNoRoom) {
		s.run(ctx, r, c)
		return
	}
	if err != nil {
		r.fail(err)
		return
	}
	s.follow(ctx, r, reader)
}

// follow sends what a reader of a resumable call reads. A client that is gone
// leaves the call running for a while; one that cancels ends it.
func (s *Service) follow(ctx context.Context, r *reply, reader *durable.Reader) {
	defer reader.Close()
	c := reader.Call()
	ctx, subject, forget := s.cancellable(ctx, errAway)
	defer forget()
	r.callID, r.resumable, r.interval = c.ID, true, s.opts.PingAfter
	s.answer(ctx, r, subject, c, reader.Events(ctx))
	if errors.Is(context.Cause(ctx), errCancelled) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cancelWait)
		defer cancel()
		reader.Cancel(ctx) //nolint:errcheck // it ends without a reader, too
	}
}

// place is where a client wants to go on.
type place struct {
	ID    string `json:"id"`
	After uint64 `json:"after"` // the last Millrace-Seq it has
}

func (s *Service) place(body []byte) (place, error) {
	var p place
	if err := json.Unmarshal(body, &p); err != nil {
		return p, api.Invalid("", `expected {"id": a stream's id, "after": the last Millrace-Seq}: %v`, err)
	}
	if s.opts.Resume == nil {
		return p, &api.Error{Code: api.CodeNotFound, Reason: "stream_not_found",
			Message: "streams cannot be resumed on this server (--stream-resume, JetStream)"}
	}
	return p, nil
}

// again serves a resumable call's answer behind the message that a client has.
func (s *Service) again(ctx context.Context, r *reply, body []byte) {
	p, err := s.place(body)
	if err != nil {
		r.fail(err)
		return
	}
	reader, err := s.opts.Resume.Attach(ctx, p.ID)
	if err != nil {
		r.fail(err)
		return
	}
	r.skip = p.After
	s.follow(ctx, r, reader)
}

// cancelStream ends a resumable call.
func (s *Service) cancelStream(ctx context.Context, r *reply, body []byte) {
	p, err := s.place(body)
	if err == nil {
		err = s.opts.Resume.Cancel(ctx, p.ID)
	}
	if err != nil {
		r.fail(err)
		return
	}
	r.whole([]byte("{}"))
}
