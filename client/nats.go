package client

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
)

// The headers of the server's messages; see docs/api.md.
const (
	headerSeq    = "Millrace-Seq"
	headerEnd    = "Millrace-End"
	headerCancel = "Millrace-Cancel"
	headerPing   = "Millrace-Ping"
	headerCode   = "Nats-Service-Error-Code"
	subjects     = "millrace.v1."
)

// silence is how long a stream may be silent; the server pings every 15 s.
const silence = time.Minute

// NATSOption changes how NewNATS's client works.
type NATSOption func(*natsTransport) error

// WithSilence sets how long a stream may be silent, pings included, before it
// counts as cut: one minute by default.
func WithSilence(d time.Duration) NATSOption {
	return func(t *natsTransport) error {
		if d <= 0 {
			return fmt.Errorf("millrace: expected a positive silence, found %s", d)
		}
		t.silence = d
		return nil
	}
}

// NewNATS returns a client over a connection, which stays the caller's.
func NewNATS(nc *nats.Conn, options ...NATSOption) (Client, error) {
	t := &natsTransport{nc: nc, silence: silence}
	for _, option := range options {
		if err := option(t); err != nil {
			return nil, err
		}
	}
	return &client{t: t}, nil
}

// DialNATS returns a client over a connection of its own, which Close ends.
func DialNATS(url string, options ...NATSOption) (Client, error) {
	nc, err := nats.Connect(url, nats.Name("millrace client"))
	if err != nil {
		return nil, fmt.Errorf("millrace: %s: %w", url, err)
	}
	c, err := NewNATS(nc, append(options, func(t *natsTransport) error { t.own = true; return nil })...)
	if err != nil {
		nc.Close()
	}
	return c, err
}

type natsTransport struct {
	nc      *nats.Conn
	own     bool
	silence time.Duration
}

func (t *natsTransport) close() {
	if t.own {
		t.nc.Close()
	}
}

// fits refuses what the NATS server would close the connection for.
func (t *natsTransport) fits(body []byte) error {
	if limit := t.nc.MaxPayload(); int64(len(body)) > limit {
		return fmt.Errorf("%w: %d bytes, a NATS message at most %d", ErrTooLarge, len(body), limit)
	}
	return nil
}

func (t *natsTransport) once(ctx context.Context, p path, body []byte) ([]byte, error) {
	if err := t.fits(body); err != nil {
		return nil, err
	}
	m, err := t.nc.RequestWithContext(ctx, subjects+p.nats, body)
	if err != nil {
		return nil, natsError(err)
	}
	if e := messageError(m); e != nil {
		return nil, e
	}
	return m.Data, nil
}

// natsError: nobody serves the subject, which is as good as a 503.
func natsError(err error) error {
	if errors.Is(err, nats.ErrNoResponders) {
		return &Error{Status: http.StatusServiceUnavailable, Code: "no_responders",
			Message: "no server answers on this NATS", RetryAfter: time.Second}
	}
	return fmt.Errorf("millrace: %w", err)
}

// messageError is the error that a message carries; nil when it carries none.
func messageError(m *nats.Msg) *Error {
	code := m.Header.Get(headerCode)
	if code == "" {
		return nil
	}
	status, err := strconv.Atoi(code)
	if err != nil {
		status = http.StatusInternalServerError
	}
	return parseError(status, m.Data, m.Header.Get("Retry-After"))
}

func (t *natsTransport) stream(ctx context.Context, p path, body []byte) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		if err := t.fits(body); err != nil {
			yield(nil, err)
			return
		}
		s := &natsStream{t: t}
		if err := s.open(subjects+p.nats, body); err != nil {
			yield(nil, natsError(err))
			return
		}
		defer s.close()
		for !s.ended {
			data, err := s.next(ctx)
			if err == nil && len(data) == 0 {
				continue // an end without a chunk
			}
			if !yield(data, err) || err != nil {
				return
			}
		}
	}
}

// natsStream reads the messages of one answer.
type natsStream struct {
	t      *natsTransport
	sub    *nats.Subscription
	cancel string // where a message cancels; known from the first message on
	seq    uint64 // of the last message
	ended  bool
}

func (s *natsStream) open(subject string, body []byte) (err error) {
	inbox := s.t.nc.NewRespInbox()
	if s.sub, err = s.t.nc.SubscribeSync(inbox); err != nil {
		return err
	}
	if err := s.t.nc.PublishRequest(subject, inbox, body); err != nil {
		s.close()
		return err
	}
	return nil
}

// close cancels a stream that has not ended. Before the first message it only
// stops listening, which the server notices.
func (s *natsStream) close() {
	if !s.ended && s.cancel != "" {
		s.t.nc.Publish(s.cancel, nil) //nolint:errcheck // the connection is gone, and with it our interest
	}
	s.sub.Unsubscribe() //nolint:errcheck // as above
}

// next returns the next chunk and checks that none is missing before it.
func (s *natsStream) next(ctx context.Context) ([]byte, error) {
	for {
		m, err := s.receive(ctx)
		if err != nil {
			return nil, err
		}
		if m.Header.Get(headerPing) != "" {
			continue
		}
		if err := s.number(m); err != nil {
			return nil, err
		}
		if cancel := m.Header.Get(headerCancel); cancel != "" {
			s.cancel = cancel
		}
		if e := messageError(m); e != nil {
			s.ended = true
			return nil, e
		}
		s.ended = m.Header.Get(headerEnd) != ""
		return m.Data, nil
	}
}

func (s *natsStream) receive(ctx context.Context) (*nats.Msg, error) {
	timed, cancel := context.WithTimeout(ctx, s.t.silence)
	defer cancel()
	m, err := s.sub.NextMsgWithContext(timed)
	switch {
	case err == nil:
		return m, nil
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case errors.Is(err, nats.ErrNoResponders):
		return nil, natsError(err)
	case errors.Is(err, nats.ErrSlowConsumer):
		return nil, fmt.Errorf("%w after message %d: %w", ErrGap, s.seq, err)
	case errors.Is(err, context.DeadlineExceeded):
		return nil, fmt.Errorf("%w: silent for %s after message %d", ErrCut, s.t.silence, s.seq)
	}
	return nil, fmt.Errorf("%w after message %d: %w", ErrCut, s.seq, err)
}

// number checks the message's number. A refusal before the stream began has none.
func (s *natsStream) number(m *nats.Msg) error {
	text := m.Header.Get(headerSeq)
	if text == "" && s.seq == 0 && m.Header.Get(headerCode) != "" {
		return nil
	}
	seq, err := strconv.ParseUint(text, 10, 64)
	if err != nil || seq != s.seq+1 {
		return fmt.Errorf("%w: message %q after %d", ErrGap, text, s.seq)
	}
	s.seq = seq
	return nil
}
