package kvmgr

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestASequenceHasSlabsBeforeThoseOfItsTokens(t *testing.T) {
	m, err := New(Config{Slabs: 20, Spec: NewSpec(4, Full{Head: 3})})
	require.NoError(t, err)
	prompt := Prompt{Tokens: tokensFrom(0, 9)}
	hit, err := m.ReservePrompt(1, Length{End: 40, Promise: 12}, prompt)
	require.NoError(t, err)
	require.Zero(t, hit)
	require.Equal(t, 20-3-3, m.Stats().Free)
	slabs, err := m.Lease(1, 1)
	require.NoError(t, err)
	require.Len(t, slabs, 4)
	slabs, err = m.Lease(1, 4)
	require.NoError(t, err)
	require.Empty(t, slabs)
	slabs, err = m.Lease(1, 12)
	require.NoError(t, err)
	require.Len(t, slabs, 2)
	_, err = m.Lease(1, 13)
	require.ErrorIs(t, err, ErrBeyondReservation)
	require.NoError(t, m.Commit(1, tokensFrom(0, 12), true))
	require.NoError(t, m.Grow(1, 40))
	_, err = m.ReservePrompt(2, Declared(20), prompt)
	require.ErrorIs(t, err, ErrNoSlabs, "13 of 20 slabs are promised, and this one needs 8")
	_, err = m.ReservePrompt(2, Declared(16), prompt)
	require.NoError(t, err)
	require.Zero(t, m.Stats().Shared, "no prefix is shared")
	require.NoError(t, m.Check())
}
