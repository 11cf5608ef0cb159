package load

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/client"
)

// answers is a server whose answer is the body of the request; "full" is refused.
func answers(t *testing.T) (*Client, *atomic.Int32) {
	connections := &atomic.Int32{}
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if r.URL.Path != "/v1/completions" || r.Header.Get("Authorization") != "Bearer secret" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		if string(body) == "full" {
			w.Header().Set("Retry-After", "7")
			w.WriteHeader(http.StatusTooManyRequests)
		}
		_, _ = w.Write(body)
	}))
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			connections.Add(1)
		}
	}
	s.Start()
	t.Cleanup(s.Close)
	c, err := NewClient(s.URL, "secret")
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c, connections
}

const (
	silent = `data: {"choices":[{"text":""}]}` + "\n\n"
	token  = `id: 1` + "\n" + `data: {"choices":[{"text":"a"}]}` + "\n\n"
	last   = `data: {"choices":[],"usage":{"completion_tokens":5}}` + "\n\n"
	done   = "data: [DONE]\n\n"
)

func TestAnAnswerIsReadToItsEnd(t *testing.T) {
	c, connections := answers(t)
	begin := time.Now().Add(-time.Hour)
	for _, body := range []string{silent + ": ping\n" + token + token + last + done, token + last + done} {
		var o Outcome
		o.ask(c, []byte(body), begin, time.Minute)
		require.NoError(t, o.Err)
		require.True(t, o.Served())
		require.Equal(t, 5, o.Tokens)
		require.GreaterOrEqual(t, o.Sent, time.Hour)
		require.Less(t, o.Sent, o.First)
		require.Less(t, o.First, o.End, "the first token was not the end")
	}
	require.EqualValues(t, 1, connections.Load())
}

func TestARefusalKeepsItsConnection(t *testing.T) {
	c, connections := answers(t)
	for range 3 {
		var o Outcome
		o.ask(c, []byte("full"), time.Now(), time.Minute)
		require.NoError(t, o.Err)
		require.True(t, o.Refused)
		require.Equal(t, 7*time.Second, o.RetryAfter)
	}
	require.EqualValues(t, 1, connections.Load())
}

func TestABadAnswerFails(t *testing.T) {
	c, _ := answers(t)
	for body, want := range map[string]string{
		token + last: client.ErrCut.Error(),
		token + `data: {"error":{"message":"broken"}}` + "\n\n" + done: "broken",
		`data: {` + "\n\n" + done:                                      "JSON",
	} {
		var o Outcome
		o.ask(c, []byte(body), time.Now(), time.Minute)
		require.False(t, o.Served())
		require.ErrorContains(t, o.Err, want)
	}
	var o Outcome
	stranger := &Client{address: c.address, head: "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: "}
	defer stranger.Close()
	o.ask(stranger, []byte(done), time.Now(), time.Minute)
	require.ErrorContains(t, o.Err, fmt.Sprint(http.StatusUnauthorized))
}
