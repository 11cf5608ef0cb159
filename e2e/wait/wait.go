// Package wait waits inside the fault suite and the attack suite. It must not know what for.
package wait

import (
	"context"
	"time"
)

// For waits for d. It returns the cause if ctx ends before.
func For(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
