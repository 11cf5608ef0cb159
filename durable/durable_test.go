package durable_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/durable"
)

func TestSettleWaitsForAnAnswerThatStays(t *testing.T) {
	api := func(code jetstream.ErrorCode) error { return &jetstream.APIError{Code: 503, ErrorCode: code} }
	for _, c := range []struct {
		name  string
		err   error
		waits bool
	}{
		{"no answer", context.DeadlineExceeded, true},
		{"no answer, by the connection", nats.ErrTimeout, true},
		{"a stream that only its creator knows", jetstream.ErrStreamNotFound, true},
		{"its bucket", jetstream.ErrBucketNotFound, true},
		{"no leader", api(10008), true},
		{"too few servers", api(10005), true},
		{"no JetStream", jetstream.ErrJetStreamNotEnabled, false},
		{"no room", api(10047), false},
		{"another fault", errors.New("no"), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tries, begin := 0, time.Now()
				try := func(context.Context) error {
					if tries++; tries <= 3 {
						return c.err
					}
					return nil
				}
				if err := durable.Settle(t.Context(), time.Second, try); c.waits {
					require.NoError(t, err)
					require.Equal(t, 4, tries)
				} else {
					require.ErrorIs(t, err, c.err)
					require.Equal(t, 1, tries)
				}
				if c.waits { // but not for good
					require.ErrorIs(t, durable.Settle(t.Context(), time.Second, func(context.Context) error { return c.err }), c.err)
					require.Less(t, time.Since(begin), (durable.Patience+1)*time.Second)
				}
			})
		})
	}
}

func TestSettleBoundsEachTry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin, tries := time.Now(), 0
		require.NoError(t, durable.Settle(t.Context(), 2*time.Second, func(ctx context.Context) error {
			if tries++; tries > 2 {
				return nil
			}
			<-ctx.Done() // a server that does not answer
			return ctx.Err()
		}))
		require.Equal(t, 3, tries)
		require.Less(t, time.Since(begin), 5*time.Second)
	})
}
