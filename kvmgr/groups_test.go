package kvmgr

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// mixed is a manager of slabs of four tokens. Layers are in one group that sees all tokens, and two whose tokens see ten: of these a
// sequence has at most seven slabs each.
func mixed(t *testing.T, slabs int) *Manager {
	t.Helper()
	m, err := New(layout{Slabs: slabs, SlabTokens: 4, Window: 10, Live: LiveSlabs(10, 9, 4), Groups: Counts{Full: 1, Windowed: 2}}.config())
	require.NoError(t, err)
	return m
}

func TestWindowedGroupsGiveSlabsBackAndFullOnesKeepThem(t *testing.T) {
	m := mixed(t, 100+2*7)
	tokens := tokensFrom(0, 400)
	_, err := m.ReservePrompt(1, Declared(401), Prompt{Tokens: tokens[:40]})
	require.ErrorIs(t, err, ErrNeverFits, "101 + 2 x 7 slabs")
	_, err = m.ReservePrompt(1, Declared(400), Prompt{Tokens: tokens[:40]})
	require.NoError(t, err)
	_, err = m.Lease(1, 29)
	require.ErrorIs(t, err, ErrBeyondReservation, "it gives slabs back first")
	require.Equal(t, 28, m.Limit(1))
	runTo(t, m, 1, tokens, 0)
	first, slabs := m.Live(1)
	require.Zero(t, first)
	require.Len(t, slabs, 300)
	require.Equal(t, 96, m.Released(1))
	for place, id := range slabs {
		require.Equal(t, place%3 > 0 && place/3 < 96, id < 0, "place %d", place)
	}
	require.Equal(t, 2*3, m.Stats().Cached, "given back and not overwritten")
	require.Zero(t, m.Stats().Needed)
}

// TestAHitNeedsAllTokensOfFullGroupsAndTheLastWindowOfTheOthers: it is what all of them have.
func TestAHitNeedsAllTokensOfFullGroupsAndTheLastWindowOfTheOthers(t *testing.T) {
	m := mixed(t, 100+2*10)
	tokens := tokensFrom(0, 399)
	_, err := m.ReservePrompt(1, Declared(400), Prompt{Tokens: tokens[:40]})
	require.NoError(t, err)
	runTo(t, m, 1, tokens, 0)
	_, err = m.Release(1)
	require.NoError(t, err)
	p := Prompt{Tokens: tokensFrom(0, 400)}
	hit, err := m.ReservePrompt(2, Declared(400), p)
	require.NoError(t, err)
	require.Equal(t, 399, hit.Tokens)
	require.Equal(t, 3, hit.Copy.Tokens)
	require.Len(t, hit.Copy.To, 3, "the last tokens of each group")
	require.Equal(t, 97, m.Released(2), "token 399 sees 390")
	require.NoError(t, m.Check())
	_, err = m.Release(2)
	require.NoError(t, err)
	for _, n := range []int{100, 376} { // the windows of these are gone
		_, have := m.Find(Prompt{Tokens: tokens[:n]}, false)
		require.Zero(t, have, "%d tokens", n)
	}
	slabs, have := m.Find(p, false)
	require.Equal(t, 399, have)
	require.Len(t, slabs, 3*100)

	m.free.put(int(m.trees[0].evict())) // the last slab of the full group, which is not full
	_, have = m.Find(p, false)
	require.Equal(t, 396, have, "the others have a token more")
	require.NoError(t, m.Reserve(3, Declared(4)))
	_, err = m.Lease(3, 4)
	require.NoError(t, err)
	require.NoError(t, m.Check())
}

// TestALeaseOfAGroupIsOneRun: neighbors are mapped by one call.
func TestALeaseOfAGroupIsOneRun(t *testing.T) {
	m := mixed(t, 60)
	require.NoError(t, m.Reserve(1, Declared(28)))
	slabs, err := m.Lease(1, 16)
	require.NoError(t, err)
	require.Equal(t, []int32{0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11}, slabs)
}

func TestAnImportOfGroupsHasAllSlabsOfTheFullOnes(t *testing.T) {
	m := mixed(t, 100)
	p := Prompt{Tokens: tokensFrom(0, 102)}
	slabs, computed, err := m.Import(1, Declared(200), p, false)
	require.NoError(t, err)
	require.Zero(t, computed)
	require.Len(t, slabs, 3*26)
	for place, id := range slabs {
		require.Equal(t, m.Copied(102, place, false), id >= 0, "place %d", place)
		require.Equal(t, place%3 == 0 || place/3 >= (101-9-4)/4, id >= 0, "place %d", place)
	}
	for i := range 26 {
		end := min(4*(i+1), 101)
		require.NoError(t, m.Commit(1, p.Tokens[:end], end%4 > 0))
		require.NoError(t, m.Check())
	}
	_, err = m.Release(1)
	require.NoError(t, err)
	hit, err := m.ReservePrompt(2, Declared(200), p)
	require.NoError(t, err)
	require.Equal(t, 101, hit.Tokens)
	require.NoError(t, m.Check())
}
