package wait_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/e2e/wait"
)

func TestForReturnsTheCauseOfAnEndedContext(t *testing.T) {
	over := errors.New("the limit is over")
	ctx, cancel := context.WithCancelCause(t.Context())
	require.NoError(t, wait.For(ctx, time.Nanosecond))
	cancel(over)
	require.ErrorIs(t, wait.For(ctx, time.Hour), over)
}
