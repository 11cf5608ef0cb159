package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/grafana/sobek"
)

const (
	maxLine    = 1 << 20 // of a stream
	maxRefusal = 64 << 10
)

// chatStream({url, body, headers, timeout, cancelAfter}) posts a chat request
// and reads the streamed answer.
func (m *instance) chatStream(params *sobek.Object) (*result, error) {
	o, err := m.options(params, "url", "body")
	if err != nil {
		return nil, err
	}
	url := params.Get("url")
	if url == nil {
		return nil, errors.New("chatStream: no url")
	}
	payload, err := body(params.Get("body"), true)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(m.vu.Context(), o.timeout)
	defer cancel() // also what abandons a stream: the connection closes
	a := &answer{started: time.Now()}
	client := &http.Client{Transport: m.vu.State().Transport}
	err = a.readHTTP(ctx, client, url.String(), payload, o)
	return m.finish(m.vu.Context(), "http", a, err), nil
}

func (a *answer) readHTTP(ctx context.Context, client *http.Client, url string, payload []byte, o options) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(payload))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "text/event-stream")
	for name, value := range o.headers {
		req.Header.Set(name, value)
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	a.status = resp.StatusCode
	if resp.StatusCode != http.StatusOK {
		text, err := io.ReadAll(io.LimitReader(resp.Body, maxRefusal))
		a.body = string(text)
		return errors.Join(fmt.Errorf("status %d: %.200s", resp.StatusCode, text), err)
	}
	return a.readEvents(resp.Body, o.cancelAfter)
}

// readEvents reads server-sent events up to [DONE]. Comments and ids pass.
func (a *answer) readEvents(r io.Reader, cancelAfter int) error {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		data, ok := bytes.CutPrefix(lines.Bytes(), []byte("data:"))
		if !ok {
			continue
		}
		data = bytes.TrimSpace(data)
		if string(data) == "[DONE]" {
			return a.complete()
		}
		if err := a.add(data, time.Now()); err != nil {
			return err
		}
		if a.abandon(cancelAfter) {
			return nil
		}
	}
	if err := lines.Err(); err != nil {
		return err
	}
	return fmt.Errorf("the stream ended after %d pieces without [DONE]", a.pieces)
}
