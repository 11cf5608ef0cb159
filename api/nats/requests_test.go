package natsapi

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAClosedServiceWaitsForWhatItAnswers(t *testing.T) {
	q := newRequests(2, func() int { return 1 })
	require.NoError(t, q.enter("a"))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	q.close(ctx, func() { q.leave("a") })
	require.Equal(t, errStopping, q.enter("a"))
	newRequests(2, func() int { return 1 }).close(t.Context(), nil)
}
