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

// HTTPOption changes how NewHTTP's client works.
type HTTPOption func(*httpTransport) error

// WithHTTPClient uses a client of the caller's. It must have no timeout over the
// whole request, which would cut long streams.
func WithHTTPClient(c *http.Client) HTTPOption {
	return func(t *httpTransport) error {
		if c == nil || c.Timeout != 0 {
			return fmt.Errorf("millrace: expected an http.Client without a Timeout")
		}
		t.client = c
		return nil
	}
}

// WithHeader sends a header with every request.
func WithHeader(key, value string) HTTPOption {
	return func(t *httpTransport) error {
		t.header.Set(key, value)
		return nil
	}
}

// WithServers adds more servers. Each request goes to the one that answered last;
// when that cannot be reached, to the next.
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

// WithHTTPResume sets how long the client tries to go on with a stream that it
// lost: 30 s by default, 0 for never.
func WithHTTPResume(d time.Duration) HTTPOption {
	return func(t *httpTransport) error {
		t.resumeFor = d
		return nil
	}
}

// WithHTTPSilence sets how long a stream may be silent, the server's comments
// included, before it counts as cut: by default three times as long as the server says
// of a stream that can be resumed, one minute of another.
func WithHTTPSilence(d time.Duration) HTTPOption {
	return func(t *httpTransport) error {
		if d <= 0 {
			return fmt.Errorf("millrace: expected a positive silence, found %s", d)
		}
		t.silence = d
		return nil
	}
}

// NewHTTP returns a client of the server at a base address, such as
// "http://127.0.0.1:8080".
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

type httpTransport struct {
	bases     []string
	current   atomic.Uint32 // of bases: the one that answered last
	client    *http.Client
	header    http.Header
	resumeFor time.Duration
	silence   time.Duration // 0: what the server says
}

func (t *httpTransport) add(base string) error {
	u, err := url.Parse(base)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return fmt.Errorf("millrace: expected an address like http://host:port, found %q", base)
	}
	t.bases = append(t.bases, strings.TrimSuffix(base, "/"))
	return nil
}

func (t *httpTransport) resumes() bool { return t.resumeFor > 0 }

func (t *httpTransport) close() { t.client.CloseIdleConnections() }

// call is one HTTP request to whichever server answers.
type call struct {
	method, path string
	body         []byte
	after        string        // Last-Event-ID
	idempotent   bool          // it may reach two servers: the second finds what the first began
	wait         time.Duration // for the head of an answer; 0: as long as it takes
}

// answer is one that a server gives.
type answer struct {
	*http.Response
	from uint32             // of bases
	end  context.CancelFunc // ends the connection; so does closing the body
}

type closing struct {
	io.ReadCloser
	end func()
}

func (c closing) Close() error {
	defer c.end()
	return c.ReadCloser.Close()
}

func (p path) call(body []byte) call {
	if body == nil {
		return call{method: http.MethodGet, path: p.http, idempotent: true}
	}
	return call{method: http.MethodPost, path: p.http, body: body}
}

// send returns the answer if its status is 2xx; the caller closes its body. It
// asks each server once, from the one that answered last on: what one cannot serve
// now (503), another may.
func (t *httpTransport) send(ctx context.Context, c call) (*answer, error) {
	first := t.current.Load()
	var last error
	for i := range uint32(len(t.bases)) {
		at := (first + i) % uint32(len(t.bases))
		resp, err := t.try(ctx, at, c)
		var said *Error
		if err == nil || errors.As(err, &said) && said.Status != http.StatusServiceUnavailable {
			t.current.Store(at)
			return resp, err
		}
		t.leave(at)
		if last == nil || !unreachable(err) { // a server that said why it cannot serve says more than one that is gone
			last = err
		}
		if said == nil && !c.idempotent && !unreachable(err) || ctx.Err() != nil { // said: it was not taken
			break
		}
	}
	return nil, last
}

// Codes of a server that is stopping: another one goes on with the stream, or serves
// what this one did not take.
const (
	codeMoved    = "moved"
	codeStopping = "stopping"
)

// stopping says whether a server that is stopping refused a request: to another one it is
// new.
func stopping(err error) bool { return code(err) == codeMoved || code(err) == codeStopping }

// code is the stable word of what a server said; "" of another error.
func code(err error) string {
	if said, ok := errors.AsType[*Error](err); ok {
		return said.Code
	}
	return ""
}

// unreachable: nobody was there to take the request.
func unreachable(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
}

// leave has the next request begin with another server than this one.
func (t *httpTransport) leave(at uint32) {
	t.current.CompareAndSwap(at, (at+1)%uint32(len(t.bases)))
}

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
	said, _ := io.ReadAll(io.LimitReader(resp.Body, limit)) // what came is enough
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
