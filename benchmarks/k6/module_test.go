package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
	"go.k6.io/k6/js/modulestest"
	"go.k6.io/k6/lib"
	"go.k6.io/k6/metrics"
)

// user runs scripts as a virtual user does, and keeps the metrics it sends.
type user struct {
	*modulestest.Runtime
	samples chan metrics.SampleContainer
}

func newUser(t *testing.T) *user {
	t.Helper()
	rt := modulestest.NewRuntime(t)
	registry := rt.VU.InitEnvField.Registry
	require.NoError(t, rt.SetupModuleSystem(map[string]any{"k6/x/millrace": new(root)}, nil, nil))
	_, err := rt.VU.Runtime().RunString(`const millrace = require("k6/x/millrace")`)
	require.NoError(t, err)
	samples := make(chan metrics.SampleContainer, 1000)
	rt.MoveToVUContext(&lib.State{
		Transport: http.DefaultTransport,
		Samples:   samples,
		Tags:      lib.NewVUStateTags(registry.RootTagSet()),
	})
	return &user{rt, samples}
}

func (u *user) call(t *testing.T, script string, args ...any) *result {
	t.Helper()
	v, err := u.VU.Runtime().RunString(fmt.Sprintf(script, args...))
	require.NoError(t, err)
	r, ok := v.Export().(*result)
	require.True(t, ok, "found %T", v.Export())
	return r
}

// counted sums the metrics sent since the last call, by name; of trends it
// counts the samples.
func (u *user) counted() map[string]float64 {
	sums := make(map[string]float64)
	for {
		select {
		case container := <-u.samples:
			for _, s := range container.GetSamples() {
				if s.Metric.Type == metrics.Trend {
					sums[s.Metric.Name]++
				} else if s.Value != 0 {
					sums[s.Metric.Name] += s.Value
				}
			}
		default:
			return sums
		}
	}
}

const (
	hello   = `{"choices":[{"delta":{"role":"assistant","content":""},"finish_reason":null}]}`
	capital = `{"choices":[{"delta":{"content":"Washington"},"finish_reason":null}]}`
	point   = `{"choices":[{"delta":{"content":", D.C."},"finish_reason":null}]}`
	stop    = `{"choices":[{"delta":{},"finish_reason":"stop"}]}`
	usage   = `{"choices":[],"usage":{"completion_tokens":7}}`
)

func events(chunks ...string) string {
	var b strings.Builder
	for i, c := range chunks {
		fmt.Fprintf(&b, ": ping\n\nid: %d\ndata: %s\n\n", i, c)
	}
	return b.String()
}

// serveHTTP answers every request with the text; then it waits for the client
// to go, if wait is given, and closes it.
func serveHTTP(t *testing.T, status int, text string, wait chan struct{}) string {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if !strings.Contains(string(body), `"stream":true`) {
			status = http.StatusBadRequest
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, text)
		if wait != nil {
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
			close(wait)
		}
	}))
	t.Cleanup(srv.Close)
	return srv.URL
}

func TestHTTPStreamIsReadToItsEndAndMeasured(t *testing.T) {
	u := newUser(t)
	url := serveHTTP(t, 200, events(hello, capital, point, stop, usage, "[DONE]"), nil)
	r := u.call(t, `millrace.chatStream({url: %q, body: {messages: []}})`, url)
	require.Empty(t, r.Error)
	require.Equal(t, "Washington, D.C.", r.Text)
	require.Equal(t, "stop", r.Finish)
	require.Equal(t, 7, r.Tokens)
	require.Positive(t, r.TTFT)
	require.Equal(t, map[string]float64{"millrace_ttft": 1, "millrace_itl": 1, "millrace_tokens": 7}, u.counted())
}

func TestBrokenHTTPStreamIsAnError(t *testing.T) {
	u := newUser(t)
	for says, text := range map[string]string{
		"without [DONE]":           events(hello, capital, stop),
		"without a finish_reason":  events(hello, capital, "[DONE]"),
		"error chunk: overheated":  events(hello, capital, `{"error":{"message":"overheated"}}`),
		`chunk "{\"choices\":[}"`:  events(`{"choices":[}`),
		"ended after 0 pieces":     "",
		"status 500: out of order": "",
	} {
		status := 200
		if strings.HasPrefix(says, "status 500") {
			status, text = 500, "out of order"
		}
		r := u.call(t, `millrace.chatStream({url: %q, body: {}})`, serveHTTP(t, status, text, nil))
		require.Contains(t, r.Error, says)
		require.InDelta(t, 1, u.counted()["millrace_stream_errors"], 0, says)
	}
}

