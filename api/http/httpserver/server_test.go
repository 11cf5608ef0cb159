package httpserver_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api/http/httpserver"
	"github.com/millrace/millrace/metrics/metricstest"
)

// short is a deadline that a test waits for; long is one that it must not wait for.
const (
	short = 50 * time.Millisecond
	long  = time.Hour
)

// patient are limits that no test meets.
func patient() httpserver.Limits {
	return httpserver.Limits{Header: long, Body: long, Drain: long, Idle: long, Write: long, Connections: 100}
}

// start serves handler; with TLS it speaks HTTP/2 as well.
func start(t *testing.T, limits httpserver.Limits, secure bool, handler http.HandlerFunc) (s *httpserver.Server, addr string) {
	t.Helper()
	s = httpserver.New(handler, limits, zerolog.Nop())
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() {
		if !secure {
			done <- s.Serve(l)
			return
		}
		other := httptest.NewUnstartedServer(nil) // for its certificate
		other.StartTLS()
		defer other.Close()
		s.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12, Certificates: other.TLS.Certificates}
		done <- s.ServeTLS(l, "", "")
	}()
	t.Cleanup(func() {
		require.NoError(t, s.Close())
		require.ErrorIs(t, <-done, http.ErrServerClosed)
	})
	return s, l.Addr().String()
}

func dial(t *testing.T, addr, send string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	_, err = io.WriteString(c, send)
	require.NoError(t, err)
	return c
}

// requireClosed waits for the server to close a connection.
func requireClosed(t *testing.T, c net.Conn) {
	t.Helper()
	require.NoError(t, c.SetReadDeadline(time.Now().Add(20*time.Second)))
	_, err := io.Copy(io.Discard, c) // a reset is an end too
	var timeout net.Error
	require.False(t, errors.As(err, &timeout) && timeout.Timeout())
}

// requireServes makes one more request on a connection.
func requireServes(t *testing.T, c net.Conn) {
	t.Helper()
	_, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	require.NoError(t, err)
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
}

func h2(t *testing.T) *http.Client {
	t.Helper()
	transport := &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}} //nolint:gosec // a test's own server
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

func empty(http.ResponseWriter, *http.Request) {}

// readAll is a handler that reads its body and answers with the result.
func readAll(said chan<- error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		n, err := io.Copy(io.Discard, r.Body)
		said <- err
		fmt.Fprint(w, n)
	}
}

func TestAHeaderThatDoesNotComeClosesTheConnection(t *testing.T) {
	limits := patient()
	limits.Header = short
	_, addr := start(t, limits, false, empty)
	for _, part := range []string{"", "G", "GET / HTTP/1.1\r\nHost: x\r\nA: b"} {
		requireClosed(t, dial(t, addr, part))
	}
	_, addr = start(t, limits, true, empty)
	requireClosed(t, dial(t, addr, "")) // no handshake
}

func TestAHeaderIsNotEndless(t *testing.T) {
	_, addr := start(t, patient(), false, empty)
	requireClosed(t, dial(t, addr, "GET / HTTP/1.1\r\nA: "+strings.Repeat("b", 200<<10)))
}

func TestAnIdleConnectionIsClosed(t *testing.T) {
	limits := patient()
	limits.Idle = short
	_, addr := start(t, limits, false, empty)
	c := dial(t, addr, "")
	requireServes(t, c)
	requireClosed(t, c)
}

func TestABodyThatDoesNotComeEndsTheRequest(t *testing.T) {
	limits := patient()
	limits.Body, limits.Drain = short, short
	for _, framing := range []string{"Content-Length: 9", "Transfer-Encoding: chunked"} {
		said := make(chan error, 1)
		_, addr := start(t, limits, false, readAll(said))
		c := dial(t, addr, "POST / HTTP/1.1\r\nHost: x\r\n"+framing+"\r\n\r\n")
		require.Error(t, <-said)
		requireClosed(t, c)
	}
	said := make(chan error, 1)
	_, addr := start(t, limits, true, readAll(said))
	body, w := io.Pipe()
	defer w.Close()
	resp, err := h2(t).Post("https://"+addr, "", body)
	if err == nil { // else it was reset
		require.Equal(t, 2, resp.ProtoMajor)
		require.NoError(t, resp.Body.Close())
	}
	require.Error(t, <-said)
}

// The body's own deadline is far away: its answer must not wait for it.
func TestARefusalIsAnsweredBeforeTheBodyIsRead(t *testing.T) {
	limits := patient()
	limits.Drain = short
	_, addr := start(t, limits, false, func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusUnauthorized) })
	for _, length := range []int{9, 1 << 20} {
		c := dial(t, addr, fmt.Sprintf("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n", length))
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		require.NoError(t, err)
		require.Equal(t, http.StatusUnauthorized, resp.StatusCode)
		require.True(t, resp.Close)
		require.NoError(t, resp.Body.Close())
		requireClosed(t, c)
	}
}

