package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace/e2e/wait"
)

var httpAttacks = []attack{
	{"http: thousands of slow and idle connections", "keys", slowConnections},
	{"http: readers that do not read", "keys", stalledReaders},
	{"http: body without a key", "keys", bodyWithoutKey},
	{"http: huge headers and bodies", "keys", hugeRequests},
	{"http: foreign host name (DNS rebinding)", "open", foreignHost},
	{"http: cross-site requests", "open", crossSite},
	{"tls: plain text, old versions, stream resets", "tls", attackTLS},
}

// postHead returns the head of a POST with a body of some length.
func postHead(key string, length int) string {
	head := fmt.Sprintf("POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: %d\r\n",
		length)
	if key != "" {
		head += "Authorization: Bearer " + key + "\r\n"
	}
	return head + "\r\n"
}

// slowKind is a way to keep a connection open: a beginning, and a few bytes from time to time.
type slowKind struct {
	name, begin, more string
}

// slowConnections opens connections of every kind at once. The server must close all of them by itself.
func slowConnections(ctx context.Context, s *suite, t *target) (string, error) {
	kinds := []slowKind{
		{"idle", "", ""},
		{"slow headers", "GET /v1/models HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: ", "a"},
		{"no body, no key", postHead("", 1000), ""},
		{"slow body, with a key", postHead(t.keys[attacker], 1<<20), " "},
		{"idle after an answer", "GET /health/live HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", ""},
	}
	seen, errs := make([]string, len(kinds)), make([]error, len(kinds))
	var all sync.WaitGroup
	for i, kind := range kinds {
		all.Go(func() { seen[i], errs[i] = manySlow(ctx, s.slow/len(kinds), t.addr, kind) })
	}
	all.Wait()
	return strings.Join(seen, "; "), errors.Join(errs...)
}

// slowMost is the longest life of a slow or idle connection: the server's deadlines are below two minutes.
const slowMost = 2 * time.Minute

func manySlow(ctx context.Context, n int, addr string, kind slowKind) (string, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, slowMost, fmt.Errorf("connections were open after %s", slowMost))
	defer cancel()
	const dialers = 100 // at a time
	var (
		conns   sync.WaitGroup
		opened  atomic.Int64
		refused atomic.Int64
		open    atomic.Int64
		dialing = make(chan struct{}, dialers)
		start   = time.Now()
	)
	for range n {
		conns.Go(func() {
			dialing <- struct{}{}
			c, err := (&net.Dialer{Timeout: 10 * time.Second}).DialContext(ctx, "tcp", addr)
			<-dialing
			if err != nil {
				refused.Add(1)
				return
			}
			defer c.Close()
			opened.Add(1)
			open.Add(1)
			if drip(ctx, c, kind.begin, kind.more) == nil {
				open.Add(-1)
			}
		})
	}
	conns.Wait()
	seen := fmt.Sprintf("%d %s, %d refused, closed after %.0f s", opened.Load(), kind.name, refused.Load(), time.Since(start).Seconds())
	if left := open.Load(); left > 0 {
		return seen, fmt.Errorf("%s: %d of %d connections were still open after %s", kind.name, left, opened.Load(),
			time.Since(start).Round(time.Second))
	}
	return seen, nil
}

// drip sends a beginning and then a few bytes every few seconds until the server closes the connection.
func drip(ctx context.Context, c net.Conn, begin, more string) error {
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		_, _ = io.Copy(io.Discard, c) // until the server closes it
	}()
	_, _ = io.WriteString(c, begin) // an error shows in closed
	const every = 3 * time.Second
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-closed:
			return nil
		case <-tick.C:
			_, _ = io.WriteString(c, more)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// stalledReaders requests streams and never reads them.
func stalledReaders(ctx context.Context, _ *suite, t *target) (string, error) {
	const n = 64
	body := `{"model":"tiny-chat","prompt":"Count:","stream":true,"max_tokens":1500,"ignore_eos":true,"n":4,"logprobs":20}`
	var conns []net.Conn
	defer func() {
		for _, c := range conns {
			c.Close()
		}
	}()
	for range n {
		c, err := (&net.Dialer{}).DialContext(ctx, "tcp", t.addr)
		if err != nil {
			return "", err
		}
		conns = append(conns, c)
		if tcp, ok := c.(*net.TCPConn); ok {
			_ = tcp.SetReadBuffer(4096) // the kernel buffers less
		}
		if _, err := io.WriteString(c, postHead(t.keys[attacker], len(body))+body); err != nil {
			return "", err
		}
	}
	if err := wait.For(ctx, 5*time.Second); err != nil {
		return "", err
	}
	return fmt.Sprintf("%d streams with 4 answers that nobody reads", n), nil
}