func TestRefusalIsNoStreamError(t *testing.T) {
	u := newUser(t)
	r := u.call(t, `millrace.chatStream({url: %q, body: {}})`, serveHTTP(t, 429, "come back later", nil))
	require.Equal(t, 429, r.Status)
	require.Equal(t, "come back later", r.Body)
	require.Equal(t, map[string]float64{"millrace_rejections": 1}, u.counted())
}

func TestCancelledHTTPStreamClosesItsConnection(t *testing.T) {
	u := newUser(t)
	gone := make(chan struct{})
	url := serveHTTP(t, 200, events(hello, capital, point), gone)
	r := u.call(t, `millrace.chatStream({url: %q, body: {}, cancelAfter: 2})`, url)
	require.True(t, r.Cancelled)
	require.Empty(t, r.Error)
	<-gone // the server saw it
	require.InDelta(t, 1, u.counted()["millrace_cancelled"], 0)
}

func TestTimeoutEndsAStreamThatHangs(t *testing.T) {
	u := newUser(t)
	url := serveHTTP(t, 200, events(hello), make(chan struct{}))
	r := u.call(t, `millrace.chatStream({url: %q, body: {}, timeout: "50ms"})`, url)
	require.Contains(t, r.Error, "deadline exceeded")
}

func TestScriptsReadTheResultsFields(t *testing.T) {
	u := newUser(t)
	url := serveHTTP(t, 200, events(capital, stop, usage, "[DONE]"), nil)
	v, err := u.VU.Runtime().RunString(fmt.Sprintf(
		`r = millrace.chatStream({url: %q, body: {}}); [r.status, r.text, r.tokens, r.finishReason, r.cancelled, r.error].join("|")`, url))
	require.NoError(t, err)
	require.Equal(t, "200|Washington|7|stop|false|", v.String())
}

func TestWrongArgumentsThrow(t *testing.T) {
	u := newUser(t)
	for script, says := range map[string]string{
		`millrace.chatStream({url: "x", cancelafter: 3})`:      "option cancelafter: unknown",
		`millrace.chatStream({body: {}})`:                      "no url",
		`millrace.natsStream("", "", {}, {timeout: "soon"})`:   "option timeout",
		`millrace.natsRequest("", "", {}, {url: "elsewhere"})`: "option url: unknown",
	} {
		_, err := u.VU.Runtime().RunString(script)
		require.ErrorContains(t, err, says)
	}
}

// serveNATS answers every request on "chat" with the messages, and returns the
// URL of the server.
func serveNATS(t *testing.T, messages ...*nats.Msg) string {
	t.Helper()
	srv, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, NoLog: true, NoSigs: true})
	require.NoError(t, err)
	srv.Start()
	t.Cleanup(srv.Shutdown)
	require.True(t, srv.ReadyForConnections(10*time.Second))
	nc, err := nats.Connect(srv.ClientURL())
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	_, err = nc.Subscribe("chat", func(request *nats.Msg) {
		for _, m := range messages {
			_ = request.RespondMsg(m)
		}
	})
	require.NoError(t, err)
	require.NoError(t, nc.Flush())
	return srv.ClientURL()
}

func said(data string, header ...string) *nats.Msg {
	m := &nats.Msg{Data: []byte(data), Header: nats.Header{}}
	for i := 0; i < len(header); i += 2 {
		m.Header.Set(header[i], header[i+1])
	}
	return m
}

func TestNATSStreamIsReadToItsEndAndMeasured(t *testing.T) {
	u := newUser(t)
	url := serveNATS(t, said(hello, seqHeader, "1"), said("", pingHeader, "1"), said(capital, seqHeader, "2"),
		said(point, seqHeader, "3"), said(usage, seqHeader, "4", endHeader, "length"))
	r := u.call(t, `millrace.natsStream(%q, "chat", {messages: []})`, url)
	require.Empty(t, r.Error)
	require.Equal(t, "Washington, D.C.", r.Text)
	require.Equal(t, "length", r.Finish)
	require.Equal(t, map[string]float64{"millrace_ttft": 1, "millrace_itl": 1, "millrace_tokens": 7}, u.counted())
}

