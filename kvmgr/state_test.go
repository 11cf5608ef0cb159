package kvmgr

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// stateManager has slabs of 4 tokens, states of 2 slabs and snapshots every 8 tokens.
func stateManager(t *testing.T, slabs int) *Manager {
	t.Helper()
	m, err := New(Config{Slabs: slabs, Spec: NewSpec(4, Full{}, State{Slabs: 2, Every: 8})})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, m.Check()) })
	return m
}

// keep computes a sequence's tokens up to a position, and keeps the state there.
func keep(t *testing.T, m *Manager, seq Seq, tokens []int32) {
	t.Helper()
	_, err := m.Lease(seq, len(tokens))
	require.NoError(t, err)
	require.Len(t, m.Lend(seq, len(tokens)), 2)
	require.NoError(t, m.Commit(seq, tokens, false))
	require.NoError(t, m.Snapshot(seq, len(tokens)))
}

// run computes a prompt with its snapshots, and one more token.
func run(t *testing.T, m *Manager, seq Seq, prompt []int32) Hit {
	t.Helper()
	hit, err := m.ReservePrompt(seq, Declared(len(prompt)+1), Prompt{Tokens: prompt})
	require.NoError(t, err)
	for at := m.spec.NextSnapshot(hit.Tokens, len(prompt), hit.Branch); at > 0; at = m.spec.NextSnapshot(at, len(prompt), hit.Branch) {
		keep(t, m, seq, prompt[:at])
	}
	_, err = m.Lease(seq, len(prompt)+1)
	require.NoError(t, err)
	require.NoError(t, m.Commit(seq, prompt, true))
	return hit
}

// kept are the tokens of all snapshots, in ascending order.
func kept(m *Manager) (tokens []int) {
	for _, v := range m.states.heap {
		if v.node != nil {
			tokens = append(tokens, v.tokens)
		}
	}
	slices.Sort(tokens)
	return tokens
}

func TestSnapshotsAreAtFixedDistancesAndBeforeTheEndOfAPrompt(t *testing.T) {
	s := NewSpec(16, Full{}, State{Slabs: 1, Every: 64})
	for _, c := range []struct {
		prompt, branch int
		want           []int
	}{
		{23, 0, nil},
		{24, 0, []int{16}},
		{72, 0, []int{64}},
		{100, 0, []int{80}}, // 64 is close
		{104, 0, []int{64, 96}},
		{300, 0, []int{64, 128, 192, 256, 288}},
		{300, 80, []int{64, 80, 128, 192, 256, 288}},
		{300, 128, []int{64, 128, 192, 256, 288}},
		{300, 299, []int{64, 128, 192, 256, 288}},
	} {
		var got []int
		for at := s.NextSnapshot(0, c.prompt, c.branch); at > 0; at = s.NextSnapshot(at, c.prompt, c.branch) {
			got = append(got, at)
		}
		require.Equal(t, c.want, got, "%+v", c)
	}
	require.Zero(t, NewSpec(16, Full{}).NextSnapshot(0, 300, 0))
}

func TestASequenceBeginsWhereTheTreeHasAState(t *testing.T) {
	m := stateManager(t, 40)
	prompt := tokensFrom(0, 30)
	require.Zero(t, run(t, m, 1, prompt))
	require.Equal(t, []int{8, 16, 20}, kept(m))
	require.Equal(t, 2+8+6, m.Stats().Used+m.Stats().Cached)
	hit := run(t, m, 2, prompt)
	require.Equal(t, 20, hit.Tokens)
	require.Equal(t, 5, hit.Slabs)
	require.Equal(t, m.Slabs(2)[:2], hit.Copy.To)
	require.Equal(t, 4, hit.Copy.Tokens)
	require.NotEqual(t, m.Slabs(1)[:2], hit.Copy.From, "the state of a sequence that runs is its own")
	require.Equal(t, m.Slabs(1)[2:7], m.Slabs(2)[2:7])
	other := append(slices.Clone(prompt[:18]), tokensFrom(1000, 12)...)
	require.Equal(t, 16, run(t, m, 3, other).Tokens)
}

