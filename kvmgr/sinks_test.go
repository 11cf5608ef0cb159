package kvmgr

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// sinking is a manager of slabs of four tokens, whose tokens see ten and those of the first slab. A sequence has at most eight slabs at
// once.
func sinking(t *testing.T, slabs int) *Manager {
	t.Helper()
	m, err := New(Config{Slabs: slabs, Spec: NewSpec(4, Window{Tokens: 10, Live: 1 + LiveSlabs(10, 9, 4), Sinks: 1})})
	require.NoError(t, err)
	return m
}

func TestASequenceKeepsItsSinksPastThePool(t *testing.T) {
	m := sinking(t, 8)
	require.NoError(t, m.Reserve(1, Declared(400)))
	first, err := m.Lease(1, 32)
	require.NoError(t, err)
	require.Equal(t, 32, m.Limit(1))
	_, err = m.Lease(1, 33)
	require.ErrorIs(t, err, ErrBeyondReservation, "it gives slabs back first")
	for at := 1; at < 400; at++ {
		require.NoError(t, m.Trim(1, m.spec.FirstKept(at)))
		_, err := m.Lease(1, at+1)
		require.NoError(t, err)
		require.NoError(t, m.Check())
		require.LessOrEqual(t, m.Stats().Used, 8)
	}
	place, live := m.Live(1)
	require.Equal(t, 96, place)
	require.NotContains(t, live, first[0])
	r := m.Regions()[0]
	require.Equal(t, 5, r.LeasedSlabs, "the sinks', and four of the window")
	require.Equal(t, 95, r.ReleasedSlabs)
	require.Contains(t, r.Slabs, Range{First: first[0], Slabs: 1})
	require.Equal(t, first[0], m.Slabs(1)[0])
	freed, err := m.Release(1)
	require.NoError(t, err)
	require.Equal(t, 5, freed, "it needed no more until its end")
	require.Equal(t, 8, m.Stats().Free)
	require.NoError(t, m.Check())
}

// TestSequencesWithSinksShareWhatTheFirstWindowSees: nine tokens, in two whole slabs and a part of one.
func TestSequencesWithSinksShareWhatTheFirstWindowSees(t *testing.T) {
	m := sinking(t, 32)
	prompt := Prompt{Tokens: tokensFrom(0, 40)}
	hit, err := m.ReservePrompt(0, Declared(60), prompt)
	require.NoError(t, err)
	require.Zero(t, hit)
	first, err := m.Lease(0, 28)
	require.NoError(t, err)
	require.NoError(t, m.Commit(0, prompt.Tokens[:28], true))
	hit, err = m.ReservePrompt(1, Declared(60), prompt)
	require.NoError(t, err)
	require.Equal(t, 9, hit.Tokens)
	require.Equal(t, 3, hit.Slabs)
	require.Equal(t, 1, hit.Copy.Tokens)
	require.Equal(t, first[2:3], hit.Copy.From)
	require.Equal(t, first[:2], m.Slabs(1)[:2])
	require.Equal(t, 2, m.Stats().Shared)
	require.NoError(t, m.Check())
	for at := 9; at < 60; at++ { // they give their windows back, and keep the sinks that both have
		for seq := range Seq(2) {
			require.NoError(t, m.Trim(seq, m.spec.FirstKept(at)))
			_, err := m.Lease(seq, max(at+1, 28))
			require.NoError(t, err)
			require.NoError(t, m.Check())
		}
	}
	require.Equal(t, 1, m.Stats().Shared)
	require.Equal(t, first[0], m.Slabs(1)[0])
	for seq := range Seq(2) {
		_, err := m.Release(seq)
		require.NoError(t, err)
	}
	require.Equal(t, 32, m.Stats().Free)
	require.NoError(t, m.Check())
}
