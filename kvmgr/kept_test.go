package kvmgr

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestAManagerRefusesWhatItsSpecExcludes: the disk lists cold slabs, and the tier has slots.
func TestAManagerRefusesWhatItsSpecExcludes(t *testing.T) {
	for _, c := range []struct {
		cfg   Config
		wants Wants
	}{
		{Config{Spec: NewSpec(4, slider, Full{})}, Wants{}},
		{Config{Spec: NewSpec(4, Full{}, slider), Cold: true}, Wants{Disk: true}},
		{Config{Spec: NewSpec(4, Full{Head: 1}), Slots: 3}, Wants{Tier: true}},
	} {
		c.cfg.Slabs = 10
		_, err := New(c.cfg)
		require.ErrorIs(t, err, ErrInvalid)
		require.Equal(t, c.cfg.Validate(c.wants), err)
	}
}

// TestADeviceMayAllowLessThanTheGroups: no prefix is shared then, and nothing leaves the pool.
func TestADeviceMayAllowLessThanTheGroups(t *testing.T) {
	s := NewSpec(4, Full{})
	s.Copies, s.Spills, s.Shares = false, false, false
	require.ErrorContains(t, s.Validate(Wants{Tier: true}), "cannot be spilled")
	require.ErrorContains(t, s.Validate(Wants{Disk: true}), "cannot be stored on a disk")
	m, err := New(Config{Slabs: 10, Spec: s})
	require.NoError(t, err)
	prompt := Prompt{Tokens: tokensFrom(0, 9)}
	for seq := range Seq(2) {
		hit, err := m.ReservePrompt(seq, Declared(9), prompt)
		require.NoError(t, err)
		require.Zero(t, hit)
		_, err = m.Lease(seq, 9)
		require.NoError(t, err)
		require.NoError(t, m.Commit(seq, prompt.Tokens, true))
	}
	require.Zero(t, m.Stats().Shared)
	require.NoError(t, m.Check())
}

// TestTheNeedOfASpecIsWhatItsManagerReserves, of every kind: those who place sequences have no more than the Need.
func TestTheNeedOfASpecIsWhatItsManagerReserves(t *testing.T) {
	const pool = 60
	for _, groups := range [][]Group{
		{Full{}}, {Full{}, Full{}}, {Full{Head: 3}}, {slider}, {Full{}, slider, slider},
		{Full{}, Full{}, slider}, {Bounded{Slabs: 5}}, {Window{Tokens: 10, Live: 8, Sinks: 1}},
		{Full{}, State{Slabs: 3, Every: 8}},
	} {
		s := NewSpec(4, groups...)
		n := s.Need()
		require.Equal(t, !s.Beams, n.NoBeams)
		fits := 0
		for positions := 1; positions <= 2*pool; positions++ {
			m, err := New(Config{Slabs: pool, Spec: s})
			require.NoError(t, err)
			err = m.Reserve(1, Declared(4*positions))
			if err != nil {
				require.ErrorIs(t, err, ErrNeverFits)
				continue
			}
			fits = positions
			require.Equal(t, n.AtOnce(positions), pool-m.Stats().Free, "%v, %d positions", groups, positions)
		}
		require.Equal(t, fits, min(n.Longest(pool), 2*pool), "%v", groups)
		if !s.Beams {
			continue
		}
		m, err := New(Config{Slabs: pool, Spec: s})
		require.NoError(t, err)
		most := n.Positions(pool)
		_, err = m.ReserveSegments(1, Segments{Prompt: 4, Response: 4 * most, Beams: 1}, Prompt{})
		require.ErrorIs(t, err, ErrNeverFits)
		_, err = m.ReserveSegments(1, Segments{Prompt: 4, Response: 4 * (most - 1), Beams: 1}, Prompt{})
		require.NoError(t, err)
	}
}

// TestASpecSaysWhatALeaseNeeds: the scheduler requests no more, and the manager grants no more.
func TestASpecSaysWhatALeaseNeeds(t *testing.T) {
	full, mixed, sinks := NewSpec(4, Full{Head: 2}), NewSpec(4, Full{}, slider), NewSpec(4, Window{Tokens: 10, Live: 8, Sinks: 1})
	require.False(t, full.Trims())
	require.Zero(t, full.FirstKept(1000))
	require.Equal(t, math.MaxInt32, full.Limit(0))
	require.Equal(t, 12, full.Tokens(5))
	require.Zero(t, full.Tokens(1))
	require.True(t, mixed.Trims())
	require.Equal(t, 20, mixed.Tokens(5))
	for _, s := range []Spec{mixed, sinks} {
		m, err := New(Config{Slabs: 400, Spec: s})
		require.NoError(t, err)
		require.NoError(t, m.Reserve(1, Declared(400)))
		for position := range 380 {
			from := s.FirstKept(position)
			require.Equal(t, max(0, position-9-4), from)
			require.NoError(t, m.Trim(1, from))
			if from/4 > 0 {
				require.Equal(t, min(s.Limit(from), 400), m.Limit(1), "at %d", position)
			}
			_, err := m.Lease(1, position+1)
			require.NoError(t, err)
		}
	}
}
