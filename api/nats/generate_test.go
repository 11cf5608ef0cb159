package natsapi

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api/call"
	"github.com/millrace/millrace/e2e/natstest"
	"github.com/millrace/millrace/tracing"
)

// TestACancelledStreamEndsForItsReason though its events have ended, too: a client resumes one that has moved.
func TestACancelledStreamEndsForItsReason(t *testing.T) {
	nc, err := nats.Connect(natstest.Start(t, nil).ClientURL())
	require.NoError(t, err)
	defer nc.Close()
	to, err := toInbox(nats.NewInbox())
	require.NoError(t, err)
	s := &Service{opts: Options{PingAfter: time.Hour, Tracer: tracing.Off()}}
	reason := errors.New("moved")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(reason)
	for range 50 {
		r := &reply{nc: nc, out: outbox{nc}, to: to, cancel: "cancel"}
		s.stream(ctx, r, &call.Call{Kind: call.Completion, N: 1}, call.EventsOf())
		require.ErrorIs(t, r.err, reason)
	}
}
