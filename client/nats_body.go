package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
)

// messageHeaders is the space for the headers of a message, in bytes: NATS counts them as payload.
const messageHeaders = 4 << 10

// Codes of the server after which the client sends a body again.
const (
	codeNoBody = "body_not_found" // the gateway has dropped its parts
	codeFull   = "bodies_full"    // the gateway has no space for it now
)

// errSilent reports that the gateway that received a message does not answer. The parts of a body that it has are lost.
var errSilent = errors.New("the gateway that received the request is silent")

// message returns a request without its body.
func (t *natsTransport) message(ctx context.Context, subject string) *nats.Msg {
	m := nats.NewMsg(subject)
	maps.Copy(m.Header, t.header)
	inject(ctx, m.Header)
	return m
}

// request returns the message of a request. A body larger than a message is uploaded to a gateway in
// parts first, and the message is addressed to that gateway.
func (t *natsTransport) request(ctx context.Context, to, operation string, body []byte) (*nats.Msg, error) {
	if int64(len(body))+messageHeaders <= t.nc.MaxPayload() {
		m := t.message(ctx, to+operation)
		m.Data = body
		return m, nil
	}
	a, err := t.upload(ctx, to, body)
	if err != nil {
		return nil, err
	}
	m := t.message(ctx, a.Subjects+operation)
	m.Header.Set(headerBody, a.ID)
	return m, nil
}

// upload is the answer of a gateway that accepts a body in parts.
type upload struct {
	ID       string // id of the body
	Subjects string // prefix of the gateway's subjects
	Part     int    // largest part, in bytes
}

// upload sends a body in parts. to is the prefix of the subjects of any gateway.
func (t *natsTransport) upload(ctx context.Context, to string, body []byte) (upload, error) {
	var a upload
	m := t.message(ctx, to+"bodies.open")
	m.Data = fmt.Appendf(nil, `{"size":%d}`, len(body))
	answer, err := t.send(ctx, m, firstWait(patientTries, len(m.Data)))
	if err == nil {
		err = json.Unmarshal(answer, &a)
	}
	size := min(a.Part, int(max(t.nc.MaxPayload()-messageHeaders, t.nc.MaxPayload()/2)))
	if err == nil && size <= 0 {
		err = fmt.Errorf("found parts of %d bytes, expected 1 or more", size)
	}
	if said, ok := errors.AsType[*Error](err); ok && said.Status != http.StatusRequestEntityTooLarge && said.Code != codeNobody {
		return a, err
	}
	if err != nil {
		return a, fmt.Errorf("%w: found %d bytes, expected at most %d, a NATS message, since no server accepts parts: %w", ErrTooLarge,
			len(body), t.nc.MaxPayload(), err)
	}
	for offset := 0; offset < len(body); offset += size {
		m := t.message(ctx, a.Subjects+"bodies.part")
		m.Header.Set(headerBody, a.ID)
		m.Header.Set(headerPart, strconv.Itoa(offset))
		m.Data = body[offset:min(offset+size, len(body))]
		if _, err := t.send(ctx, m, firstWait(patientTries, len(m.Data))); err != nil {
			return a, err
		}
	}
	return a, nil
}

// send sends a message and returns its answer, which it waits for as long as patience. The error is errSilent if none
// comes.
func (t *natsTransport) send(ctx context.Context, m *nats.Msg, patience time.Duration) ([]byte, error) {
	timed, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	answer, err := t.exchange(timed, m)
	if err != nil && ctx.Err() == nil && timed.Err() != nil {
		return nil, fmt.Errorf("%w: %w: %w", ErrCut, errSilent, err)
	}
	return answer, err
}

// exchange sends a request and returns its answer, which is one message or several parts.
func (t *natsTransport) exchange(ctx context.Context, m *nats.Msg) ([]byte, error) {
	m.Reply = t.nc.NewRespInbox()
	sub, err := t.nc.SubscribeSync(m.Reply)
	if err != nil {
		return nil, natsError(err)
	}
	defer sub.Unsubscribe() //nolint:errcheck // it fails on a closed connection, which has no subscriptions
	if err := t.nc.PublishMsg(m); err != nil {
		return nil, natsError(err)
	}
	var body []byte
	for part := 1; ; part++ {
		m, err := sub.NextMsgWithContext(ctx)
		if err != nil {
			return nil, natsError(err)
		}
		if e := messageError(m); e != nil {
			return nil, e
		}
		text := m.Header.Get(headerPart)
		if text == "" {
			return m.Data, nil
		}
		var i, of int
		if _, err := fmt.Sscanf(text, "%d/%d", &i, &of); err != nil || i != part {
			return nil, fmt.Errorf("%w: found part %q of the answer, expected number %d", ErrGap, text, part)
		}
		if body = append(body, m.Data...); i == of {
			return body, nil
		}
	}
}
