// Package durable has what its folders share: those of everything that outlives a connection or a gateway, in JetStream. It must not know
// what they store.
package durable

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"time"

	"github.com/nats-io/nats.go"
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

// Patience is how many times the timeout of a request Settle waits: NATS elects a leader after 4 to 9 s, and a request has 2 s or more.
const Patience = 6

// Settle tries to create something in JetStream until it is there, or the error is one that stays. Servers that have just started, or have
// lost a leader, do not answer or say that they cannot yet, and a stream that another process creates at the same time has its name before
// all servers know it. A process that took that for a fault would be without what is stored until it is started again. Each try has a
// timeout. It gives up after Patience times that, with the last error.
func Settle(ctx context.Context, timeout time.Duration, try func(context.Context) error) error {
	const pause = 50 * time.Millisecond
	ctx, cancel := context.WithTimeout(ctx, Patience*timeout)
	defer cancel()
	for {
		once, stop := context.WithTimeout(ctx, timeout)
		err := try(once)
		stop()
		if err == nil || !passing(err) || !Pause(ctx, pause, nil) {
			return err
		}
	}
}

// Error codes of JetStream that the client library has no names of.
const (
	noPeers      jetstream.ErrorCode = 10005 // too few servers for the replicas
	notAvailable jetstream.ErrorCode = 10008 // no leader
)

// passing reports whether the answer to a request to create something can be another one soon.
func passing(err error) bool {
	var e *jetstream.APIError
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, nats.ErrTimeout) || errors.Is(err, jetstream.ErrStreamNotFound) ||
		errors.Is(err, jetstream.ErrBucketNotFound) || errors.As(err, &e) && (e.ErrorCode == noPeers || e.ErrorCode == notAvailable)
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
