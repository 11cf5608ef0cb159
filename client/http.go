package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"
)

// HTTPOption is a setting of a client over HTTP.
type HTTPOption func(*httpTransport) error

// WithHTTPClient makes the client send its requests through c. c must not have a
// Timeout, which would end long streams.
func WithHTTPClient(c *http.Client) HTTPOption {
	return func(t *httpTransport) error {
		if c == nil || c.Timeout != 0 {
			return fmt.Errorf("millrace: found no http.Client, or one with a Timeout: expected one without")
		}
		t.client = c
		return nil
	}
}

// WithHeader adds a header to every request.
func WithHeader(key, value string) HTTPOption {
	return func(t *httpTransport) error {
		t.header.Set(key, value)
		return nil
	}
}

// WithServers adds the base addresses of more servers. Each request goes to the server
// that answered last, and to the next one if that server does not serve it.
func WithServers(bases ...string) HTTPOption {
	return func(t *httpTransport) error {
		for _, base := range bases {
			if err := t.add(base); err != nil {
				return err
			}
		}
		return nil
	}
}

// WithHTTPResume sets how long the client tries to resume a lost stream, 30 s by
// default. With 0 it never does.
func WithHTTPResume(d time.Duration) HTTPOption {
	return func(t *httpTransport) error {
		t.resumeFor = d
		return nil
	}
}

// WithHTTPSilence sets how long the connection of a stream may be silent, without chunks
// and pings, before the client considers it lost. The default is three ping intervals of
// the server for a stream that can be resumed, and one minute for another.
func WithHTTPSilence(d time.Duration) HTTPOption {
	return func(t *httpTransport) error {
		if d <= 0 {
			return fmt.Errorf("millrace: found silence %s, expected a positive duration", d)
		}
		t.silence = d
		return nil
	}
}

// NewHTTP returns a client of the server at a base address, such as
// "http://127.0.0.1:8080". It does not connect yet.
func NewHTTP(base string, options ...HTTPOption) (Client, error) {
	t := &httpTransport{client: &http.Client{}, header: http.Header{}, resumeFor: resumeFor}
	if err := t.add(base); err != nil {
		return nil, err
	}
	for _, option := range options {
		if err := option(t); err != nil {
			return nil, err
		}
	}
	return &client{t: t}, nil
}

// httpTransport is the transport over HTTP.
type httpTransport struct {
	bases     []string      // addresses of the servers
	current   atomic.Uint32 // index in bases of the server that answered last
	client    *http.Client
	header    http.Header
	resumeFor time.Duration
	silence   time.Duration // 0: by the server's ping interval
}

// add adds a server.
func (t *httpTransport) add(base string) error {
	u, err := url.Parse(base)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return fmt.Errorf("millrace: found address %q, expected one like http://host:port", base)
	}
	t.bases = append(t.bases, strings.TrimSuffix(base, "/"))
	return nil
}

func (t *httpTransport) resumes() bool { return t.resumeFor > 0 }

func (t *httpTransport) close() { t.client.CloseIdleConnections() }

// call is one HTTP request, to any of the servers.
type call struct {
	method, path string
	body         []byte
	after        string        // Last-Event-ID; "" for none
	idempotent   bool          // two servers may get it: the second continues the work of the first
	wait         time.Duration // longest wait for the header of the answer; 0 for no limit
}

// answer is the response of a server.
type answer struct {
	*http.Response
	from uint32             // index in bases of the server
	end  context.CancelFunc // closes the connection, as closing the body does
}

// closing is a body that calls end when it is closed.
type closing struct {
	io.ReadCloser
	end func()
}

func (c closing) Close() error {
	defer c.end()
	return c.ReadCloser.Close()
}

// call returns the request of an operation; a nil body makes it a GET.
func (p path) call(body []byte) call {
	if body == nil {
		return call{method: http.MethodGet, path: p.http, idempotent: true}
	}
	return call{method: http.MethodPost, path: p.http, body: body}
}