func TestGapInANATSStreamIsAnError(t *testing.T) {
	u := newUser(t)
	url := serveNATS(t, said(hello, seqHeader, "1"), said(capital, seqHeader, "3"))
	r := u.call(t, `millrace.natsStream(%q, "chat", {})`, url)
	require.Equal(t, `stream broken: found Millrace-Seq "3", expected 2`, r.Error)
	require.Equal(t, map[string]float64{"millrace_stream_errors": 1}, u.counted())
}

func TestNATSStreamThatEndsWithAnErrorIsOne(t *testing.T) {
	u := newUser(t)
	url := serveNATS(t, said(capital, seqHeader, "1"), said("", seqHeader, "2", endHeader, "error"))
	require.Contains(t, u.call(t, `millrace.natsStream(%q, "chat", {})`, url).Error, "ended with error")
}

func TestNATSStreamIsAbandoned(t *testing.T) {
	u := newUser(t)
	url := serveNATS(t, said(capital, seqHeader, "1"), said(point, seqHeader, "2"))
	r := u.call(t, `millrace.natsStream(%q, "chat", {}, {cancelAfter: 1})`, url)
	require.True(t, r.Cancelled)
	require.Equal(t, "Washington", r.Text)
}

func TestNATSRequestReturnsTheAnswer(t *testing.T) {
	u := newUser(t)
	url := serveNATS(t, said(`{"choices":[{"message":{"content":"Paris"},"finish_reason":"stop"}],"usage":{"completion_tokens":2}}`))
	r := u.call(t, `millrace.natsRequest(%q, "chat", "{}")`, url)
	require.Empty(t, r.Error)
	require.Equal(t, "Paris", r.Text)
	require.Equal(t, map[string]float64{"millrace_tokens": 2}, u.counted())
}

func TestNATSRefusalsAreTold(t *testing.T) {
	u := newUser(t)
	url := serveNATS(t, said("{}", errorHeader, "busy", errorCodeHeader, "429"))
	r := u.call(t, `millrace.natsRequest(%q, "chat", {})`, url)
	require.Equal(t, "error reply 429: busy", r.Error)
	require.Equal(t, map[string]float64{"millrace_rejections": 1}, u.counted())
	r = u.call(t, `millrace.natsStream(%q, "nobody", {})`, url)
	require.Contains(t, r.Error, "no responders")
	r = u.call(t, `millrace.natsRequest("nats://127.0.0.1:1", "chat", {})`)
	require.Contains(t, r.Error, "nats://127.0.0.1:1")
}

// TestTheKeyInTheURLIsSentWithEachRequest: as the connection's token, in the header, and by inboxes
// that are the key's.
func TestTheKeyInTheURLIsSentWithEachRequest(t *testing.T) {
	const key = "mr-0123456789ab-secret"
	srv, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, NoLog: true, NoSigs: true,
		Authorization: key})
	require.NoError(t, err)
	srv.Start()
	t.Cleanup(srv.Shutdown)
	require.True(t, srv.ReadyForConnections(10*time.Second))
	url := strings.Replace(srv.ClientURL(), "://", "://"+key+"@", 1)
	nc, err := nats.Connect(url)
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	requests := make(chan *nats.Msg, 2)
	_, err = nc.Subscribe("chat", func(m *nats.Msg) {
		requests <- m
		_ = m.RespondMsg(said(capital, seqHeader, "1", endHeader, "stop"))
	})
	require.NoError(t, err)
	require.NoError(t, nc.Flush())
	u := newUser(t)
	require.Empty(t, u.call(t, `millrace.natsStream(%q, "chat", {})`, url).Error)
	require.Empty(t, u.call(t, `millrace.natsRequest(%q, "chat", {})`, url).Error)
	for range 2 {
		m := <-requests
		require.Equal(t, "Bearer "+key, m.Header.Get("Authorization"))
		require.True(t, strings.HasPrefix(m.Reply, "_INBOX.key.0123456789ab."), m.Reply)
	}
	r := u.call(t, `millrace.natsStream("nats://mr-0123456789ab-other@127.0.0.1:1", "chat", {})`)
	require.NotEmpty(t, r.Error)
	require.NotContains(t, r.Error, "other", "a key is in no message")
}
