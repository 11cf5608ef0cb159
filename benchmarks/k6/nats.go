package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/grafana/sobek"
	"github.com/nats-io/nats.go"
)

// Headers of Millrace's NATS service, and those of a NATS micro error reply.
const (
	seqHeader       = "Millrace-Seq"  // 1, 2, ... without a gap
	endHeader       = "Millrace-End"  // on the last message
	pingHeader      = "Millrace-Ping" // a sign of life, without a number
	errorHeader     = "Nats-Service-Error"
	errorCodeHeader = "Nats-Service-Error-Code"
)

// natsRequest(url, subject, body, {timeout}) sends a request and waits for its
// one reply. An API key is the token in the URL: nats://KEY@HOST.
func (m *instance) natsRequest(url, subject string, request, opts sobek.Value) (*result, error) {
	return m.nats(url, request, opts, false, func(ctx context.Context, a *answer, nc *nats.Conn, payload []byte, _ options) error {
		return a.readReply(ctx, nc, message(url, subject, payload))
	})
}

// natsStream(url, subject, body, {timeout, cancelAfter}) sends a request with
// "stream": true and reads the answer, checking that no message is missing.
func (m *instance) natsStream(url, subject string, request, opts sobek.Value) (*result, error) {
	return m.nats(url, request, opts, true, func(ctx context.Context, a *answer, nc *nats.Conn, payload []byte, o options) error {
		return a.readStream(ctx, nc, message(url, subject, payload), o.cancelAfter)
	})
}

type exchange func(ctx context.Context, a *answer, nc *nats.Conn, payload []byte, o options) error

func (m *instance) nats(url string, request, opts sobek.Value, stream bool, do exchange) (*result, error) {
	o, err := m.options(opts)
	if err != nil {
		return nil, err
	}
	payload, err := body(request, stream)
	if err != nil {
		return nil, err
	}
	nc, err := m.root.connect(url)
	if err != nil {
		return m.finish(m.vu.Context(), "nats", &answer{started: time.Now()}, err), nil
	}
	ctx, cancel := context.WithTimeout(m.vu.Context(), o.timeout)
	defer cancel()
	a := &answer{started: time.Now()}
	err = do(ctx, a, nc, payload, o)
	return m.finish(m.vu.Context(), "nats", a, err), nil
}

func (a *answer) readReply(ctx context.Context, nc *nats.Conn, m *nats.Msg) error {
	subject := m.Subject
	reply, err := nc.RequestMsgWithContext(ctx, m)
	if err != nil {
		return fmt.Errorf("%s: %w", subject, err)
	}
	a.body = string(reply.Data)
	if err := a.refusal(reply); err != nil {
		return err
	}
	a.status = http.StatusOK
	if err := a.add(reply.Data, time.Now()); err != nil {
		return err
	}
	a.first, a.gaps = time.Time{}, nil // nothing was streamed
	return nil
}

func (a *answer) readStream(ctx context.Context, nc *nats.Conn, m *nats.Msg, cancelAfter int) error {
	subject := m.Subject
	m.Reply = nc.NewRespInbox()
	sub, err := nc.SubscribeSync(m.Reply)
	if err != nil {
		return err
	}
	defer func() { _ = sub.Unsubscribe() }() // fails only on a closed connection
	if err := nc.PublishMsg(m); err != nil {
		return fmt.Errorf("%s: %w", subject, err)
	}
	last := uint64(0)
	for {
		msg, err := sub.NextMsgWithContext(ctx)
		if err != nil {
			return fmt.Errorf("%s: after message %d: %w", subject, last, err)
		}
		if err := a.refusal(msg); err != nil {
			return err
		}
		a.status = http.StatusOK
		if msg.Header.Get(pingHeader) != "" {
			continue
		}
		if got := msg.Header.Get(seqHeader); got != strconv.FormatUint(last+1, 10) {
			return fmt.Errorf("stream broken: found %s %q, expected %d", seqHeader, got, last+1)
		}
		last++
		if len(msg.Data) > 0 {
			if err := a.add(msg.Data, time.Now()); err != nil {
				return err
			}
		}
		switch end := msg.Header.Get(endHeader); end {
		case "":
		case "stop", "length":
			a.finish = end
			return nil
		default:
			return fmt.Errorf("the stream ended with %s", end)
		}
		if a.abandon(cancelAfter) {
			return nil
		}
	}
}

// refusal is the error in an error reply.
func (a *answer) refusal(msg *nats.Msg) error {
	text := msg.Header.Get(errorHeader)
	if text == "" {
		return nil
	}
	a.body = string(msg.Data)
	code := msg.Header.Get(errorCodeHeader)
	status, err := strconv.Atoi(code)
	if err != nil {
		return errors.Join(fmt.Errorf("error reply %q: %s", code, text), err)
	}
	a.status = status
	return fmt.Errorf("error reply %d: %s", status, text)
}
