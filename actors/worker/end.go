package worker

import (
	"fmt"
	"time"

	"github.com/millrace/millrace/actors/msg"
	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/compute/sched"
)

// end sends the end of a sequence, once.
func (l *loop) end(s *sequence, finish api.Finish, err error) {
	l.sendEnd(s, msg.Token{Finish: finish, Err: err})
}

// lose ends a sequence that another worker may continue.
func (l *loop) lose(s *sequence, err error) {
	l.sendEnd(s, msg.Token{Finish: api.FinishError, Err: err, Lost: true})
}

func (l *loop) sendEnd(s *sequence, t msg.Token) {
	if s.endIsSent {
		return
	}
	l.ended(s, t.Finish, t.Err)
	t.ID, t.Index = -1, s.generated()
	for _, t.Seq = range s.gen.Choices {
		l.outbox.add(s.gen.Detok, t)
	}
}

// ended closes a sequence's entry: its last token is in the outbox. A whole answer is kept for a while, where it can be sent again.
func (l *loop) ended(s *sequence, finish api.Finish, err error) {
	s.endIsSent = true
	if s.guide != nil {
		s.guide.close()
	}
	s.entry.spans.end(s.generated(), finish, err)
	l.inFlight.close(s.gen.Seq)
	whole := finish == api.FinishStop || finish == api.FinishLength
	if whole && s.sampler != nil && s.scored == nil {
		l.inFlight.keep(&ended{entry: s.entry, answered: s.answered(finish), at: time.Now()})
	}
}

// memoryRetry is when a client should try again whose request the machine has no memory for.
const memoryRetry = 5 * time.Second

// ending returns the finish reason and the error that a client gets for the scheduler's reason.
func ending(e sched.End, lacks msg.Denied) (api.Finish, error) {
	switch e.Reason {
	case sched.ReasonStop:
		return api.FinishStop, nil
	case sched.ReasonLength:
		return api.FinishLength, nil
	case sched.ReasonCancelled:
		return api.FinishCancelled, nil
	case sched.ReasonDeadline:
		return api.FinishError, &api.Error{Code: api.CodeTimeout,
			Message: fmt.Sprintf("the request's deadline passed after %d tokens", e.Generated)}
	case sched.ReasonQueueFull:
		return api.FinishError, &api.Error{Code: api.CodeOverloaded, RetryAfter: time.Second, Message: "the queue is full: try again later"}
	case sched.ReasonNoMemory:
		return api.FinishError, &api.Error{
			Code: api.CodeOverloaded, Reason: "kv_memory_short", RetryAfter: memoryRetry,
			Message: fmt.Sprintf("the request needs KV memory for %d slabs, and the machine has it for %d now: try again later, or with a smaller max_tokens", lacks.Need, lacks.Free),
		}
	case sched.ReasonTooLong, sched.ReasonInvalid:
		return api.FinishError, api.Invalid("max_tokens", "prompt and max_tokens do not fit into the model's context or the KV memory (%s)",
			e.Reason)
	default:
		return api.FinishError, &api.Error{Code: api.CodeInternal, Message: "the sequence ended: " + e.Reason.String()}
	}
}
