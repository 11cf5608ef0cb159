package httpserver

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

func fullTable(t *testing.T, ids ...int) *table[int] {
	t.Helper()
	x := newTable[int](len(ids))
	for _, id := range ids {
		_, evicted, added := x.enter(id)
		require.True(t, added)
		require.False(t, evicted)
	}
	return x
}

func TestTheOldestConnectionThatWaitsForItsClientIsClosed(t *testing.T) {
	for name, c := range map[string]struct {
		act    func(x *table[int])
		victim int
	}{
		"the first that came":                      {func(*table[int]) {}, 1},
		"not one that is answered":                 {func(x *table[int]) { x.beginAnswer(1) }, 2},
		"again after its answer, but later":        {func(x *table[int]) { x.beginAnswer(1); x.endAnswer(1) }, 2},
		"not while one of two answers runs":        {func(x *table[int]) { x.beginAnswer(1); x.beginAnswer(1); x.endAnswer(1) }, 2},
		"an idle one as well":                      {func(x *table[int]) { x.beginAnswer(2); x.beginAnswer(3); x.beginAnswer(1); x.setIdle(1) }, 1},
		"a first request does not make it younger": {func(x *table[int]) { x.beginRequest(1) }, 1},
		"a request after an idle time does": {func(x *table[int]) { x.setIdle(1); x.setIdle(2); x.setIdle(3); x.beginRequest(1) },
			2},
		"idle ends all answers": {func(x *table[int]) {
			x.beginAnswer(2)
			x.beginAnswer(2)
			x.setIdle(2)
			x.beginAnswer(1)
			x.beginAnswer(3)
		}, 2},
		"one that is gone is not chosen":           {func(x *table[int]) { x.leave(1); x.enter(4) }, 2},
		"an unknown connection changes nothing":    {func(x *table[int]) { x.beginAnswer(9); x.setIdle(9); x.beginRequest(9); x.endAnswer(9); x.leave(9) }, 1},
		"an end without an answer changes nothing": {func(x *table[int]) { x.endAnswer(1) }, 1},
		"a second leave changes nothing":           {func(x *table[int]) { x.leave(1); x.leave(1); x.enter(4) }, 2},
	} {
		t.Run(name, func(t *testing.T) {
			x := fullTable(t, 1, 2, 3)
			c.act(x)
			victim, evicted, added := x.enter(5)
			require.True(t, evicted)
			require.True(t, added)
			require.Equal(t, c.victim, victim)
			require.Len(t, x.conns, 3)
		})
	}
}

func TestAConnectionIsRefusedWhenAllOthersAreAnswered(t *testing.T) {
	x := fullTable(t, 1, 2)
	x.beginAnswer(1)
	x.beginAnswer(2)
	_, evicted, added := x.enter(3)
	require.False(t, evicted)
	require.False(t, added)
	x.setIdle(2)
	victim, evicted, added := x.enter(3)
	require.True(t, evicted)
	require.True(t, added)
	require.Equal(t, 2, victim)
}

// TestTheTableAgreesWithAPlainList compares random operations with a slice.
func TestTheTableAgreesWithAPlainList(t *testing.T) {
	const most, steps = 8, 50_000
	r := rand.New(rand.NewPCG(1, 2))
	x := newTable[int](most)
	answers := map[int]int{} // by connection
	idle := map[int]bool{}
	var waiting []int
	gone := func(c int) { waiting = slices.DeleteFunc(waiting, func(w int) bool { return w == c }) }
	back := func(c int) { gone(c); waiting = append(waiting, c) }
	next, evictions, refusals := 0, 0, 0
	for range steps {
		c, in := -1, false // of those that are there, or none of them
		if members := slices.Sorted(maps.Keys(answers)); r.IntN(8) > 0 && len(members) > 0 {
			c, in = members[r.IntN(len(members))], true
		}
		switch r.IntN(9) {
		case 0, 1, 8:
			next++
			victim, evicted, added := x.enter(next)
			require.Equal(t, len(answers) == most && len(waiting) > 0, evicted)
			require.Equal(t, len(answers) < most || evicted, added)
			if evicted {
				evictions++
				require.Equal(t, waiting[0], victim)
				gone(victim)
				delete(answers, victim)
			}
			if !added {
				refusals++
				continue
			}
			answers[next], idle[next] = 0, false
			back(next)
		case 2:
			x.leave(c)
			if in && r.IntN(2) == 0 {
				x.leave(c)
			}
			gone(c)
			delete(answers, c)
		case 3:
			x.beginRequest(c)
			if in && idle[c] {
				idle[c] = false
				back(c)
			}
		case 4, 5:
			x.beginAnswer(c)
			if in {
				idle[c] = false
				answers[c]++
				gone(c)
			}
		case 6:
			x.endAnswer(c)
			if in && answers[c] > 0 {
				if answers[c]--; answers[c] == 0 {
					back(c)
				}
			}
		case 7:
			x.setIdle(c)
			if in {
				idle[c], answers[c] = true, 0
				back(c)
			}
		}
		require.Len(t, x.conns, len(answers))
		require.Equal(t, len(waiting), x.waiting.Len())
	}
	require.Greater(t, evictions, 500)
	require.Greater(t, refusals, 5)
}