func TestARefusalThatIsFlushedClosesTheConnectionToo(t *testing.T) {
	limits := patient()
	limits.Drain = short
	_, addr := start(t, limits, false, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusUnauthorized)
		_ = http.NewResponseController(w).Flush()
	})
	c := dial(t, addr, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n")
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	require.NoError(t, err)
	require.True(t, resp.Close)
	require.NoError(t, resp.Body.Close())
	requireClosed(t, c)
}

// Its first part buys it the time for the second one.
func TestASteadyBodyOutlivesTheFirstDeadline(t *testing.T) {
	limits := patient()
	limits.Body, limits.BodyRate = short, 1
	_, addr := start(t, limits, false, func(w http.ResponseWriter, r *http.Request) {
		text, err := io.ReadAll(r.Body)
		fmt.Fprint(w, len(text), err)
	})
	first, second := strings.Repeat("x", 600), "y"
	c := dial(t, addr, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 601\r\n\r\n"+first)
	<-time.After(3 * short)
	_, err := io.WriteString(c, second)
	require.NoError(t, err)
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	require.NoError(t, err)
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.Equal(t, "601 <nil>", string(text))
	require.NoError(t, resp.Body.Close())
}

// TestAClientThatWritesItsBodyFirstGetsTheAnswer as Python's urllib does: the server reads and drops the rest, where it reset the
// connection before.
func TestAClientThatWritesItsBodyFirstGetsTheAnswer(t *testing.T) {
	const size = 60 << 20 // more than the buffers of a connection hold
	limits := patient()
	_, addr := start(t, limits, false, func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "too large", http.StatusRequestEntityTooLarge)
	})
	chunk := "10000\r\n" + strings.Repeat("x", 64<<10) + "\r\n"
	for framing, body := range map[string]string{
		fmt.Sprintf("Content-Length: %d", size): strings.Repeat("x", size),
		"Transfer-Encoding: chunked":            strings.Repeat(chunk, size>>16) + "0\r\n\r\n",
	} {
		c := dial(t, addr, "POST / HTTP/1.1\r\nHost: x\r\n"+framing+"\r\n\r\n"+body)
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		require.NoError(t, err, framing)
		require.Equal(t, http.StatusRequestEntityTooLarge, resp.StatusCode)
		require.True(t, resp.Close)
		require.NoError(t, resp.Body.Close())
		requireClosed(t, c)
	}
	_, addr = start(t, limits, true, func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "too large", http.StatusRequestEntityTooLarge)
	})
	resp, err := h2(t).Post("https://"+addr, "", io.LimitReader(zeros{}, size))
	require.NoError(t, err)
	require.Equal(t, 2, resp.ProtoMajor)
	require.Equal(t, http.StatusRequestEntityTooLarge, resp.StatusCode)
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.Equal(t, "too large\n", string(text))
	require.NoError(t, resp.Body.Close())
}