// send returns the first answer with status 200 or 204, whose body the caller closes. It
// tries each server once, beginning with the one that answered last: a request that one
// cannot serve now (503) may be served by another.
func (t *httpTransport) send(ctx context.Context, c call) (*answer, error) {
	first := t.current.Load()
	var last error
	unanswered := false
	for i := range uint32(len(t.bases)) {
		at := (first + i) % uint32(len(t.bases))
		resp, err := t.try(ctx, at, c)
		var said *Error
		if err == nil || errors.As(err, &said) && said.Status != http.StatusServiceUnavailable {
			t.current.Store(at)
			return resp, err
		}
		t.leave(at)
		unanswered = unanswered || said == nil && !unreachable(err)
		if last == nil || !unreachable(err) { // the reason of a server that answered says more
			last = err
		}
		if said == nil && !c.idempotent && !unreachable(err) || ctx.Err() != nil { // the server may have begun it
			break
		}
	}
	if _, said := errors.AsType[*Error](last); said && unanswered {
		return nil, fmt.Errorf("%w: %w", errUnanswered, last)
	}
	return nil, last
}

// errUnanswered says that a server received the request and did not answer, so it may have begun it. It wraps the refusal of another
// server.
var errUnanswered = errors.New("millrace: a server did not answer, and another one refused")

// Codes of a server that is stopping: another one continues the stream, or serves
// the refused request.
const (
	codeMoved    = "moved"
	codeStopping = "stopping"
)

// stopping reports whether the error is the refusal of a server that is stopping.
func stopping(err error) bool { return code(err) == codeMoved || code(err) == codeStopping }

// code returns the code of a server's error; "" for any other error.
func code(err error) string {
	if said, ok := errors.AsType[*Error](err); ok {
		return said.Code
	}
	return ""
}

// unreachable reports whether no server accepted the connection.
func unreachable(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
}

// leave makes the next request begin with another server than this one.
func (t *httpTransport) leave(at uint32) {
	t.current.CompareAndSwap(at, (at+1)%uint32(len(t.bases)))
}

// try sends a request to one server.
func (t *httpTransport) try(ctx context.Context, at uint32, c call) (_ *answer, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer func() {
		if err != nil {
			cancel()
		}
	}()
	if c.wait > 0 {
		defer time.AfterFunc(c.wait, cancel).Stop()
	}
	req, err := http.NewRequestWithContext(ctx, c.method, t.bases[at]+c.path, bytes.NewReader(c.body))
	if err != nil {
		return nil, fmt.Errorf("millrace: %w", err)
	}
	req.Header = t.header.Clone()
	if c.body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if c.after != "" {
		req.Header.Set("Last-Event-ID", c.after)
	}
	inject(ctx, req.Header)
	resp, err := t.client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("millrace: %w", err)
	}
	if resp.StatusCode == http.StatusOK || resp.StatusCode == http.StatusNoContent {
		resp.Body = closing{resp.Body, cancel}
		return &answer{resp, at, cancel}, nil
	}
	defer resp.Body.Close()
	const limit = 64 << 10
	said, _ := io.ReadAll(io.LimitReader(resp.Body, limit)) // a cut text is enough
	return nil, parseError(resp.StatusCode, said, resp.Header.Get("Retry-After"))
}

func (t *httpTransport) once(ctx context.Context, p path, body []byte) ([]byte, error) {
	resp, err := retry(ctx, t.resumeFor, func() (*answer, error) { return t.send(ctx, p.call(body)) }, stopping) //nolint:bodyclose // below
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, fmt.Errorf("millrace: answer of %s: %w", p.http, err)
	}
	return answer, nil
}

func (t *httpTransport) stream(ctx context.Context, p path, body []byte) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		s := &httpStream{t: t, call: p.call(body)}
		s.call.idempotent = t.resumes()
		defer s.close()
		for {
			data, err := s.next(ctx)
			if errors.Is(err, errEnd) {
				return
			}
			if ctx.Err() != nil && err != nil {
				err = ctx.Err()
			}
			if !yield(data, err) || err != nil {
				return
			}
		}
	}
}
