package natsapi

import (
	"context"
	"encoding/json"
	"time"

	"github.com/millrace/millrace/api"
)

// cancelWait is for a cancelled call to end, wherever it runs.
const cancelWait = 10 * time.Second

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
	return p, nil
}

// again serves a resumable call's answer behind the message that a client has.
func (s *Service) again(ctx context.Context, r *reply, body []byte) {
	p, err := s.place(body)
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
	p, err := s.place(body)
	if err == nil {
		err = s.opts.Calls.Cancel(ctx, p.ID)
	}
	if err != nil {
		r.fail(err)
		return
	}
	r.whole([]byte("{}"))
}
