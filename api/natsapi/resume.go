package natsapi

import (
	"context"
	"encoding/json"
	"time"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/call"
)

// cancelWait is the maximum wait for a cancelled call to end, at any gateway.
const cancelWait = 10 * time.Second

// resumePoint is the position at which a client resumes a stream.
type resumePoint struct {
	ID    string `json:"id"`
	After uint64 `json:"after"` // the last Millrace-Seq that the client has
}

func decodeResumePoint(body []byte) (resumePoint, error) {
	var p resumePoint
	if err := json.Unmarshal(body, &p); err != nil {
		return p, api.Invalid("", `expected {"id": a stream's id, "after": the last Millrace-Seq}: %v`, err)
	}
	return p, nil
}

// resumeStream serves the answer to a resumable call after the last message that the client has.
func (s *Service) resumeStream(ctx context.Context, r *reply, body []byte) {
	p, err := decodeResumePoint(body)
	if err != nil {
		r.fail(err)
		return
	}
	answer, err := s.attach(ctx, r, p.ID)
	if err != nil {
		r.failEarly(err, p.After)
		return
	}
	r.skip = p.After
	s.send(ctx, r, answer)
}

// attach returns the answer to a resumable call. It sends pings while it waits: another gateway may have to write the call's log again.
func (s *Service) attach(ctx context.Context, r *reply, id string) (call.Answer, error) {
	type attached struct {
		answer call.Answer
		err    error
	}
	done := make(chan attached, 1)
	go func() {
		answer, err := s.opts.Calls.Attach(ctx, id)
		done <- attached{answer, err}
	}()
	ping := time.NewTicker(s.opts.PingAfter)
	defer ping.Stop()
	for {
		select {
		case a := <-done:
			return a.answer, a.err
		case <-ping.C:
			r.pingEarly()
		}
	}
}

// cancelStream ends a resumable call.
func (s *Service) cancelStream(ctx context.Context, r *reply, body []byte) {
	p, err := decodeResumePoint(body)
	if err == nil {
		err = s.opts.Calls.Cancel(ctx, p.ID)
	}
	if err != nil {
		r.fail(err)
		return
	}
	r.single([]byte("{}"))
}
