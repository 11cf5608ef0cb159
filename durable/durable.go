// Package durable has what its folders share: those of everything that outlives a connection or a gateway, in JetStream. It must not know
// what they store.
package durable

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/millrace/millrace/api"
)

// Keys are the API keys of the server.
type Keys interface {
	// Caller returns the holder of the key with the id, or nil if there is none.
	Caller(id string) api.Caller
	// Tenants returns the number of tenants that have keys.
	Tenants() int
}

// tenantDigits is the length of a tenant's token in hexadecimal digits.
const tenantDigits = 20

// TenantToken returns the token that stands for a tenant in the subjects and names of everything that is stored for it. It has a fixed
// length for any name and does not reveal the name. Without API keys, the tenant "" has a token too.
func TenantToken(tenant string) string {
	sum := sha256.Sum256([]byte(tenant))
	return hex.EncodeToString(sum[:])[:tenantDigits]
}

// WrongLast reports whether an error of a publication means that its subject has another last message than the expected one. A clustered
// server has a second code for it, without the sequence found.
func WrongLast(err error) bool {
	var e *jetstream.APIError
	return errors.As(err, &e) && (e.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence ||
		e.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequenceConstant)
}

// Pause waits until the time is over or there is news; nil: there is none. It returns false if ctx ended first.
func Pause(ctx context.Context, d time.Duration, news <-chan struct{}) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-news:
	case <-t.C:
	}
	return true
}
