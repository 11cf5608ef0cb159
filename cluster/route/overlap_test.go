package route

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// has gives a worker the first slabs of the prompt, and as many in all.
func has(slabs int) func(*Worker) { return func(w *Worker) { w.Overlap, w.Blocks = slabs, slabs } }

// by is a query whose overlaps are known.
func by(slabs int) Query { return Query{Model: "m", Blocks: slabs, ByOverlap: true, Conversation: 7} }

func TestAPromptGoesWhereMostOfItIsUnlessTheLoadIsMuchHigher(t *testing.T) {
	r := router(1)
	for range 50 {
		require.Equal(t, 1, r.Compute(0, by(100), []Worker{worker("a", has(50)), worker("b", has(90)), worker("c")}))
		require.Equal(t, 1, r.Compute(0, by(100), []Worker{worker("a"), worker("b", has(90), waiting(6))}))
		require.Equal(t, 0, r.Compute(0, by(100), []Worker{worker("a"), worker("b", has(90), waiting(8))}))
		require.Equal(t, 1, r.Compute(0, by(4000), []Worker{worker("a"), worker("b", has(3900), waiting(20))}),
			"a long one is worth a wait")
		require.Equal(t, 0, r.Compute(0, by(1), []Worker{worker("a"), worker("b", has(1), waiting(1))}), "a short one is not")
	}
}

func TestAFirstTurnGoesToTheLeastLoadedWorker(t *testing.T) {
	r := router(1)
	workers := []Worker{worker("a", waiting(2)), worker("b", waiting(1), has(0)), worker("c", waiting(3)), worker("d", waiting(1))}
	workers[1].Blocks = 50
	for range 50 {
		require.Equal(t, 3, r.Compute(0, by(10), workers), "of two, the one with the smaller cache")
	}
	workers[3].Blocks = 50
	chosen := map[int]int{}
	for range 100 {
		chosen[r.Compute(0, by(10), workers)]++
	}
	require.Len(t, chosen, 2)
	require.InDelta(t, 50, chosen[1], 20)
}

func TestAWorkerWithoutRoomCostsABatchMore(t *testing.T) {
	r := router(1)
	full := worker("b", has(90), func(w *Worker) { w.FreeSlabs = 5 })
	q := by(100)
	q.Slabs = 110
	require.Equal(t, 0, r.Compute(0, q, []Worker{worker("a", func(w *Worker) { w.FreeSlabs = 110 }), full}))
	q.Slabs = 95 // five more than it has
	require.Equal(t, 1, r.Compute(0, q, []Worker{worker("a"), full}))
}

func TestTheRulesOfPlacingComeBeforeOverlap(t *testing.T) {
	r := router(1)
	q := by(100)
	q.Numerics = To("x")
	x := func(w *Worker) { w.Numerics = "x" }
	require.Equal(t, 1, r.Compute(0, q, []Worker{worker("a", has(100)), worker("b", x)}), "only an equal worker")
	require.Equal(t, 2, r.Compute(0, q, []Worker{worker("a", has(100)), worker("b", x, has(10)), worker("c", x, has(60))}),
		"of these the one that has most")
	q.Avoid = "c"
	require.Equal(t, 1, r.Compute(0, q, []Worker{worker("a"), worker("b", x), worker("c", x, has(100))}))
	draining := worker("c", x, has(100), func(w *Worker) { w.Draining = true })
	require.Equal(t, 1, r.Compute(0, q, []Worker{worker("a"), worker("b", x), draining}))
}
