package kvmgr

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestASequenceHasNoMoreSlabsThanTheMost(t *testing.T) {
	m, err := New(Config{Slabs: 12, Spec: NewSpec(4, Bounded{Slabs: 5})})
	require.NoError(t, err)
	prompt := Prompt{Tokens: tokensFrom(0, 9)}
	hit, err := m.ReservePrompt(1, Length{End: 4000, Promise: 12}, prompt)
	require.NoError(t, err)
	require.Zero(t, hit)
	require.Equal(t, 12-3, m.Stats().Free)
	slabs, err := m.Lease(1, 12)
	require.NoError(t, err)
	require.Len(t, slabs, 3)
	require.NoError(t, m.Grow(1, 4000))
	slabs, err = m.Lease(1, 21)
	require.NoError(t, err)
	require.Len(t, slabs, 2)
	slabs, err = m.Lease(1, 4000)
	require.NoError(t, err)
	require.Empty(t, slabs, "later tokens take the places of earlier ones")
	require.Equal(t, 4000, m.Limit(1))
	require.NoError(t, m.Commit(1, tokensFrom(0, 3000), true))
	_, err = m.ReservePrompt(2, Declared(9000), prompt)
	require.NoError(t, err)
	require.Zero(t, m.Stats().Shared, "no prefix is shared")
	_, err = m.ReservePrompt(3, Declared(9), prompt)
	require.ErrorIs(t, err, ErrNoSlabs, "10 of 12 slabs are promised, and this one needs 3")
	require.NoError(t, m.Check())
	freed, err := m.Release(1)
	require.NoError(t, err)
	require.Equal(t, 5, freed)
}

// TestWhatIsAdmittedReachesItsEndWithinTheMost: sequences of any length begin, grow and end in any order, and no lease inside a promise
// fails.
func TestWhatIsAdmittedReachesItsEndWithinTheMost(t *testing.T) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 9))
		most, slab := 1+rng.IntN(6), 1+rng.IntN(5)
		m, err := New(Config{Slabs: 8 + rng.IntN(30), Spec: NewSpec(slab, Bounded{Slabs: most})})
		require.NoError(t, err)
		type sequence struct{ end, promised, leased, slabs int }
		running := map[Seq]*sequence{}
		for next := Seq(0); next < 200; {
			if q := (&sequence{end: 1 + rng.IntN(4*most*slab)}); rng.IntN(3) == 0 {
				q.promised = 1 + rng.IntN(q.end)
				if _, err := m.ReservePrompt(next, Length{End: q.end, Promise: q.promised},
					Prompt{Tokens: tokensFrom(0, q.promised)}); err == nil {
					running[next] = q
				}
				next++
			}
			for seq, q := range running {
				if m.Grow(seq, q.end) == nil {
					q.promised = q.end
				}
				q.leased = min(q.promised, q.leased+rng.IntN(2*slab))
				ids, err := m.Lease(seq, q.leased)
				require.NoError(t, err)
				q.slabs += len(ids)
				require.Equal(t, min(most, divideUp(q.leased, slab)), q.slabs, "seed %d, sequence %d", seed, seq)
				if q.leased == q.end {
					_, err := m.Release(seq)
					require.NoError(t, err)
					delete(running, seq)
				}
			}
			require.NoError(t, m.Check())
		}
	}
}
