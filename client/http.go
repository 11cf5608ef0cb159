package client

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"strings"
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

// NewHTTP returns a client of the server at a base address, such as
// "http://127.0.0.1:8000".
func NewHTTP(base string, options ...HTTPOption) (Client, error) {
	u, err := url.Parse(base)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, fmt.Errorf("millrace: expected an address like http://host:port, found %q", base)
	}
	t := &httpTransport{base: strings.TrimSuffix(base, "/"), client: &http.Client{}, header: http.Header{}}
	for _, option := range options {
		if err := option(t); err != nil {
			return nil, err
		}
	}
	return &client{t: t}, nil
}

type httpTransport struct {
	base   string
	client *http.Client
	header http.Header
}

func (t *httpTransport) close() { t.client.CloseIdleConnections() }

// send returns the answer if its status is 200; the caller closes its body.
func (t *httpTransport) send(ctx context.Context, p path, body []byte) (*http.Response, error) {
	method := http.MethodPost
	if body == nil {
		method = http.MethodGet
	}
	req, err := http.NewRequestWithContext(ctx, method, t.base+p.http, bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("millrace: %w", err)
	}
	req.Header = t.header.Clone()
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := t.client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("millrace: %w", err)
	}
	if resp.StatusCode == http.StatusOK {
		return resp, nil
	}
	defer resp.Body.Close()
	const limit = 64 << 10
	said, _ := io.ReadAll(io.LimitReader(resp.Body, limit)) // what came is enough
	return nil, parseError(resp.StatusCode, said, resp.Header.Get("Retry-After"))
}

func (t *httpTransport) once(ctx context.Context, p path, body []byte) ([]byte, error) {
	resp, err := t.send(ctx, p, body)
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
		resp, err := t.send(ctx, p, body)
		if err != nil {
			yield(nil, err)
			return
		}
		defer resp.Body.Close() // before the end: cancels
		events := sseReader{r: bufio.NewReader(resp.Body)}
		for {
			data, err := events.next()
			if err == nil && string(data) == "[DONE]" {
				return
			}
			if err == nil && bytes.HasPrefix(data, []byte(`{"error"`)) {
				err = parseError(0, data, "")
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

// sseReader reads the data of server-sent events and checks that their ids, the
// numbers of the server's events, never go back. (They may jump: an event without
// text sends nothing. TCP loses nothing, so a jump is no gap.)
type sseReader struct {
	r    *bufio.Reader
	data []byte
	last uint64
}

func (s *sseReader) next() ([]byte, error) {
	s.data = s.data[:0]
	for {
		line, err := s.r.ReadBytes('\n')
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrCut, err)
		}
		line = bytes.TrimRight(line, "\r\n")
		field, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))
		switch string(field) {
		case "data":
			s.data = append(s.data, value...)
		case "id":
			id, err := strconv.ParseUint(string(value), 10, 64)
			if err != nil || id <= s.last {
				return nil, fmt.Errorf("%w: event %q after %d", ErrGap, value, s.last)
			}
			s.last = id
		case "":
			if len(line) == 0 && len(s.data) > 0 {
				return s.data, nil
			}
		}
	}
}
