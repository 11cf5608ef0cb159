package client

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
)

// The headers of the server's messages; see docs/api.md.
const (
	headerSeq      = "Millrace-Seq"
	headerEnd      = "Millrace-End"
	headerCancel   = "Millrace-Cancel"
	headerPing     = "Millrace-Ping"
	headerID       = "Millrace-Id"
	headerInterval = "Millrace-Ping-Interval"
	headerBody     = "Millrace-Body"
	headerPart     = "Millrace-Part"
	headerAccept   = "Millrace-Accept"
	headerCode     = "Nats-Service-Error-Code"
	subjects       = "millrace.v1."
)

// silence is how long a stream may be silent where nothing else is said.
const silence = time.Minute

// silenceLimit is how long a stream may be silent: what the caller set, three times as long as
// a server needs for a sign of life where the stream can go on at another one, or a minute.
func silenceLimit(set time.Duration, id, interval string) time.Duration {
	const pings, least = 3, time.Second
	if set > 0 {
		return set
	}
	seconds, err := strconv.ParseFloat(interval, 64)
	if id == "" || err != nil || seconds <= 0 {
		return silence
	}
	return max(time.Duration(pings*seconds*float64(time.Second)), least)
}

// NATSOption changes how NewNATS's client works.
type NATSOption func(*natsTransport) error

// WithSilence sets how long a stream may be silent, pings included, before it
// counts as cut: by default as WithHTTPSilence has it.
func WithSilence(d time.Duration) NATSOption {
	return func(t *natsTransport) error {
		if d <= 0 {
			return fmt.Errorf("millrace: expected a positive silence, found %s", d)
		}
		t.silence = d
		return nil
	}
}

// WithNATSResume sets how long the client tries to go on with a stream that it
// lost: 30 s by default, 0 for never.
func WithNATSResume(d time.Duration) NATSOption {
	return func(t *natsTransport) error {
		t.resumeFor = d
		return nil
	}
}

// WithNATSHeader sends a header with every request.
func WithNATSHeader(key, value string) NATSOption {
	return func(t *natsTransport) error {
		t.header[key] = []string{value}
		return nil
	}
}

// NewNATS returns a client over a connection, which stays the caller's.
func NewNATS(nc *nats.Conn, options ...NATSOption) (Client, error) {
	t, err := newNATS(nc, options)
	if err != nil {
		return nil, err
	}
	return &client{t: t}, nil
}

func newNATS(nc *nats.Conn, options []NATSOption) (*natsTransport, error) {
	t := &natsTransport{nc: nc, resumeFor: resumeFor, header: nats.Header{headerAccept: {"parts"}}}
	for _, option := range options {
		if err := option(t); err != nil {
			return nil, err
		}
	}
	return t, nil
}

// Of a connection of our own: one that is cut without a word is noticed within three pings,
// and made again for as long as somebody waits.
const (
	reconnectWait = 250 * time.Millisecond
	pingInterval  = 2 * time.Second
	pingsMissed   = 2
)

// DialNATS returns a client over a connection of its own, which Close ends.
func DialNATS(url string, options ...NATSOption) (Client, error) {
	t, err := newNATS(nil, options)
	if err != nil {
		return nil, err
	}
	t.own = true
	t.nc, err = ConnectNATS(url, t.key, append([]nats.Option{nats.Name("millrace client"), nats.MaxReconnects(-1), nats.ReconnectWait(reconnectWait),
		nats.PingInterval(pingInterval), nats.MaxPingsOutstanding(pingsMissed)}, t.connect...)...)
	if err != nil {
		return nil, fmt.Errorf("millrace: NATS: %w", err) // without the URL, which may have a password
	}
	return &client{t: t}, nil
}

type natsTransport struct {
	nc        *nats.Conn
	own       bool
	connect   []nats.Option // of an own connection
	key       string        // an API key: its login, too
	silence   time.Duration // 0: what the server says
	resumeFor time.Duration
	header    nats.Header // of every request
	served    atomic.Bool // a server has answered
}

func (t *natsTransport) resumes() bool { return t.resumeFor > 0 }

func (t *natsTransport) close() {
	if t.own {
		t.nc.Close()
	}
}

// once asks again where no server took the request.
func (t *natsTransport) once(ctx context.Context, p path, body []byte) ([]byte, error) {
	return retry(ctx, t.resumeFor, func() ([]byte, error) { return t.call(ctx, p.nats, body) }, t.temporary)
}

func (t *natsTransport) call(ctx context.Context, operation string, body []byte) ([]byte, error) {
	m, err := t.request(ctx, subjects, operation, body)
	if err != nil {
		return nil, err
	}
	answer, err := t.exchange(ctx, m)
	if err == nil {
		t.served.Store(true)
	}
	return answer, err
}

// temporary says whether no server took a request, and one soon may: those that were there
// are stopping, or come back to a NATS server that was restarted. Servers that were
// never there are the caller's to handle.
func (t *natsTransport) temporary(err error) bool {
	return stopping(err) || code(err) == codeNobody && t.served.Load() || code(err) == codeNoBody || code(err) == codeFull || errors.Is(err, errSilent)
}

const codeNobody = "no_responders"

// natsError: nobody serves the subject, which is as good as a 503.
func natsError(err error) error {
	if errors.Is(err, nats.ErrNoResponders) {
		return &Error{Status: http.StatusServiceUnavailable, Code: codeNobody,
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
		s := &natsStream{t: t, operation: p.nats, body: body, limit: silenceLimit(t.silence, "", "")}
		s.openErr = s.open(ctx, subjects, s.operation, body)
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
