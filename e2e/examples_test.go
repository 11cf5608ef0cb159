package e2e_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
)

// TestExamplesStreamCancelAndResume runs every program of examples/. The reference backend takes tenths of a second for
// an answer: a client that cancels or reconnects does so before the end. A program that leaves its
// request running fails: recordHTTP passes its next request only then, and recordNATS still listens after its end.
func TestExamplesStreamCancelAndResume(t *testing.T) {
	s := startServer(t, "--backend", "ref")
	overHTTP, resumedHTTP := recordHTTP(t, "http://"+s.http)
	overNATS, resumedNATS := "nats://"+s.nats, recordNATS(t, s)
	python, err := filepath.Abs("../build/venv/bin/python")
	require.NoError(t, err)
	for _, c := range []struct {
		name    string
		command []string
		resumed *atomic.Int32
	}{
		{"Go over HTTP", []string{"go", "run", "../examples/go/http", overHTTP}, resumedHTTP},
		{"Go over NATS", []string{"go", "run", "../examples/go/nats", overNATS}, resumedNATS},
		{"Python over HTTP", []string{python, "../examples/python/chat_http.py", overHTTP}, resumedHTTP},
		{"Python over NATS", []string{python, "../examples/python/chat_nats.py", overNATS}, resumedNATS},
		{"JavaScript over HTTP", []string{"node", "../examples/javascript/chat_http.js", overHTTP}, resumedHTTP},
		{"JavaScript over NATS", []string{"node", "../examples/javascript/chat_nats.js", overNATS}, resumedNATS},
	} {
		t.Run(c.name, func(t *testing.T) {
			finished := func(reason string) float64 {
				return metric(t, s, `millrace_request_success_total{finished_reason="`+reason+`"`)
			}
			whole, cancelled := finished("stop"), finished("cancelled")
			c.resumed.Store(0)
			ctx, end := context.WithTimeout(t.Context(), time.Minute)
			defer end()
			out, err := exec.CommandContext(ctx, c.command[0], c.command[1:]...).CombinedOutput()
			require.NoError(t, err, "%s\n`make python node` installs what the examples need", out)
			lines := strings.Split(strings.TrimSpace(string(out)), "\n")
			require.Len(t, lines, 3, "%s", out)
			require.Equal(t, "stream: The capital of the United States is Washington, D.C.", lines[0])
			require.Regexp(t, `^cancel: \w+$`, lines[1])
			require.Equal(t, "resume: 1, 2, 3, 4, 5, 6, 7, 8, 9, 10.", lines[2])
			require.EqualValues(t, 1, c.resumed.Load(), "requests for the rest of an answer")
			require.Eventually(t, func() bool { return finished("cancelled") == cancelled+1 }, patience, 10*time.Millisecond)
			require.Equal(t, whole+2, finished("stop"), "the resumed request runs once")
		})
	}
}

// recordHTTP returns the address of a proxy before a server, and the number of requests that resume an answer: those
// for its log and those whose request_id was there before. It passes one request at a time: the next one waits until
// the last one has ended or its client has left it.
func recordHTTP(t *testing.T, server string) (address string, resumed *atomic.Int32) {
	t.Helper()
	target, err := url.Parse(server)
	require.NoError(t, err)
	proxy := httputil.NewSingleHostReverseProxy(target)
	proxy.ErrorHandler = func(http.ResponseWriter, *http.Request, error) {} // the client left
	resumed = new(atomic.Int32)
	var turn sync.Mutex
	known := map[string]bool{}
	record := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return // the client left
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		var request struct {
			ID string `json:"request_id"`
		}
		turn.Lock()
		defer turn.Unlock()
		if json.Unmarshal(body, &request) == nil && known[request.ID] || r.Method == http.MethodGet &&
			strings.HasPrefix(r.URL.Path, "/v1/streams/") {
			resumed.Add(1)
		}
		known[request.ID] = request.ID != ""
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(record.Close)
	return record.URL, resumed
}

// recordNATS returns the number of requests that resume an answer. It listens to all answers, too. So the NATS server
// never notifies a gateway that nobody listens any more: only a message to the cancel subject cancels a request.
func recordNATS(t *testing.T, s *server) (resumed *atomic.Int32) {
	t.Helper()
	nc := s.connect(t)
	resumed = new(atomic.Int32)
	_, err := nc.Subscribe("millrace.v1.>", func(m *nats.Msg) {
		if strings.HasSuffix(m.Subject, ".streams.resume") {
			resumed.Add(1)
		}
	})
	require.NoError(t, err)
	_, err = nc.Subscribe(nats.InboxPrefix+">", func(*nats.Msg) {})
	require.NoError(t, err)
	require.NoError(t, nc.Flush())
	return resumed
}