// bodyWithoutKey announces a large body without a key. The refusal must come before the body.
func bodyWithoutKey(ctx context.Context, _ *suite, t *target) (string, error) {
	c, err := (&net.Dialer{}).DialContext(ctx, "tcp", t.addr)
	if err != nil {
		return "", err
	}
	defer c.Close()
	begin := time.Now()
	if _, err := io.WriteString(c, postHead("", 4<<20)); err != nil {
		return "", err
	}
	if err := c.SetReadDeadline(begin.Add(5 * time.Second)); err != nil {
		return "", err
	}
	answer, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return "", fmt.Errorf("no answer before the body: %w", err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusUnauthorized {
		return "", fmt.Errorf("found status %d, expected 401", answer.StatusCode)
	}
	return fmt.Sprintf("401 after %d ms, before the body", time.Since(begin).Milliseconds()), nil
}

func hugeRequests(ctx context.Context, _ *suite, t *target) (string, error) {
	key := t.keys[attacker]
	status, _, err := t.do(ctx, http.MethodGet, key, "/v1/models", nil, http.Header{"X-Huge": {strings.Repeat("a", 2<<20)}})
	if err == nil && status != http.StatusRequestHeaderFieldsTooLarge {
		return "", fmt.Errorf("2 MiB of headers: found status %d, expected 431", status)
	}
	seen := []string{"431"}
	for _, body := range [][]byte{
		bytes.Repeat([]byte(" "), 9<<20),
		bytes.Repeat([]byte("["), 1<<20),
		[]byte(`{"model":"tiny-chat","prompt":` + strings.Repeat(`[`, 100_000) + `}`),
		[]byte(`{"model":"tiny-chat","prompt":"` + strings.Repeat(`\u0000`, 1_000_000) + `"}`),
		[]byte(`{"model":"tiny-chat","prompt":"a","stop":[` + strings.Repeat(`"a",`, 500_000) + `"b"]}`),
		[]byte(`{"model":"tiny-chat","prompt":"a","logit_bias":{` + biases(200_000) + `}}`),
		[]byte(`{"model":"tiny-chat","prompt":[` + strings.Repeat(`"a",`, 500_000) + `"b"]}`),
	} {
		status, text, err := t.do(ctx, http.MethodPost, key, "/v1/completions", body, nil)
		if err != nil && status == 0 {
			seen = append(seen, "closed")
			continue
		}
		if status < 400 || status >= 500 {
			return "", fmt.Errorf("a body of %d bytes that begins with %.30q: found status %d: %.200s, expected 4xx", len(body), body,
				status, text)
		}
		seen = append(seen, fmt.Sprint(status))
	}
	return strings.Join(seen, " "), nil
}

// biases returns n fields of logit_bias, most of them for tokens that no model has.
func biases(n int) string {
	list := make([]string, n)
	for i := range list {
		list[i] = fmt.Sprintf(`"%d":1`, i)
	}
	return strings.Join(list, ",")
}

// foreignHost sends requests to a server without keys as a page does whose host name resolves to the loopback address.
func foreignHost(ctx context.Context, _ *suite, t *target) (string, error) {
	for _, path := range []string{"/v1/models", "/v1/completions", "/", "/debug/kv", "/metrics"} {
		method := http.MethodGet
		if path == "/v1/completions" {
			method = http.MethodPost
		}
		status, text, err := t.do(ctx, method, "", path, []byte("{}"), http.Header{"Host": {"attacker.example:8080"}})
		if err != nil {
			return "", err
		}
		if status != http.StatusForbidden && status != http.StatusMisdirectedRequest {
			return "", fmt.Errorf("%s %s for the host attacker.example: found status %d: %.100s, expected 403 or 421", method, path, status,
				text)
		}
	}
	return "every path refused", nil
}

// crossSite sends requests as a browser does for a page of another site.
func crossSite(ctx context.Context, _ *suite, t *target) (string, error) {
	for _, header := range []http.Header{
		{"Origin": {"https://attacker.example"}, "Sec-Fetch-Site": {"cross-site"}},
		{"Origin": {"https://attacker.example"}},
		{"Sec-Fetch-Site": {"same-site"}, "Origin": {"http://127.0.0.1:1"}},
		{"Origin": {"https://attacker.example"}, "Content-Type": {"text/plain"}},
	} {
		status, text, err := t.do(ctx, http.MethodPost, "", "/v1/completions", []byte(`{"model":"tiny-chat","prompt":"a","max_tokens":1}`),
			header)
		if err != nil {
			return "", err
		}
		if status != http.StatusForbidden {
			return "", fmt.Errorf("a POST with %v: found status %d: %.100s, expected 403", header, status, text)
		}
	}
	return "403 for every POST of another site", nil
}

func attackTLS(ctx context.Context, _ *suite, t *target) (string, error) {
	plain, err := (&net.Dialer{}).DialContext(ctx, "tcp", t.addr)
	if err != nil {
		return "", err
	}
	defer plain.Close()
	_, _ = io.WriteString(plain, "GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n")
	_ = plain.SetReadDeadline(time.Now().Add(5 * time.Second))
	head, _ := io.ReadAll(io.LimitReader(plain, 1<<10)) // the bytes before it was closed
	if bytes.Contains(head, []byte("200 OK")) {
		return "", errors.New("plain text was answered")
	}
	for _, version := range []uint16{tls.VersionTLS10, tls.VersionTLS11} {
		c, err := (&tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true, MinVersion: version, MaxVersion: version}}).DialContext(ctx,
			"tcp", t.addr)
		if err == nil {
			c.Close()
			return "", fmt.Errorf("TLS version %x was accepted", version)
		}
	}
	// Requests that are cancelled at once, as in CVE-2023-44487.
	const resets = 5000
	own := *t // the server closes the connection of such a client, and may do so in the middle of another request
	own.client = newClient(t)
	defer own.client.CloseIdleConnections()
	var all sync.WaitGroup
	slots := make(chan struct{}, 100)
	for range resets {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			short, cancel := context.WithTimeout(ctx, time.Millisecond)
			defer cancel()
			_, _, _ = own.post(short, t.keys[attacker], "/v1/completions", normalBody) // its outcome does not count
		})
	}
	all.Wait()
	return fmt.Sprintf("plain text, TLS 1.0 and 1.1 refused; %d requests cancelled at once", resets), nil
}
