package httpapi

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api"
)

type tenant string

func (t tenant) KeyID() string                 { return string(t) }
func (t tenant) TenantName() string            { return string(t) }
func (tenant) Allows(string, []api.Model) bool { return true }

// TestLargeBodiesOfATenantWaitForEachOther: they take neither the room of another tenant, nor that of small bodies.
func TestLargeBodiesOfATenantWaitForEachOther(t *testing.T) {
	const largest = 1 << 20
	b := newBodies(largest, func() int { return 2 })
	b.patience = 50 * time.Millisecond
	evil, acme := api.WithCaller(t.Context(), tenant("evil")), api.WithCaller(t.Context(), tenant("acme"))
	var leaves []func()
	for {
		leave, err := b.enter(evil, largest)
		if err != nil {
			e := api.AsError(err)
			require.Equal(t, api.CodeOverloaded, e.Code)
			require.Equal(t, "bodies_full", e.Reason)
			break
		}
		leaves = append(leaves, leave)
	}
	require.Len(t, leaves, bodiesAtOnce*3/4, "its share, and the half of the first")
	leave, err := b.enter(acme, largest)
	require.NoError(t, err)
	leave()
	leave, err = b.enter(evil, bodyPlace-1)
	require.NoError(t, err, "small bodies take no room")
	leave()

	b.patience = time.Minute
	entered := make(chan error, 1)
	go func() {
		leave, err := b.enter(evil, largest)
		if err == nil {
			leave()
		}
		entered <- err
	}()
	leaves[0]()
	require.NoError(t, <-entered)
	ctx, cancel := context.WithCancel(evil)
	leave, err = b.enter(evil, largest)
	require.NoError(t, err)
	cancel()
	_, err = b.enter(ctx, largest)
	require.ErrorIs(t, err, context.Canceled)
	leave()
	for _, leave := range leaves[1:] {
		leave()
	}
	_, all := b.places.Taken("")
	require.Zero(t, all)
}

// TestTheLargestBodyHasRoom whoever sends it, also where the largest is small.
func TestTheLargestBodyHasRoom(t *testing.T) {
	for _, largest := range []int{1, bodyPlace - 1, bodyPlace, 3*bodyPlace + 5, 8 << 20} {
		for _, tenants := range []int{0, 1, 3, 1000} {
			b := newBodies(int64(largest), func() int { return tenants })
			leave, err := b.enter(t.Context(), largest)
			require.NoError(t, err, "%d of %d tenants", largest, tenants)
			leave()
		}
	}
}
