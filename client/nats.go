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

// Headers of the server's messages, as docs/api.md describes them.
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

// silence is how long a stream that cannot be resumed may be silent, unless it is set.
const silence = time.Minute

// silenceLimit returns how long a stream may be silent: the caller's setting, or three ping intervals
// (in seconds) of a stream with an id, which can be resumed, and 1 s at least, or a minute.
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

// NATSOption is a setting of a client over NATS.
type NATSOption func(*natsTransport) error

// WithSilence sets how long a stream may be silent, without chunks and pings, before
// the client considers it lost. The default is that of WithHTTPSilence.
func WithSilence(d time.Duration) NATSOption {
	return func(t *natsTransport) error {
		if d <= 0 {
			return fmt.Errorf("millrace: found silence %s, expected a positive duration", d)
		}
		t.silence = d
		return nil
	}
}

// WithNATSResume sets how long the client tries to resume a lost stream, 30 s by
// default. With 0 it never does.
func WithNATSResume(d time.Duration) NATSOption {
	return func(t *natsTransport) error {
		t.resumeFor = d
		return nil
	}
}

// WithNATSHeader adds a header to every request.
func WithNATSHeader(key, value string) NATSOption {
	return func(t *natsTransport) error {
		t.header[key] = []string{value}
		return nil
	}
}

// NewNATS returns a client over a connection of the caller, which Close does not close.
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

// Settings of a client's own connection. It notices within three pings that its network is cut, and
// reconnects until it is closed.
const (
	reconnectWait = 250 * time.Millisecond
	pingInterval  = 2 * time.Second
	pingsMissed   = 2
)

// DialNATS returns a client over a connection of its own, which Close closes.
func DialNATS(url string, options ...NATSOption) (Client, error) {
	t, err := newNATS(nil, options)
	if err != nil {
		return nil, err
	}
	t.own = true
	t.nc, err = ConnectNATS(url, t.key, append([]nats.Option{nats.Name("millrace client"), nats.MaxReconnects(-1),
		nats.ReconnectWait(reconnectWait),
		nats.PingInterval(pingInterval), nats.MaxPingsOutstanding(pingsMissed)}, t.connect...)...)
	if err != nil {
		return nil, fmt.Errorf("millrace: NATS: %w", err) // without the URL, which may have a password
	}
	return &client{t: t}, nil
}

// natsTransport is the transport over NATS.
type natsTransport struct {
	nc        *nats.Conn
	own       bool          // close closes nc
	connect   []nats.Option // options of an own connection
	key       string        // API key, which is the login of an own connection too; "" for none
	silence   time.Duration // 0: by the server's ping interval
	resumeFor time.Duration
	header    nats.Header // headers of every request
	served    atomic.Bool // a server has answered before
}

func (t *natsTransport) resumes() bool { return t.resumeFor > 0 }

func (t *natsTransport) close() {
	if t.own {
		t.nc.Close()
	}
}

// once retries while no server accepts the request, or while the server that received one without a generation is silent.
func (t *natsTransport) once(ctx context.Context, p path, body []byte) ([]byte, error) {
	tries := -1
	return retry(ctx, t.resumeFor, func() ([]byte, error) {
		tries++
		patience := firstWait(tries, len(body))
		if p.generates || !t.resumes() {
			patience = 0
		}
		return t.call(ctx, p.nats, body, patience)
	}, t.temporary)
}

// call sends a request to any server and returns its answer, which it waits for as long as patience; with 0, as long as
// ctx.
func (t *natsTransport) call(ctx context.Context, operation string, body []byte, patience time.Duration) ([]byte, error) {
	m, err := t.request(ctx, subjects, operation, body)
	if err != nil {
		return nil, err
	}
	send := t.exchange
	if patience > 0 {
		send = func(ctx context.Context, m *nats.Msg) ([]byte, error) { return t.send(ctx, m, patience) }
	}
	answer, err := send(ctx, m)
	if err == nil {
		t.served.Store(true)
	}
	return answer, err
}

// temporary reports whether no server accepted a request, and a later try may succeed: the servers
// are stopping, or reconnect to a NATS server that was restarted. The caller handles servers that
// never answered.
func (t *natsTransport) temporary(err error) bool {
	return stopping(err) || code(err) == codeNobody && t.served.Load() || code(err) == codeNoBody || code(err) == codeFull ||
		errors.Is(err, errSilent)
}

// codeNobody is the client's own code for a subject without subscribers.
const codeNobody = "no_responders"

// natsError returns the error of a NATS call. A subject without subscribers is a 503.
func natsError(err error) error {
	if errors.Is(err, nats.ErrNoResponders) {
		return &Error{Status: http.StatusServiceUnavailable, Code: codeNobody,
			Message: "no server answers on this NATS", RetryAfter: time.Second}
	}
	return fmt.Errorf("millrace: %w", err)
}

// messageError returns the error in a message, or nil.
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
				continue // the end, without a chunk
			}
			if !yield(data, err) || err != nil {
				return
			}
		}
	}
}