// TestABodyIsDroppedWithinBounds of bytes and of time.
func TestABodyIsDroppedWithinBounds(t *testing.T) {
	limits := patient()
	limits.DrainBytes = 1 << 20
	refuse := func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusUnauthorized) }
	_, addr := start(t, limits, false, refuse)
	c := dial(t, addr, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000000\r\n\r\n")
	_, err := io.Copy(c, zeros{}) // ends: the server closes
	require.Error(t, err)
	limits = patient()
	limits.Drain = short
	_, addr = start(t, limits, false, refuse)
	requireClosed(t, dial(t, addr, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000000\r\n\r\nx"))
	_, addr = start(t, patient(), false, refuse)
	// it sends no body
	requireClosed(t, dial(t, addr, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\nExpect: 100-continue\r\n\r\n"))
}

// zeros is an endless body.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// What follows a body that was not read must not be taken for a request.
func TestAnUnreadBodyIsNoRequest(t *testing.T) {
	limits := patient()
	limits.Drain = short
	paths := make(chan string, 2)
	_, addr := start(t, limits, false, func(_ http.ResponseWriter, r *http.Request) { paths <- r.URL.Path })
	c := dial(t, addr, "POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 300000\r\n\r\nGET /b HTTP/1.1\r\nHost: x\r\n\r\n")
	requireClosed(t, c)
	require.Equal(t, "/a", <-paths)
	require.Empty(t, paths)
}

func TestABodyThatIsReadKeepsItsConnection(t *testing.T) {
	said := make(chan error, 2)
	_, addr := start(t, patient(), false, readAll(said))
	c := dial(t, addr, "")
	in := bufio.NewReader(c)
	for range 2 {
		_, err := fmt.Fprintf(c, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", 300_000, strings.Repeat("x", 300_000))
		require.NoError(t, err)
		resp, err := http.ReadResponse(in, nil)
		require.NoError(t, err)
		require.False(t, resp.Close)
		text, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		require.Equal(t, "300000", string(text))
		require.NoError(t, <-said)
	}
}

// The deadline of the body must not end the answer.
func TestAnAnswerMayTakeLongerThanEveryDeadline(t *testing.T) {
	const each = 300 * time.Millisecond // a busy machine takes some of it
	limits := httpserver.Limits{Header: each, Body: each, Drain: each, Idle: each, Write: each, Connections: 10}
	slow := func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			return
		}
		tick := time.NewTicker(2 * each)
		defer tick.Stop()
		for range 2 {
			select {
			case <-tick.C:
				fmt.Fprint(w, "x")
				_ = http.NewResponseController(w).Flush()
			case <-r.Context().Done():
				return
			}
		}
	}
	for _, secure := range []bool{false, true} {
		_, addr := start(t, limits, secure, slow)
		url := map[bool]string{false: "http://", true: "https://"}[secure] + addr
		resp, err := h2(t).Post(url, "", strings.NewReader("a body"))
		require.NoError(t, err)
		text, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		require.Equal(t, "xx", string(text))
		require.NoError(t, resp.Body.Close())
	}
}

// endless writes until that fails.
func endless(said chan<- error) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		block := make([]byte, 1<<20)
		for {
			if _, err := w.Write(block); err != nil {
				said <- err
				return
			}
		}
	}
}

func TestAReaderThatDoesNotReadIsLeft(t *testing.T) {
	limits := patient()
	limits.Write = short
	said := make(chan error, 1)
	_, addr := start(t, limits, false, endless(said))
	dial(t, addr, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	require.Error(t, <-said)

	_, addr = start(t, limits, true, endless(said))
	resp, err := h2(t).Get("https://" + addr) // its window fills, the connection has room
	require.NoError(t, err)
	defer resp.Body.Close()
	require.Equal(t, 2, resp.ProtoMajor)
	require.Error(t, <-said)
}

func TestAtTheCapTheOldestThatWaitsMakesRoom(t *testing.T) {
	limits := patient()
	limits.Connections = 3
	inside, release := make(chan struct{}), make(chan struct{})
	s, addr := start(t, limits, false, func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			inside <- struct{}{}
			<-release
		}
	})
	answered := dial(t, addr, "GET /slow HTTP/1.1\r\nHost: x\r\n\r\n")
	<-inside
	half := dial(t, addr, "POST /slow HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n") // older than the idle one
	idle := dial(t, addr, "")
	<-inside
	requireServes(t, idle)
	fresh := dial(t, addr, "")
	requireServes(t, fresh)
	requireClosed(t, half)
	requireServes(t, idle)
	requireServes(t, fresh)
	second := dial(t, addr, "")
	requireServes(t, second)
	closed := make(chan struct{}, 2) // one of them: a client may have an answer before the server notes its end
	for _, c := range []net.Conn{idle, fresh} {
		go func() {
			_, _ = io.Copy(io.Discard, c)
			closed <- struct{}{}
		}()
	}
	<-closed
	close(release)
	resp, err := http.ReadResponse(bufio.NewReader(answered), nil)
	require.NoError(t, err, "it was being answered")
	require.NoError(t, resp.Body.Close())
	require.Equal(t, 2.0, metricstest.Sum(t, s, "millrace_http_connections_closed_total"))
}

func TestAFullServerOfAnswersRefusesNewConnections(t *testing.T) {
	limits := patient()
	limits.Connections = 1
	inside, release := make(chan struct{}), make(chan struct{})
	s, addr := start(t, limits, false, func(http.ResponseWriter, *http.Request) {
		inside <- struct{}{}
		<-release
	})
	answered := dial(t, addr, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	<-inside
	requireClosed(t, dial(t, addr, ""))
	close(release)
	resp, err := http.ReadResponse(bufio.NewReader(answered), nil)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.Equal(t, 1.0, metricstest.Sum(t, s, "millrace_http_connections_closed_total"))
}

// Otherwise one answered request would protect a connection of HTTP/2 forever.
func TestAConnectionOfHTTP2IsClosedForItsIncompleteRequests(t *testing.T) {
	limits := patient()
	limits.Connections = 1
	inside := make(chan string, 2)
	_, addr := start(t, limits, true, func(_ http.ResponseWriter, r *http.Request) {
		inside <- r.Method
		_, _ = io.Copy(io.Discard, r.Body)
	})
	client := h2(t)
	body, w := io.Pipe()
	defer w.Close()
	ended := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		req, err := http.NewRequestWithContext(ctx, "POST", "https://"+addr, body)
		if err == nil {
			_, err = client.Do(req) //nolint:bodyclose // there is none
		}
		ended <- err
	}()
	require.Equal(t, "POST", <-inside)
	resp, err := client.Get("https://" + addr) // on the same connection, which is not idle after it
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.Equal(t, "GET", <-inside)
	resp, err = h2(t).Get("https://" + addr)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.Error(t, <-ended)
	require.NoError(t, ctx.Err())
}
