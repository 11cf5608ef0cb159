package kvmgr

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// tokensFrom are n tokens that no other prompt has, from first on.
func tokensFrom(first, n int) []int32 {
	list := make([]int32, n)
	for i := range list {
		list[i] = int32(first + i)
	}
	return list
}

func TestAnImportFillsTheTreeForOthers(t *testing.T) {
	m, err := New(Config{Slabs: 10, Spec: NewSpec(4, Full{})})
	require.NoError(t, err)
	p := Prompt{Space: "a", Tokens: tokensFrom(100, 14)}
	slabs, computed, err := m.Import(1, Declared(len(p.Tokens)), p)
	require.NoError(t, err)
	require.Len(t, slabs, 4)
	require.Zero(t, computed)
	_, err = m.ReservePrompt(2, Declared(20), p)
	require.ErrorIs(t, err, ErrComputing, "the tokens are on their way")
	_, _, err = m.Import(3, Declared(len(p.Tokens)), p)
	require.ErrorIs(t, err, ErrComputing, "as for another import")
	for tokens := 4; tokens <= 12; tokens += 4 {
		require.NoError(t, m.Commit(1, p.Tokens[:tokens], false))
		require.NoError(t, m.Check())
	}
	require.NoError(t, m.Commit(1, p.Tokens[:13], true))
	_, err = m.Release(1)
	require.NoError(t, err)
	require.NoError(t, m.Check())
	require.ElementsMatch(t, []Seq{2, 3}, m.Ready())
	hit, err := m.ReservePrompt(2, Declared(20), p)
	require.NoError(t, err)
	require.Equal(t, 13, hit.Tokens)
	found, tokens := m.Find(Prompt{Space: "a", Tokens: tokensFrom(100, 14)})
	require.Equal(t, 13, tokens)
	require.Equal(t, slabs, found)
	_, tokens = m.Find(Prompt{Space: "b", Tokens: tokensFrom(100, 14)})
	require.Zero(t, tokens, "another tenant's")
	slabs, _, err = m.Import(4, Declared(len(p.Tokens)), p)
	require.NoError(t, err)
	require.Nil(t, slabs, "all of it is here")
	_, err = m.Release(4)
	require.NoError(t, err)
	require.NoError(t, m.Check())
}

func TestAnImportThatEndsEarlyKeepsWhatCame(t *testing.T) {
	m, err := New(Config{Slabs: 10, Spec: NewSpec(4, Full{})})
	require.NoError(t, err)
	p := Prompt{Space: "a", Tokens: tokensFrom(100, 14)}
	_, _, err = m.Import(1, Declared(len(p.Tokens)), p)
	require.NoError(t, err)
	_, err = m.ReservePrompt(2, Declared(20), p)
	require.ErrorIs(t, err, ErrComputing)
	require.NoError(t, m.Commit(1, p.Tokens[:8], false))
	_, err = m.Release(1)
	require.NoError(t, err)
	require.Equal(t, []Seq{2}, m.Ready())
	slabs, computed, err := m.Import(1, Declared(len(p.Tokens)), p)
	require.NoError(t, err)
	require.Equal(t, 2, computed)
	require.Len(t, slabs, 4)
	require.NoError(t, m.Check())
}

func TestAnImportTakesNothingThatIsPromised(t *testing.T) {
	m, err := New(Config{Slabs: 10, Spec: NewSpec(4, Full{})})
	require.NoError(t, err)
	require.NoError(t, m.Reserve(1, Declared(32))) // eight slabs, none leased
	_, _, err = m.Import(2, Declared(14), Prompt{Tokens: tokensFrom(100, 14)})
	require.ErrorIs(t, err, ErrNoSlabs)
	require.NoError(t, m.Check())
}

func TestATailThatItsSequenceStillWritesIsNotFound(t *testing.T) {
	m, err := New(Config{Slabs: 10, Spec: NewSpec(4, Full{})})
	require.NoError(t, err)
	p := Prompt{Tokens: tokensFrom(100, 6)}
	_, err = m.ReservePrompt(1, Declared(12), p)
	require.NoError(t, err)
	_, err = m.Lease(1, 12)
	require.NoError(t, err)
	require.NoError(t, m.Commit(1, p.Tokens, true))
	_, tokens := m.Find(p)
	require.Equal(t, 4, tokens)
	_, err = m.Release(1)
	require.NoError(t, err)
	_, tokens = m.Find(p)
	require.Equal(t, 6, tokens)
}

// TestATailThatARunningSequenceHasToo is found in the slab of the one that has ended: nobody writes to that.
func TestATailThatARunningSequenceHasToo(t *testing.T) {
	m, err := New(Config{Slabs: 10, Spec: NewSpec(8, Full{})})
	require.NoError(t, err)
	longer := Prompt{Tokens: tokensFrom(100, 7)}
	_, err = m.ReservePrompt(1, Declared(20), longer)
	require.NoError(t, err)
	_, err = m.Lease(1, 8)
	require.NoError(t, err)
	require.NoError(t, m.Commit(1, longer.Tokens, true))
	p := Prompt{Tokens: tokensFrom(100, 5)}
	hit, err := m.ReservePrompt(2, Declared(20), p)
	require.NoError(t, err)
	require.Equal(t, 4, hit.Tokens)
	_, err = m.Lease(2, 8)
	require.NoError(t, err)
	require.NoError(t, m.Commit(2, p.Tokens, true))
	_, tokens := m.Find(p)
	require.Zero(t, tokens, "both are written to")
	slabs, err := m.Release(2)
	require.NoError(t, err)
	require.NoError(t, m.Check())
	_, tokens = m.Find(p)
	require.Equal(t, 5, tokens, "of %d slabs", slabs)
	require.NoError(t, m.Commit(1, longer.Tokens, true))
	_, err = m.Release(1)
	require.NoError(t, err)
	require.NoError(t, m.Check())
	_, tokens = m.Find(longer)
	require.Equal(t, 7, tokens)
}
