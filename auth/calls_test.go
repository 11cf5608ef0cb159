package auth

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/call"
)

type noCalls struct{ call.Runner }

func (noCalls) Attach(context.Context, string) (call.Answer, error) {
	return nil, &api.Error{Code: api.CodeNotFound, Message: "none"}
}

func (noCalls) Cancel(context.Context, string) error {
	return &api.Error{Code: api.CodeNotFound, Message: "none"}
}

// TestResumedStreamsAreChargedToTheirKey has ids that do not exist. A key without limits is not refused, nor are the requests of a key
// whose resumes are used up.
func TestResumedStreamsAreChargedToTheirKey(t *testing.T) {
	now := time.Now().Add(time.Hour)
	var limited, free Entry
	_, limited = NewKey("evil")
	limited.RequestsPerMinute = 100
	_, free = NewKey("acme")
	r := ring(t, limited, free)
	calls := GuardCallsAt(noCalls{}, func() time.Time { return now })
	try := func(e Entry, cancel bool) int {
		ctx := api.WithCaller(t.Context(), r.Caller(e.ID))
		_, err := calls.Attach(ctx, "x")
		if cancel {
			err = calls.Cancel(ctx, "x")
		}
		return int(api.AsError(err).Code)
	}
	r.Key(limited.ID).limiter.set(&limited, now)
	for range 50 {
		require.Equal(t, 404, try(limited, true)) // two each
	}
	require.Equal(t, 429, try(limited, false))
	require.Equal(t, 429, try(limited, true))
	for range 1000 {
		require.Equal(t, 404, try(free, false))
	}
	require.NoError(t, r.Key(limited.ID).limiter.enter(now, 1))
	now = now.Add(6 * time.Second)
	for range 10 {
		require.Equal(t, 404, try(limited, false))
	}
	require.Equal(t, 429, try(limited, false))
	_, err := calls.Attach(t.Context(), "x")
	require.ErrorIs(t, err, errUnauthorized)
}
