package natsapi

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nuid"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/natsapi/bodies"
)

// fetch takes the body that a request refers to.
func (s *Service) fetch(ctx context.Context, name string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, bodies.Wait)
	defer cancel()
	store, err := bodies.Open(ctx, s.nc)
	if err != nil {
		return nil, &api.Error{Code: api.CodeUnavailable, Reason: "bodies_unavailable", RetryAfter: time.Second,
			Message: "bodies above a message's size need JetStream, which does not answer"}
	}
	info, err := store.GetInfo(ctx, name)
	if err != nil {
		return nil, api.Invalid(HeaderBody, "%s: no object %q in the bucket %s", HeaderBody, name, bodies.Bucket)
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
	ctx, cancel := context.WithTimeout(ctx, bodies.Wait)
	defer cancel()
	store, err := bodies.Open(ctx, s.nc)
	if err != nil {
		return "", err
	}
	name := nuid.Next()
	_, err = store.PutBytes(ctx, name, body)
	return name, err
}