func TestTheNextTurnBeginsWhereAnAnswerEnded(t *testing.T) {
	m := stateManager(t, 40)
	prompt := tokensFrom(0, 30)
	run(t, m, 1, prompt)
	state := m.Slabs(1)[:2]
	free := m.Stats().Free
	require.NoError(t, m.Retire(1, prompt))
	require.Equal(t, free, m.Stats().Free)
	_, err := m.Release(1)
	require.NoError(t, err)
	hit, err := m.ReservePrompt(2, Declared(40), Prompt{Tokens: tokensFrom(0, 35)})
	require.NoError(t, err)
	require.Equal(t, 30, hit.Tokens, "inside a slab")
	require.Equal(t, state, hit.Copy.From[:2], "no copy was made")
	require.Len(t, hit.Copy.From, 3, "and the slab in which it ends")
	_, err = m.ReservePrompt(3, Declared(40), Prompt{Tokens: tokensFrom(0, 30)})
	require.NoError(t, err, "of a prompt with the same tokens the last one is computed")
	require.Equal(t, 24, m.Limit(3)-16)
}

// TestSnapshotsMakeRoom: what is left of a path is evenly spaced, and its end stays the longest.
func TestSnapshotsMakeRoom(t *testing.T) {
	m := stateManager(t, 2+19+20)
	prompt := tokensFrom(0, 74)
	run(t, m, 1, prompt)
	retire(t, m, 1, prompt)
	require.Equal(t, []int{8, 16, 24, 32, 40, 48, 56, 64, 74}, kept(m))
	free := m.Stats().Free
	require.Equal(t, len(m.refs), free, "they take nothing from others")
	var left [][]int
	for i := 0; len(kept(m)) > 0; i++ {
		m.room(m.free.count + 2)
		left = append(left, kept(m))
	}
	require.Equal(t, []int{16, 24, 32, 40, 48, 56, 64, 74}, left[0])
	require.Equal(t, []int{16, 32, 48, 64, 74}, left[3])
	require.Equal(t, []int{32, 64, 74}, left[5])
	require.Equal(t, []int{74}, left[7])
	require.Empty(t, left[8])
	_, err := m.ReservePrompt(9, Declared(4*39), Prompt{Tokens: prompt})
	require.NoError(t, err, "all of the pool")
}

// TestAStateWithoutRoomForACopyIsTakenOver: a hit is admitted wherever a prompt without one is.
func TestAStateWithoutRoomForACopyIsTakenOver(t *testing.T) {
	m := stateManager(t, 2+8)
	prompt := tokensFrom(0, 16)
	run(t, m, 1, prompt)
	require.Equal(t, []int{8}, kept(m))
	_, err := m.Release(1)
	require.NoError(t, err)
	hit, err := m.ReservePrompt(2, Declared(32), Prompt{Tokens: prompt})
	require.NoError(t, err)
	require.Equal(t, 8, hit.Tokens)
	require.Len(t, hit.Copy.From, 2, "there is room for both until it grows")
	_, err = m.Lease(2, 32)
	require.NoError(t, err)
	require.Empty(t, kept(m))
	require.Nil(t, m.Lend(2, 24), "there is no room for a snapshot")
	require.NoError(t, m.Commit(2, tokensFrom(0, 32), false))
	require.NoError(t, m.Snapshot(2, 24))
	retire(t, m, 2, tokensFrom(0, 32))
	_, err = m.ReservePrompt(3, Declared(4), Prompt{Tokens: tokensFrom(5000, 4)})
	require.NoError(t, err)
	hit, err = m.ReservePrompt(4, Declared(20), Prompt{Tokens: tokensFrom(0, 33)[:20]})
	require.NoError(t, err)
	require.Zero(t, hit.Tokens, "its prompt is shorter than the state")
}

// TestTheSlabInWhichAStateEndsIsNotEvictedForACopy: there is room for the state, or for the slab.
func TestTheSlabInWhichAStateEndsIsNotEvictedForACopy(t *testing.T) {
	m, said := stateManager(t, 6), claims{}
	m.Observe(said)
	run(t, m, 1, tokensFrom(0, 6))
	retire(t, m, 1, tokensFrom(0, 6))
	require.Len(t, said, 4, "two slabs of tokens, of which one is not full, and two of the state")
	hit, err := m.ReservePrompt(2, Declared(8), Prompt{Tokens: tokensFrom(0, 8)})
	require.NoError(t, err)
	require.Equal(t, 6, hit.Tokens)
	require.Len(t, hit.Copy.From, 1)
	require.Empty(t, kept(m))
	for _, id := range m.Slabs(2)[:2] {
		require.NotContains(t, said, id, "its next token changes the state")
	}
}

