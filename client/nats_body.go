package client

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"
)

// Bodies above a NATS message's size travel as objects in a JetStream bucket.
// Whoever needs it first makes it, server or client, in the same way.
const (
	bucket     = "millrace-bodies"
	bodiesKept = 5 * time.Minute
	bodiesMost = 512 << 20 // bytes
	bodyWait   = 30 * time.Second
)

// request is the message for a body, or one that stands for it.
func (t *natsTransport) request(ctx context.Context, subject string, body []byte) (*nats.Msg, error) {
	m := nats.NewMsg(subject)
	maps.Copy(m.Header, t.header)
	const headers = 4 << 10 // room for them: they count
	if int64(len(body))+headers <= t.nc.MaxPayload() {
		m.Data = body
		return m, nil
	}
	ctx, cancel := context.WithTimeout(ctx, bodyWait)
	defer cancel()
	name := nuid.Next()
	store, err := t.bucket(ctx)
	if err == nil {
		_, err = store.PutBytes(ctx, name, body)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %d bytes, a NATS message at most %d, and the bucket %s takes none: %w",
			ErrTooLarge, len(body), t.nc.MaxPayload(), bucket, err)
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
	ctx, cancel := context.WithTimeout(ctx, bodyWait)
	defer cancel()
	store, err := t.bucket(ctx)
	if err != nil {
		return nil, fmt.Errorf("millrace: an answer in the bucket %s: %w", bucket, err)
	}
	body, err := store.GetBytes(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("millrace: answer %s in the bucket %s: %w", name, bucket, err)
	}
	return body, errors.Join(store.Delete(ctx, name))
}

func (t *natsTransport) bucket(ctx context.Context) (jetstream.ObjectStore, error) {
	js, err := jetstream.New(t.nc)
	if err != nil {
		return nil, err
	}
	store, err := js.ObjectStore(ctx, bucket)
	if errors.Is(err, jetstream.ErrBucketNotFound) {
		return js.CreateObjectStore(ctx, jetstream.ObjectStoreConfig{Bucket: bucket, Storage: jetstream.MemoryStorage,
			TTL: bodiesKept, MaxBytes: bodiesMost, Description: "Millrace: bodies above a message's size"})
	}
	return store, err
}
