package places

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func fill(p *Places, tenant string) (n int) {
	for p.Enter(tenant) {
		n++
	}
	return n
}

// TestATenantCannotTakeThePlacesOfAnother fills all that one may have. The others find their shares, whole.
func TestATenantCannotTakeThePlacesOfAnother(t *testing.T) {
	p := New(1024, func() int { return 4 })
	require.Equal(t, 128+512, fill(p, "evil"))
	for _, tenant := range []string{"a", "b", "c"} {
		require.Equal(t, 128, fill(p, tenant))
	}
	own, all := p.Taken("evil")
	require.Equal(t, []int{640, 1024}, []int{own, all})
	p.Leave("a")
	require.False(t, p.Enter("evil"))
	require.True(t, p.Enter("a"))
	p.Leave("evil")
	require.True(t, p.Enter("b"), "the first that needs it")
}

func TestOneTenantMayTakeAllPlaces(t *testing.T) {
	require.Equal(t, 1024, fill(New(1024, func() int { return 1 }), ""))
	require.Equal(t, 1, fill(New(1, func() int { return 0 }), ""))
}

// TestFewPlacesAreForTheFirst: no tenant has a share of 3 places of which 2 would be divided by 5.
func TestFewPlacesAreForTheFirst(t *testing.T) {
	p := New(3, func() int { return 5 })
	require.Equal(t, 3, fill(p, "a"))
	require.False(t, p.Enter("b"))
}

// TestTenantsThatComeLaterShrinkTheShares also has places of a tenant that is gone.
func TestTenantsThatComeLaterShrinkTheShares(t *testing.T) {
	n := 1
	p := New(100, func() int { return n })
	require.Equal(t, 100, fill(p, "a"))
	n = 10
	require.False(t, p.Enter("b"))
	for range 5 {
		p.Leave("a")
	}
	require.Equal(t, 5, fill(p, "b"), "its share")
}
