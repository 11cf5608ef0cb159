// Package bodies is where bodies above a NATS message's size travel: the JetStream
// object store that server and client share. It stands apart, so that the client
// needs nothing else of the server.
package bodies

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Bucket is the object store's name. A message with the header natsapi.HeaderBody stands
// for the object that it names; who takes the object deletes it.
const (
	Bucket = "millrace-bodies"
	Wait   = 30 * time.Second // for the store, at most
	kept   = 5 * time.Minute  // where nobody takes them
	most   = 512 << 20        // bytes of all of them
)

// Open opens the bucket, and makes it where it is missing: whoever needs it first does.
func Open(ctx context.Context, nc *nats.Conn) (jetstream.ObjectStore, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, err
	}
	store, err := js.ObjectStore(ctx, Bucket)
	if errors.Is(err, jetstream.ErrBucketNotFound) {
		return js.CreateObjectStore(ctx, jetstream.ObjectStoreConfig{Bucket: Bucket, Storage: jetstream.MemoryStorage,
			TTL: kept, MaxBytes: most, Description: "Millrace: bodies above a message's size"})
	}
	return store, err
}