// TestSlabsThatAreLentAreEvictedLast: a copy to them is on its way.
func TestSlabsThatAreLentAreEvictedLast(t *testing.T) {
	m := stateManager(t, 14)
	run(t, m, 1, tokensFrom(0, 16))
	_, err := m.Release(1)
	require.NoError(t, err)
	_, err = m.ReservePrompt(2, Declared(8), Prompt{Tokens: tokensFrom(1000, 8)})
	require.NoError(t, err)
	_, err = m.Lease(2, 8)
	require.NoError(t, err)
	require.Len(t, m.Lend(2, 8), 2)
	m.room(8)
	require.Empty(t, kept(m))
	require.NoError(t, m.Commit(2, tokensFrom(1000, 8), false))
	require.NoError(t, m.Snapshot(2, 8))
	require.Equal(t, []int{8}, kept(m))
}

// TestASequenceWaitsForAState: and not for tokens after which none is kept.
func TestASequenceWaitsForAState(t *testing.T) {
	m := stateManager(t, 60)
	prompt := tokensFrom(0, 30)
	_, err := m.ReservePrompt(1, Declared(31), Prompt{Tokens: prompt})
	require.NoError(t, err)
	short := append(slices.Clone(prompt[:7]), tokensFrom(1000, 12)...)
	_, err = m.ReservePrompt(2, Declared(31), Prompt{Tokens: short})
	require.NoError(t, err, "it leaves the prompt before its first snapshot")
	_, err = m.ReservePrompt(3, Declared(31), Prompt{Tokens: prompt})
	require.ErrorIs(t, err, ErrComputing)
	keep(t, m, 1, prompt[:8])
	require.Empty(t, m.Ready())
	keep(t, m, 1, prompt[:16])
	keep(t, m, 1, prompt[:20])
	require.Equal(t, []Seq{3}, m.Ready())
	hit, err := m.ReservePrompt(3, Declared(31), Prompt{Tokens: prompt})
	require.NoError(t, err)
	require.Equal(t, 20, hit.Tokens)
}

// TestWhatTwoPromptsHaveInCommonIsKept: the third one begins there.
func TestWhatTwoPromptsHaveInCommonIsKept(t *testing.T) {
	m, err := New(Config{Slabs: 400, Spec: NewSpec(4, Full{}, State{Slabs: 2, Every: 1000})})
	require.NoError(t, err)
	system := tokensFrom(0, 102)
	with := func(i int) []int32 { return append(slices.Clone(system), tokensFrom(1000*i, 40)...) }
	require.Zero(t, run(t, m, 1, with(1)))
	require.Equal(t, []int{132}, kept(m))
	require.Equal(t, Hit{Branch: 100}, run(t, m, 2, with(2)))
	require.Equal(t, []int{100, 132, 132}, kept(m))
	require.Equal(t, 100, run(t, m, 3, with(3)).Tokens)
	require.NoError(t, m.Check())
}

// TestSlabsOfASnapshotGoToWhoIsPromisedThem: also before the copy is there.
func TestSlabsOfASnapshotGoToWhoIsPromisedThem(t *testing.T) {
	m := stateManager(t, 10)
	prompt := tokensFrom(0, 20)
	_, err := m.ReservePrompt(1, Declared(20), Prompt{Tokens: prompt})
	require.NoError(t, err)
	_, err = m.Lease(1, 16)
	require.NoError(t, err)
	require.Equal(t, 3, m.Stats().Free)
	lent := m.Lend(1, 8)
	require.Len(t, lent, 2)
	require.Equal(t, 3, m.Stats().Free)
	require.Nil(t, m.Lend(1, 20), "which are not leased")
	require.Nil(t, m.Lend(1, 7), "a part of a slab")
	require.NoError(t, m.Check())
	require.Equal(t, lent, m.Lend(1, 16), "for another copy, which the first one is not")
	require.NoError(t, m.Commit(1, prompt[:8], false))
	require.NoError(t, m.Snapshot(1, 8))
	require.Empty(t, kept(m))
	require.Equal(t, lent, m.Lend(1, 16))
	require.NoError(t, m.Reserve(2, Declared(4)))
	slabs, err := m.Lease(2, 4)
	require.NoError(t, err)
	require.Contains(t, lent, slabs[2])
	require.NoError(t, m.Commit(1, prompt[:16], false))
	require.NoError(t, m.Snapshot(1, 16))
	require.Empty(t, kept(m))
	require.ErrorIs(t, m.Snapshot(3, 8), ErrUnknownSequence)
	_, err = m.ReserveSegments(3, Segments{Prompt: 4, Response: 4, Beams: 2}, Prompt{})
	require.ErrorIs(t, err, ErrInvalid)
}

