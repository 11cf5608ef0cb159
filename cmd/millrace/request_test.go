package main

import (
	"bytes"
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
	"github.com/stretchr/testify/require"

	natsapi "github.com/millrace/millrace/api/nats"
	"github.com/millrace/millrace/config"
	"github.com/millrace/millrace/e2e/natstest"
)

// natsServer runs an embedded server and connects to it.
func natsServer(t *testing.T) (url string, nc *nats.Conn) {
	t.Helper()
	s := natstest.Start(t, nil)
	return s.ClientURL(), natstest.Connect(t, s)
}

// respond replies to each request with one message per header.
func respond(t *testing.T, nc *nats.Conn, subject string, headers ...nats.Header) {
	t.Helper()
	_, err := nc.Subscribe(subject, func(m *nats.Msg) {
		for i, h := range headers {
			reply := nats.NewMsg(m.Reply)
			reply.Header = h
			reply.Data = fmt.Appendf(nil, "%d %s", i, m.Data)
			if err := nc.PublishMsg(reply); err != nil && !nc.IsClosed() { // the test may be over
				t.Errorf("reply %d: %v", i, err)
			}
		}
	})
	require.NoError(t, err)
	require.NoError(t, nc.Flush())
}

func seq(n int, end ...string) nats.Header {
	h := nats.Header{natsapi.HeaderSeq: {fmt.Sprint(n)}}
	if len(end) > 0 {
		h[natsapi.HeaderEnd] = end
	}
	return h
}

func ask(url, subject, body string, stream bool) (string, error) {
	var out bytes.Buffer
	o := requestOptions{url: url, stream: stream, timeout: 30 * time.Second}
	err := request(context.Background(), &out, o, subject, []byte(body))
	return out.String(), err
}

func TestRequestPrintsEveryMessageOfAStream(t *testing.T) {
	url, nc := natsServer(t)
	respond(t, nc, "s", seq(1), seq(2), seq(3, "stop"), seq(4))

	out, err := ask(url, "s", `{"a":1}`, true)
	require.NoError(t, err)
	require.Equal(t, "0 {\"a\":1,\"stream\":true}\n1 {\"a\":1,\"stream\":true}\n2 {\"a\":1,\"stream\":true}\n", out)

	out, err = ask(url, "s", `{"stream":true}`, false)
	require.NoError(t, err, "a request for a stream")
	require.Equal(t, "0 {\"stream\":true}\n1 {\"stream\":true}\n2 {\"stream\":true}\n", out)
}

func TestRequestWithoutAStreamPrintsOneReply(t *testing.T) {
	url, nc := natsServer(t)
	respond(t, nc, "one", nil, nil)
	out, err := ask(url, "one", "not JSON", false)
	require.NoError(t, err)
	require.Equal(t, "0 not JSON\n", out)
}

func TestRequestFailsOnAnErrorReply(t *testing.T) {
	url, nc := natsServer(t)
	respond(t, nc, "bad", nats.Header{micro.ErrorHeader: {"no model x"}, micro.ErrorCodeHeader: {"404"}})
	out, err := ask(url, "bad", `{}`, false)
	require.EqualError(t, err, "error reply 404: no model x")
	require.Equal(t, "0 {}\n", out, "the reply itself is printed")
}

func TestRequestReportsAGapAndABrokenEnd(t *testing.T) {
	url, nc := natsServer(t)
	respond(t, nc, "gap", seq(1), seq(3, "stop"))
	_, err := ask(url, "gap", `{}`, true)
	require.EqualError(t, err, `stream broken: found Millrace-Seq "3", expected 2`)

	respond(t, nc, "end", seq(1), seq(2, "error"))
	_, err = ask(url, "end", `{}`, true)
	require.EqualError(t, err, "the stream ended with an error")
}

func TestRequestSaysWhenNobodyListens(t *testing.T) {
	url, nc := natsServer(t)
	_, err := ask(url, "nobody", `{}`, false)
	require.EqualError(t, err, "no service answers nobody at "+url)

	nc.Close()
	_, err = ask("nats://127.0.0.1:1", "x", `{}`, false)
	require.ErrorIs(t, err, nats.ErrNoServers)
}

func TestRequestWithNoReplyEndsAfterItsTimeout(t *testing.T) {
	url, nc := natsServer(t)
	respond(t, nc, "silent") // takes the request and says nothing
	err := request(context.Background(), &bytes.Buffer{}, requestOptions{url: url, timeout: time.Millisecond}, "silent", nil)
	require.EqualError(t, err, "no reply from silent within 1ms")
}

func TestStreamNeedsAJSONObject(t *testing.T) {
	for _, body := range []string{"", "[1]", "null", "{"} {
		_, err := ask("nats://127.0.0.1:1", "x", body, true)
		require.ErrorIs(t, err, config.ErrUsage, body)
	}
}
