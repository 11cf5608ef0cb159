package kvmgr

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// windowed is a manager of slabs of four tokens, whose tokens see ten. A sequence has at most seven slabs at once.
func windowed(t *testing.T, slabs int) *Manager {
	t.Helper()
	m, err := New(Config{Slabs: slabs, Spec: NewSpec(4, Window{Tokens: 10, Live: LiveSlabs(10, 9, 4)})})
	require.NoError(t, err)
	require.Equal(t, 7, m.live)
	return m
}

// runTo leases, computes and offers the tokens of a sequence up to the last one, and gives back what is before its window.
func runTo(t *testing.T, m *Manager, seq Seq, tokens []int32, from int) {
	t.Helper()
	for at := from; at < len(tokens); at++ {
		require.NoError(t, m.Trim(seq, m.spec.FirstKept(at)))
		_, err := m.Lease(seq, at+1)
		require.NoError(t, err)
		require.NoError(t, m.Commit(seq, tokens[:at+1], at+1 == len(tokens)))
		require.NoError(t, m.Check())
	}
}

func TestASequenceRunsPastThePoolInItsWindow(t *testing.T) {
	m := windowed(t, 7)
	tokens := tokensFrom(0, 400)
	_, err := m.ReservePrompt(1, Declared(400), Prompt{Tokens: tokens[:40]})
	require.NoError(t, err)
	_, err = m.Lease(1, 28)
	require.NoError(t, err)
	_, err = m.Lease(1, 29)
	require.ErrorIs(t, err, ErrBeyondReservation, "it gives slabs back first")
	require.Equal(t, 28, m.Limit(1))
	runTo(t, m, 1, tokens, 0)
	first, slabs := m.Live(1)
	require.Equal(t, 96, first)
	require.Len(t, slabs, 4)
	require.Equal(t, 3, m.Stats().Cached, "given back and not overwritten")
	require.Zero(t, m.Stats().Needed)
}

// TestAHitNeedsItsLastWindowOnly: the slabs before it have other contents by now.
func TestAHitNeedsItsLastWindowOnly(t *testing.T) {
	m := windowed(t, 7)
	tokens := tokensFrom(0, 400)
	_, err := m.ReservePrompt(1, Declared(400), Prompt{Tokens: tokens[:40]})
	require.NoError(t, err)
	runTo(t, m, 1, tokens[:399], 0)
	_, err = m.Release(1)
	require.NoError(t, err)
	hit, err := m.ReservePrompt(2, Declared(420), Prompt{Tokens: tokensFrom(0, 410)})
	require.NoError(t, err)
	require.Equal(t, 399, hit.Tokens)
	require.Equal(t, 3, hit.Copy.Tokens)
	first, slabs := m.Live(2)
	require.Equal(t, 97, first, "token 399 sees 390")
	require.Len(t, slabs, 3)
	require.NoError(t, m.Check())
	_, err = m.Release(2)
	require.NoError(t, err)
	for _, n := range []int{8, 100, 380} { // the windows of these are gone
		found, have := m.Find(Prompt{Tokens: tokens[:n]}, false)
		require.Zero(t, have, "%d tokens", n)
		require.Empty(t, found)
	}
}

// TestASharedSlabCountsForEachThatGivesItBack: each needs another one in its place.
func TestASharedSlabCountsForEachThatGivesItBack(t *testing.T) {
	m := windowed(t, 20)
	tokens := tokensFrom(0, 100)
	_, err := m.ReservePrompt(1, Declared(100), Prompt{Tokens: tokens[:21]})
	require.NoError(t, err)
	runTo(t, m, 1, tokens[:21], 0)
	_, err = m.ReservePrompt(2, Declared(100), Prompt{Tokens: tokens[:21]})
	require.NoError(t, err)
	require.Equal(t, 20-7-7, m.Stats().Free)
	m.Settle(2)
	_, err = m.ReservePrompt(3, Declared(100), Prompt{Tokens: tokens[:21]})
	require.ErrorIs(t, err, ErrNoSlabs)
	_, err = m.ReservePrompt(4, Declared(28), Prompt{Tokens: tokens[:21]}) // its slabs are enough to its end
	require.NoError(t, err)
	for seq := range Seq(2) {
		runTo(t, m, seq+1, append(append([]int32{}, tokens[:21]...), tokensFrom(1000*int(seq+1), 79)...), 21)
	}
	require.Zero(t, m.Stats().Needed)
}

