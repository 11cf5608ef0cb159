package natsapi

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"

	"github.com/millrace/millrace/api"
)

// Bucket is the JetStream object store of bodies above a NATS message's size. A
// message with the header HeaderBody stands for the object that it names; who
// takes the object deletes it.
const (
	Bucket     = "millrace-bodies"
	bodiesKept = 5 * time.Minute // where nobody takes them
	bodiesMost = 512 << 20       // bytes of all of them
	bodyWait   = 30 * time.Second
)

// bodies opens the bucket, and makes it where it is missing.
func (s *Service) bodies(ctx context.Context) (jetstream.ObjectStore, error) {
	js, err := jetstream.New(s.nc)
	if err != nil {
		return nil, err
	}
	store, err := js.ObjectStore(ctx, Bucket)
	if errors.Is(err, jetstream.ErrBucketNotFound) {
		return js.CreateObjectStore(ctx, jetstream.ObjectStoreConfig{Bucket: Bucket, Storage: jetstream.MemoryStorage,
			TTL: bodiesKept, MaxBytes: bodiesMost, Description: "Millrace: bodies above a message's size"})
	}
	return store, err
}

// fetch takes the body that a request refers to.
func (s *Service) fetch(ctx context.Context, name string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, bodyWait)
	defer cancel()
	store, err := s.bodies(ctx)
	if err != nil {
		return nil, &api.Error{Code: api.CodeUnavailable, Reason: "bodies_unavailable", RetryAfter: time.Second,
			Message: "bodies above a message's size need JetStream, which does not answer"}
	}
	info, err := store.GetInfo(ctx, name)
	if err != nil {
		return nil, api.Invalid(HeaderBody, "%s: no object %q in the bucket %s", HeaderBody, name, Bucket)
	}
	defer store.Delete(context.WithoutCancel(ctx), name) //nolint:errcheck // it also expires
	if info.Size > uint64(s.opts.MaxBody) {
		return nil, &api.Error{Code: api.CodeTooLarge,
			Message: fmt.Sprintf("the request has %d bytes, more than %d", info.Size, s.opts.MaxBody)}
	}
	body, err := store.GetBytes(ctx, name)
	if err != nil {
		return nil, api.Invalid(HeaderBody, "%s: object %q could not be read: %v", HeaderBody, name, err)
	}
	return body, nil
}

// put keeps an answer for the client to take, and returns its name.
func (s *Service) put(ctx context.Context, body []byte) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, bodyWait)
	defer cancel()
	store, err := s.bodies(ctx)
	if err != nil {
		return "", err
	}
	name := nuid.Next()
	_, err = store.PutBytes(ctx, name, body)
	return name, err
}
