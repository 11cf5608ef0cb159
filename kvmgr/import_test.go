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
	slabs, computed, err := m.Import(1, Declared(len(p.Tokens)), p, false)
	require.NoError(t, err)
	require.Len(t, slabs, 4)
	require.Zero(t, computed)
	_, err = m.ReservePrompt(2, Declared(20), p)
	require.ErrorIs(t, err, ErrComputing, "the tokens are on their way")
	_, _, err = m.Import(3, Declared(len(p.Tokens)), p, false)
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
	found, tokens := m.Find(Prompt{Space: "a", Tokens: tokensFrom(100, 14)}, false)
	require.Equal(t, 13, tokens)
	require.Equal(t, slabs, found)
	_, tokens = m.Find(Prompt{Space: "b", Tokens: tokensFrom(100, 14)}, false)
	require.Zero(t, tokens, "another tenant's")
	slabs, _, err = m.Import(4, Declared(len(p.Tokens)), p, false)
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
	_, _, err = m.Import(1, Declared(len(p.Tokens)), p, false)
	require.NoError(t, err)
	_, err = m.ReservePrompt(2, Declared(20), p)
	require.ErrorIs(t, err, ErrComputing)
	require.NoError(t, m.Commit(1, p.Tokens[:8], false))
	_, err = m.Release(1)
	require.NoError(t, err)
	require.Equal(t, []Seq{2}, m.Ready())
	slabs, computed, err := m.Import(1, Declared(len(p.Tokens)), p, false)
	require.NoError(t, err)
	require.Equal(t, 2, computed)
	require.Len(t, slabs, 4)
	require.NoError(t, m.Check())
}

func TestAnImportTakesNothingThatIsPromised(t *testing.T) {
	m, err := New(Config{Slabs: 10, Spec: NewSpec(4, Full{})})
	require.NoError(t, err)
	require.NoError(t, m.Reserve(1, Declared(32))) // eight slabs, none leased
	_, _, err = m.Import(2, Declared(14), Prompt{Tokens: tokensFrom(100, 14)}, false)
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
	_, tokens := m.Find(p, false)
	require.Equal(t, 4, tokens)
	_, err = m.Release(1)
	require.NoError(t, err)
	_, tokens = m.Find(p, false)
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
	_, tokens := m.Find(p, false)
	require.Zero(t, tokens, "both are written to")
	slabs, err := m.Release(2)
	require.NoError(t, err)
	require.NoError(t, m.Check())
	_, tokens = m.Find(p, false)
	require.Equal(t, 5, tokens, "of %d slabs", slabs)
	require.NoError(t, m.Commit(1, longer.Tokens, true))
	_, err = m.Release(1)
	require.NoError(t, err)
	require.NoError(t, m.Check())
	_, tokens = m.Find(longer, false)
	require.Equal(t, 7, tokens)
}

// TestAStateComesOnceItsSequenceHasLeft: before that its tokens come, with which nobody begins.
func TestAStateComesOnceItsSequenceHasLeft(t *testing.T) {
	m := stateManager(t, 40)
	p := Prompt{Space: "a", Tokens: tokensFrom(100, 14)}
	slabs, computed, err := m.Import(1, Declared(20), p, false)
	require.NoError(t, err)
	require.Equal(t, 2, computed)
	require.Equal(t, []int32{-1, -1}, slabs[:2])
	require.Len(t, slabs, 2+4)
	_, err = m.ReservePrompt(2, Declared(20), p)
	require.NoError(t, err, "it does not wait for tokens without a state")
	_, err = m.Release(2)
	require.NoError(t, err)
	require.NoError(t, m.Commit(1, p.Tokens[:12], false))
	_, err = m.Release(1)
	require.NoError(t, err)
	found, have := m.Find(p, false)
	require.Equal(t, 12, have)
	require.Equal(t, slabs[:5], found)
	_, have = m.Find(p, true)
	require.Zero(t, have)
	slabs, computed, err = m.Import(3, Declared(20), p, true)
	require.NoError(t, err)
	require.Zero(t, computed)
	require.Equal(t, m.Slabs(3)[:2], slabs[:2])
	require.Equal(t, []int32{-1, -1, -1}, slabs[2:5], "they are here")
	require.NoError(t, m.Retire(3, p.Tokens[:13]))
	_, err = m.Release(3)
	require.NoError(t, err)
	found, have = m.Find(p, true)
	require.Equal(t, 13, have)
	require.Equal(t, slabs[:2], found[:2])
	require.Equal(t, slabs[5], found[5])
	hit, err := m.ReservePrompt(4, Declared(20), p)
	require.NoError(t, err)
	require.Equal(t, 13, hit.Tokens)
}
