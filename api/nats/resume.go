package natsapi

import (
	"context"
	"encoding/json"
	"time"

	"github.com/millrace/millrace/api"
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
	answer, err := s.opts.Calls.Attach(ctx, p.ID)
	if err != nil {
		r.fail(err)
		return
	}
	r.skip = p.After
	s.send(ctx, r, answer)
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