// TestAPromptWhosePrefixWasEvictedIsComputedOnce: the second one waits for what the first one computes again.
func TestAPromptWhosePrefixWasEvictedIsComputedOnce(t *testing.T) {
	m := windowed(t, 14)
	tokens := tokensFrom(0, 100)
	_, err := m.ReservePrompt(1, Declared(100), Prompt{Tokens: tokens[:40]})
	require.NoError(t, err)
	runTo(t, m, 1, tokens, 0)
	_, err = m.ReservePrompt(2, Declared(28), Prompt{Space: "other", Tokens: tokens[:28]})
	require.NoError(t, err)
	_, err = m.Lease(2, 28) // the slabs of the first tokens
	require.NoError(t, err)
	_, err = m.Release(2)
	require.NoError(t, err)
	short := Prompt{Tokens: tokens[:24]}
	hit, err := m.ReservePrompt(3, Declared(24), short)
	require.NoError(t, err)
	require.Zero(t, hit.Tokens)
	_, err = m.ReservePrompt(4, Declared(24), short)
	require.ErrorIs(t, err, ErrComputing)
	require.NoError(t, m.Check())
	_, err = m.Lease(3, 24)
	require.NoError(t, err)
	require.NoError(t, m.Commit(3, tokens[:24], false))
	require.Contains(t, m.Ready(), Seq(4))
	hit, err = m.ReservePrompt(4, Declared(24), short)
	require.NoError(t, err)
	require.Equal(t, 23, hit.Tokens)
	require.NoError(t, m.Check())
}

func TestAnImportHasItsLastWindowOnly(t *testing.T) {
	m := windowed(t, 10)
	p := Prompt{Tokens: tokensFrom(0, 102)}
	slabs, computed, err := m.Import(1, Declared(200), p, false)
	require.NoError(t, err)
	require.Equal(t, (101-9-4)/4, computed)
	require.Len(t, slabs, 26)
	require.NoError(t, m.Check())
	for ; computed < len(slabs); computed++ {
		end := min(4*(computed+1), 101)
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

// TestWithAWindowAPrefixIsReportedUntilItIsForgotten: gateways look for the slabs of a prompt from its first one on.
func TestWithAWindowAPrefixIsReportedUntilItIsForgotten(t *testing.T) {
	m := windowed(t, 7)
	m.Record()
	tokens := tokensFrom(0, 400)
	_, err := m.ReservePrompt(1, Declared(400), Prompt{Tokens: tokens[:40]})
	require.NoError(t, err)
	runTo(t, m, 1, tokens, 0)
	_, err = m.Release(1)
	require.NoError(t, err)
	there := map[any]bool{}
	for _, c := range m.Changes() {
		require.NotEqual(t, c.Stored, there[c.Hash], "a change is one")
		there[c.Hash] = c.Stored
		if !c.Stored {
			delete(there, c.Hash)
		}
	}
	require.Len(t, there, 100)
	require.NoError(t, m.Reserve(2, Declared(28)))
	_, err = m.Lease(2, 28) // all slabs
	require.NoError(t, err)
	require.Len(t, m.Changes(), 100, "all are removed")
}

// TestSlabsOutsideAWindowAreListedOnce for who keeps them elsewhere, as they are given back.
func TestSlabsOutsideAWindowAreListedOnce(t *testing.T) {
	m, err := New(Config{Slabs: 30, Spec: NewSpec(4, Window{Tokens: 10, Live: LiveSlabs(10, 9, 4)}), Cold: true})
	require.NoError(t, err)
	tokens := tokensFrom(100, 80)
	_, err = m.ReservePrompt(1, Declared(80), Prompt{Tokens: tokens[:20]})
	require.NoError(t, err)
	var at []int
	list := func() {
		for c, ok := m.Cold(); ok; c, ok = m.Cold() {
			at = append(at, int(c.Tokens[0]-100)/4)
		}
	}
	for n := 1; n <= 79; n++ {
		require.NoError(t, m.Trim(1, m.spec.FirstKept(n-1)))
		_, err := m.Lease(1, n)
		require.NoError(t, err)
		require.NoError(t, m.Commit(1, tokens[:n], false))
		list()
	}
	require.Len(t, at, (79-1-9-4)/4)
	_, err = m.Release(1)
	require.NoError(t, err)
	list()
	for i := range 19 {
		require.Equal(t, i, at[i])
	}
	require.Len(t, at, 19, "the last slab is not full")
}
