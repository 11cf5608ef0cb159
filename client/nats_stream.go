package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
)

// The client probes the server of a resumable stream after a silence of probeFirst. The silence doubles
// with each answer, up to probeMost. An answer takes at most probeWait; for a server that is gone, NATS
// answers at once.
const (
	probeFirst = 100 * time.Millisecond
	probeAgain = 100 * time.Millisecond
	probeMost  = 2 * time.Second
	probeWait  = time.Second
)

// patientTries is the number of tries after which the client considers a server busy, not suspended.
const patientTries = 4

// firstWait bounds the wait for the first message of an answer, which a server sends as soon as it has
// read a body of size bytes. NATS may deliver the request to a suspended server, and the next one too.
// After a few tries the client waits longer for a busy server: each try sends the body again and makes
// it busier.
func firstWait(tries, size int) time.Duration {
	const short, few, long, doublings = 1500 * time.Millisecond, patientTries, 5 * time.Second, 3
	const pace = 1 << 20 // bytes per second that a busy server reads
	reading := time.Duration(size) * time.Second / pace
	if tries < few {
		return short + reading
	}
	return long<<min(tries-few, doublings) + reading
}

// natsStream reads the messages of one answer from any number of servers.
type natsStream struct {
	t         *natsTransport
	operation string
	body      []byte
	sub       *nats.Subscription
	openErr   error         // error of the first open, which read returns
	held      *nats.Msg     // received message, which read returns next
	cancel    string        // subject that cancels the request; "" before the first message
	id        string        // id of a resumable stream; "" for any other
	limit     time.Duration // longest silence
	seq       uint64        // number of the last message; 0 before the first
	ended     bool          // the server has nothing left to cancel
}

// open sends a request to the servers whose subjects begin with to, and subscribes to its answer.
func (s *natsStream) open(ctx context.Context, to, operation string, body []byte) error {
	m, err := s.t.request(ctx, to, operation, body)
	if err != nil {
		return err
	}
	m.Reply = s.t.nc.NewRespInbox()
	if s.sub, err = s.t.nc.SubscribeSync(m.Reply); err != nil {
		return natsError(err)
	}
	if err := s.t.nc.PublishMsg(m); err != nil {
		s.unsubscribe()
		return natsError(err)
	}
	return nil
}

// unsubscribe ends the subscription to the answer, if there is one.
func (s *natsStream) unsubscribe() {
	if s.sub != nil {
		s.sub.Unsubscribe() //nolint:errcheck // it fails on a closed connection, which has no subscriptions
	}
}

// close cancels a stream that has not ended. Before the first message it only
// unsubscribes, which the server notices.
func (s *natsStream) close() {
	if !s.ended && s.cancel != "" {
		s.t.nc.Publish(s.cancel, nil) //nolint:errcheck // as in unsubscribe
	}
	s.unsubscribe()
}

// next returns the next chunk. It resumes a lost stream.
func (s *natsStream) next(ctx context.Context) ([]byte, error) {
	for {
		data, err := s.read(ctx)
		if err == nil || ctx.Err() != nil || !s.t.resumes() || !s.lost(err) {
			return data, err
		}
		s.ended = false
		if err := s.resume(ctx, err); err != nil {
			s.ended = true
			return nil, err
		}
	}
}

// lostNATS reports whether a resumable stream can continue after an error, at this server or another.
func lostNATS(err error) bool {
	return code(err) == codeMoved || code(err) == codeNobody || errors.Is(err, ErrGap) || errors.Is(err, ErrCut)
}

// unanswered reports whether no server has answered yet.
func (s *natsStream) unanswered() bool { return s.id == "" && s.seq == 0 }

// lost reports whether the stream can continue after an error. While it is unanswered, the
// request is sent again: its id makes it the same one.
func (s *natsStream) lost(err error) bool {
	if s.unanswered() {
		return errors.Is(err, ErrCut) || errors.Is(err, ErrGap) || s.t.temporary(err)
	}
	return s.id != "" && lostNATS(err)
}

// resume requests the messages after the last one from any server. It retries temporary
// errors for resumeFor.
func (s *natsStream) resume(ctx context.Context, why error) (err error) {
	operation, body := s.operation, s.body
	if !s.unanswered() {
		operation = "streams.resume"
		if body, err = json.Marshal(struct {
			ID    string `json:"id"`
			After uint64 `json:"after"`
		}{s.id, s.seq}); err != nil {
			return err
		}
	}
	begin, stopping := time.Now(), ""
	for tries := 0; ; tries++ {
		s.unsubscribe()
		at := s.t.gateway(ctx)
		if at == stopping { // it may be the first to answer each time
			at = subjects
		}
		if err = s.open(ctx, at, operation, body); err == nil {
			if err = s.first(ctx, firstWait(tries, len(body))); err == nil {
				return nil
			}
		}
		if code(err) == codeMoved && at != subjects {
			stopping = at
		}
		var said *Error
		final := errors.As(err, &said) && said.Status < http.StatusInternalServerError && said.Status != http.StatusTooManyRequests
		if s.unanswered() {
			final = said != nil && !s.t.temporary(err)
		}
		switch {
		case !final && time.Since(begin) <= s.t.resumeFor:
		case s.unanswered() && said != nil:
			return err // no server accepted the request
		default:
			return fmt.Errorf("%w: %w, after %w", ErrGap, err, why)
		}
		if !sleep(ctx, backoff(tries)) {
			return ctx.Err()
		}
	}
}