// TestAPausedSequenceTakesItsStateAlong to the tier: with the slabs of its tokens it is all that it needs.
func TestAPausedSequenceTakesItsStateAlong(t *testing.T) {
	m, err := New(Config{Slabs: 20, Slots: 12, Spec: NewSpec(4, Full{}, State{Slabs: 2, Every: 8})})
	require.NoError(t, err)
	prompt := tokensFrom(0, 14)
	run(t, m, 1, prompt)
	slabs := m.Slabs(1)
	moves, err := m.Spill(1, 14)
	require.NoError(t, err)
	require.Len(t, moves, 2+4)
	for i, mv := range moves {
		require.Equal(t, slabs[i], mv.Slab)
	}
	require.NoError(t, m.Spilled(1))
	require.Equal(t, 6, m.Stats().Spilled)
	require.Equal(t, 20, m.Stats().Free)
	back, err := m.Restore(1, Declared(20))
	require.NoError(t, err)
	require.Len(t, back, 6)
	for i, mv := range back {
		require.Equal(t, moves[i].Slot, mv.Slot)
		require.Equal(t, m.Slabs(1)[i], mv.Slab)
	}
	tokens, err := m.Restored(1)
	require.NoError(t, err)
	require.Equal(t, 14, tokens)
	retire(t, m, 1, prompt)
	require.Equal(t, []int{4, 14}, kept(m), "both from the tree")
	require.NoError(t, m.Check())
}

// retire ends a sequence of which these tokens are computed.
func retire(t *testing.T, m *Manager, seq Seq, tokens []int32) {
	t.Helper()
	require.NoError(t, m.Retire(seq, tokens))
	_, err := m.Release(seq)
	require.NoError(t, err)
}

// TestOfAnAnswerTheLastStateStays: who continues it begins there.
func TestOfAnAnswerTheLastStateStays(t *testing.T) {
	m := stateManager(t, 60)
	tokens := tokensFrom(0, 40)
	_, err := m.ReservePrompt(1, Declared(40), Prompt{Tokens: tokens[:18]})
	require.NoError(t, err)
	keep(t, m, 1, tokens[:8])
	keep(t, m, 1, tokens[:20])
	require.Equal(t, []int{8, 20}, kept(m))
	keep(t, m, 1, tokens[:28])
	require.Equal(t, []int{8, 28}, kept(m))
	hit, err := m.ReservePrompt(2, Declared(40), Prompt{Tokens: tokens})
	require.NoError(t, err)
	require.Equal(t, 28, hit.Tokens)
	_, err = m.Lease(1, 33)
	require.NoError(t, err)
	retire(t, m, 1, tokens[:33])
	require.Equal(t, []int{8, 33}, kept(m))
}

// TestTheStateAtTheEndOfAnAnswerStays, also if it was kept before the end.
func TestTheStateAtTheEndOfAnAnswerStays(t *testing.T) {
	m := stateManager(t, 60)
	tokens := tokensFrom(0, 40)
	_, err := m.ReservePrompt(1, Declared(40), Prompt{Tokens: tokens[:18]})
	require.NoError(t, err)
	keep(t, m, 1, tokens[:28])
	retire(t, m, 1, tokens[:28])
	require.Equal(t, []int{28}, kept(m))
}

// TestAStateStaysUntilTheReleaseOfItsSequence: others begin with a copy of it, and nobody gets its slabs.
func TestAStateStaysUntilTheReleaseOfItsSequence(t *testing.T) {
	m := stateManager(t, 14)
	tokens := tokensFrom(0, 14)
	run(t, m, 1, tokens[:6])
	require.NoError(t, m.Retire(1, tokens[:6]))
	state := m.Slabs(1)[:2]
	require.NoError(t, m.Reserve(2, Declared(8*4)))
	_, err := m.Lease(2, 8*4)
	require.NoError(t, err)
	require.Zero(t, m.Stats().Cached+m.Stats().Free, "all of the pool")
	require.Equal(t, state, m.Slabs(1)[:2])
	_, err = m.Release(2)
	require.NoError(t, err)
	hit, err := m.ReservePrompt(3, Declared(8), Prompt{Tokens: tokens[:8]})
	require.NoError(t, err)
	require.Equal(t, 6, hit.Tokens)
	require.Equal(t, state, hit.Copy.From[:2])
	_, err = m.Release(1)
	require.NoError(t, err)
	require.Equal(t, []int{6}, kept(m))
	_, err = m.Release(3)
	require.NoError(t, err)
	require.Equal(t, 14, m.Stats().Free)
	m.room(14)
	require.Empty(t, kept(m))
}
