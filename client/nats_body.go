package client

import (
	"context"
	"errors"
	"fmt"
	"maps"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nuid"

	"github.com/millrace/millrace/api/natsapi/bodies"
)

// request is the message for a body, or one that stands for it.
func (t *natsTransport) request(ctx context.Context, subject string, body []byte) (*nats.Msg, error) {
	m := nats.NewMsg(subject)
	maps.Copy(m.Header, t.header)
	inject(ctx, m.Header)
	const headers = 4 << 10 // room for them: they count
	if int64(len(body))+headers <= t.nc.MaxPayload() {
		m.Data = body
		return m, nil
	}
	ctx, cancel := context.WithTimeout(ctx, bodies.Wait)
	defer cancel()
	name := nuid.Next()
	store, err := bodies.Open(ctx, t.nc)
	if err == nil {
		_, err = store.PutBytes(ctx, name, body)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %d bytes, a NATS message at most %d, and the bucket %s takes none: %w",
			ErrTooLarge, len(body), t.nc.MaxPayload(), bodies.Bucket, err)
	}
	m.Header.Set(headerBody, name)
	return m, nil
}

// body is an answer's, wherever it is.
func (t *natsTransport) body(ctx context.Context, m *nats.Msg) ([]byte, error) {
	name := m.Header.Get(headerBody)
	if name == "" {
		return m.Data, nil
	}
	ctx, cancel := context.WithTimeout(ctx, bodies.Wait)
	defer cancel()
	store, err := bodies.Open(ctx, t.nc)
	if err != nil {
		return nil, fmt.Errorf("millrace: an answer in the bucket %s: %w", bodies.Bucket, err)
	}
	body, err := store.GetBytes(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("millrace: answer %s in the bucket %s: %w", name, bodies.Bucket, err)
	}
	return body, errors.Join(store.Delete(ctx, name))
}