// gateway returns the prefix of the subjects of the gateway that answers first. NATS may deliver a request
// for any gateway to one that is suspended. If none answers, it is the prefix for any gateway.
func (t *natsTransport) gateway(ctx context.Context) string {
	const patience = 500 * time.Millisecond
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var a struct{ Subjects string }
	answer, err := t.call(ctx, "gateways", nil, patience)
	if err != nil || json.Unmarshal(answer, &a) != nil || a.Subjects == "" {
		return subjects
	}
	return a.Subjects
}

// first waits for the first message of a server and keeps it for read.
func (s *natsStream) first(ctx context.Context, patience time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, min(s.t.resumeFor, patience))
	defer cancel()
	m, err := s.sub.NextMsgWithContext(ctx)
	if err != nil {
		return natsError(err)
	}
	if e := messageError(m); e != nil && m.Header.Get(headerSeq) == "" {
		return e
	}
	s.held = m
	return nil
}

// read returns the next chunk of the current server. A missing chunk before it is an ErrGap.
func (s *natsStream) read(ctx context.Context) ([]byte, error) {
	for {
		m, err := s.receive(ctx)
		if err != nil {
			return nil, err
		}
		s.t.served.Store(true)
		if cancel := m.Header.Get(headerCancel); cancel != "" {
			s.cancel, s.id = cancel, m.Header.Get(headerID)
			s.limit = silenceLimit(s.t.silence, s.id, m.Header.Get(headerInterval))
		}
		if m.Header.Get(headerPing) != "" {
			continue
		}
		before := s.seq
		if err := s.number(m); err != nil {
			return nil, err
		}
		if e := messageError(m); e != nil {
			s.ended = true
			if e.Code == codeMoved {
				s.seq = before // the notice is not in the log that others read
			}
			return nil, e
		}
		s.ended = m.Header.Get(headerEnd) != ""
		return m.Data, nil
	}
}

// receive waits for a message. It probes the server of a resumable stream, which may have died
// silently. While the connection itself is lost, the silence of the server does not count, for
// resumeFor at most.
func (s *natsStream) receive(ctx context.Context) (*nats.Msg, error) {
	if err := s.openErr; err != nil {
		s.openErr = nil
		return nil, err
	}
	if m := s.held; m != nil {
		s.held = nil
		return m, nil
	}
	start := time.Now()
	begin, unanswered, probe, limit := start, 0, probeFirst, s.limit
	if s.unanswered() && s.t.resumes() {
		limit = min(limit, firstWait(0, len(s.body)))
	}
	for {
		wait := limit - time.Since(begin)
		if s.id != "" {
			wait = min(wait, probe)
		}
		timed, cancel := context.WithTimeout(ctx, max(wait, 0))
		m, err := s.sub.NextMsgWithContext(timed)
		cancel()
		switch {
		case err == nil:
			return m, nil
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case errors.Is(err, nats.ErrNoResponders):
			return nil, natsError(err)
		case errors.Is(err, nats.ErrSlowConsumer):
			return nil, fmt.Errorf("%w after message %d: %w", ErrGap, s.seq, err)
		case !errors.Is(err, context.DeadlineExceeded):
			return nil, fmt.Errorf("%w after message %d: %w", ErrCut, s.seq, err)
		case s.t.nc.IsReconnecting() && time.Since(start) < s.t.resumeFor:
			begin = time.Now()
			continue
		case time.Since(begin) >= limit:
			return nil, fmt.Errorf("%w: silent for %s after message %d", ErrCut, limit, s.seq)
		}
		switch lives, answered := s.probe(ctx); {
		case answered && lives:
			unanswered, begin, probe = 0, time.Now(), min(2*probe, probeMost)
		case answered, unanswered > 0:
			if m, err := s.sub.NextMsg(time.Millisecond); err == nil {
				return m, nil // sent before the answer to the probe, perhaps the last message
			}
			return nil, fmt.Errorf("%w: the server is gone after message %d", ErrCut, s.seq)
		default:
			unanswered++
		}
	}
}

// probe requests from the server whether it still serves the stream, every probeAgain: NATS delivers a request
// to a server that has just died until it knows that. answered is false if no answer came within probeWait.
func (s *natsStream) probe(ctx context.Context) (lives, answered bool) {
	ctx, cancel := context.WithTimeout(ctx, probeWait)
	defer cancel()
	m := nats.NewMsg(s.cancel)
	m.Header.Set(headerPing, "1")
	m.Reply = s.t.nc.NewRespInbox()
	sub, err := s.t.nc.SubscribeSync(m.Reply)
	if err != nil {
		return false, false
	}
	defer sub.Unsubscribe() //nolint:errcheck // as in unsubscribe
	for ctx.Err() == nil && s.t.nc.PublishMsg(m) == nil {
		once, cancel := context.WithTimeout(ctx, probeAgain)
		answer, err := sub.NextMsgWithContext(once)
		cancel()
		switch {
		case err == nil:
			return answer.Header.Get(headerEnd) == "", true
		case errors.Is(err, nats.ErrNoResponders):
			return false, true
		case !errors.Is(err, context.DeadlineExceeded):
			return false, false
		}
	}
	return false, false
}

// number checks the number of a message. A refusal before the first chunk has none.
func (s *natsStream) number(m *nats.Msg) error {
	text := m.Header.Get(headerSeq)
	if text == "" && s.seq == 0 && m.Header.Get(headerCode) != "" {
		return nil
	}
	seq, err := strconv.ParseUint(text, 10, 64)
	if err != nil || seq != s.seq+1 {
		return fmt.Errorf("%w: found message %q, expected %d", ErrGap, text, s.seq+1)
	}
	s.seq = seq
	return nil
}
