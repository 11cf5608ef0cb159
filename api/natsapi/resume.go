package natsapi

import (
	"context"
	"encoding/json"
	"time"

	"github.com/millrace/millrace/api"
)

// cancelWait is for a cancelled call to end, wherever it runs.
const cancelWait = 10 * time.Second

// resumePoint is where a client wants to go on.
type resumePoint struct {
	ID    string `json:"id"`
	After uint64 `json:"after"` // the last Millrace-Seq it has
}

func decodeResumePoint(body []byte) (resumePoint, error) {
	var p resumePoint
	if err := json.Unmarshal(body, &p); err != nil {
		return p, api.Invalid("", `expected {"id": a stream's id, "after": the last Millrace-Seq}: %v`, err)
	}
	return p, nil
}

// resumeStream serves a resumable call's answer behind the message that a client has.
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
