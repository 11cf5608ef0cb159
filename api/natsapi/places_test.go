package natsapi

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api"
)

func fill(p *places, tenant string) (n int) {
	for p.enter(tenant) == nil {
		n++
	}
	return n
}

// TestATenantCannotTakeThePlacesOfAnother fills all that one may have. The others find their shares, whole.
func TestATenantCannotTakeThePlacesOfAnother(t *testing.T) {
	p := newPlaces(1024, func() int { return 4 })
	require.Equal(t, 128+512, fill(p, "evil"))
	for _, tenant := range []string{"a", "b", "c"} {
		require.Equal(t, 128, fill(p, tenant))
	}
	err := p.enter("evil")
	require.Equal(t, api.CodeOverloaded, api.AsError(err).Code)
	p.leave("a")
	require.Error(t, p.enter("evil"))
	require.NoError(t, p.enter("a"))
	p.leave("evil")
	require.NoError(t, p.enter("b"), "the first that needs it")
}

func TestOneTenantMayTakeAllPlaces(t *testing.T) {
	require.Equal(t, 1024, fill(newPlaces(1024, func() int { return 1 }), ""))
	require.Equal(t, 1, fill(newPlaces(1, func() int { return 0 }), ""))
}

// TestFewPlacesAreForTheFirst: no tenant has a share of 3 places of which 2 would be divided by 5.
func TestFewPlacesAreForTheFirst(t *testing.T) {
	p := newPlaces(3, func() int { return 5 })
	require.Equal(t, 3, fill(p, "a"))
	require.Error(t, p.enter("b"))
}

// TestTenantsThatComeLaterShrinkTheShares also has requests of a tenant that is gone.
func TestTenantsThatComeLaterShrinkTheShares(t *testing.T) {
	n := 1
	p := newPlaces(100, func() int { return n })
	require.Equal(t, 100, fill(p, "a"))
	n = 10
	require.Error(t, p.enter("b"))
	for range 5 {
		p.leave("a")
	}
	require.Equal(t, 5, fill(p, "b"), "its share")
}

func TestClosedPlacesWaitForThoseWhoHaveOne(t *testing.T) {
	p := newPlaces(2, func() int { return 1 })
	require.NoError(t, p.enter("a"))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	p.close(ctx, func() { p.leave("a") })
	require.Equal(t, errStopping, p.enter("a"))
	newPlaces(2, func() int { return 1 }).close(t.Context(), nil)
}
