package route

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func router(seed uint64) *Router { return New(Default(), rand.New(rand.NewPCG(seed, 1))) }

func worker(node string, change ...func(*Worker)) Worker {
	w := Worker{Node: node, Model: "m", Capacity: 10, FreeSlabs: 100}
	for _, f := range change {
		f(&w)
	}
	return w
}

func waiting(n int) func(*Worker) { return func(w *Worker) { w.Waiting = n } }

func TestOnlyAWorkerThatCanServeIsChosen(t *testing.T) {
	now := 10 * time.Minute
	workers := []Worker{
		worker("other model", func(w *Worker) { w.Model = "x" }),
		worker("draining", func(w *Worker) { w.Draining = true }),
		worker("suspected", func(w *Worker) { w.Suspected = true }),
		worker("stalled", func(w *Worker) { w.Busy, w.LastStep = true, now-31*time.Second }),
		worker("slow", func(w *Worker) { w.Busy, w.LastStep, w.Waiting = true, now-29*time.Second, 500 }),
	}
	r := router(1)
	for range 100 {
		require.Equal(t, 4, r.Compute(now, Query{Model: "m", Conversation: 5}, workers))
	}
	require.Equal(t, -1, r.Compute(now, Query{Model: "m"}, workers[:4]))
	require.Equal(t, -1, r.Compute(now, Query{Model: "m"}, nil))
	workers[3].Busy = false
	require.Equal(t, 3, r.Compute(now, Query{Model: "m"}, workers[:4]), "idle is not stalled")
}

func TestOfTwoWorkersTheLessLoadedIsChosenAndOneThatHasRoomFirst(t *testing.T) {
	r := router(1)
	for range 100 {
		require.Equal(t, 1, r.Compute(0, Query{Model: "m"}, []Worker{worker("a", waiting(3)), worker("b")}))
		full := worker("b", func(w *Worker) { w.FreeSlabs = 4 })
		require.Equal(t, 0, r.Compute(0, Query{Model: "m", Slabs: 5}, []Worker{worker("a", waiting(3)), full}))
	}
}

func TestANodeThatHasJustFailedIsTheLastResort(t *testing.T) {
	r := router(1)
	q := Query{Model: "m", Avoid: "a"}
	require.Equal(t, 1, r.Compute(0, q, []Worker{worker("a"), worker("b", waiting(50))}))
	require.Equal(t, 0, r.Compute(0, q, []Worker{worker("a")}))
}

func TestTheLocalWorkerIsPreferredWhileItsLoadIsComparable(t *testing.T) {
	r := router(1)
	local := worker("b", waiting(2), func(w *Worker) { w.Local = true })
	require.Equal(t, 1, r.Compute(0, Query{Model: "m"}, []Worker{worker("a"), local}))
	local.Waiting = 3
	require.Equal(t, 0, r.Compute(0, Query{Model: "m"}, []Worker{worker("a"), local}))
}

func TestAConversationStaysWithItsWorkerAsOthersComeAndGo(t *testing.T) {
	r := router(1)
	var workers []Worker
	for i := range 10 {
		workers = append(workers, worker(fmt.Sprint("node-", i)))
	}
	moved, used := 0, map[string]int{}
	for c := range uint64(1000) {
		q := Query{Model: "m", Conversation: Conversation("t", fmt.Sprint(c))}
		home := workers[r.Compute(0, q, workers)].Node
		used[home]++
		for range 5 {
			require.Equal(t, home, workers[r.Compute(0, q, workers)].Node)
		}
		if workers[r.Compute(0, q, workers[:9])].Node != home {
			moved++
			require.Equal(t, "node-9", home, "only the conversations of the one that left move")
		}
	}
	require.Equal(t, used["node-9"], moved)
	for node, n := range used {
		require.InDelta(t, 100, n, 40, "%s", node)
	}
	busy := worker("node-0", waiting(9))
	q := Query{Model: "m", Conversation: 3}
	require.Equal(t, 1, r.Compute(0, q, []Worker{busy, worker("node-1")}), "much more loaded: not there")
}

func TestConversationsAreToldApartByTenantAndText(t *testing.T) {
	keys := map[uint64]bool{}
	for _, k := range []uint64{
		Conversation("a", "b", "c"), Conversation("a", "bc"), Conversation("ab", "c"), Conversation("a"), Conversation("", "a"),
	} {
		require.NotZero(t, k)
		keys[k] = true
	}
	require.Len(t, keys, 5)
}

// TestTwoChoicesBalance throws many sequences at many workers; one choice would
// leave the fullest some ten above the mean.
func TestTwoChoicesBalance(t *testing.T) {
	r := router(7)
	workers := make([]Worker, 100)
	for i := range workers {
		workers[i] = worker(fmt.Sprint(i))
	}
	for range 10_000 {
		workers[r.Compute(0, Query{Model: "m"}, workers)].Waiting++
	}
	for i := range workers {
		require.InDelta(t, 100, workers[i].Waiting, 5)
	}
}

func TestTheSameRandomNumbersGiveTheSameChoices(t *testing.T) {
	choose := func() (list []int) {
		r := router(3)
		workers := []Worker{worker("a"), worker("b"), worker("c"), worker("d")}
		for range 100 {
			i := r.Compute(0, Query{Model: "m"}, workers)
			workers[i].Waiting++
			list = append(list, i)
		}
		return list
	}
	first := choose()
	require.Equal(t, first, choose())
}

func TestAStageIsTheLocalOneElseTheLessLoadedOfTwo(t *testing.T) {
	r := router(1)
	require.Equal(t, -1, r.Stage(nil))
	require.Equal(t, 0, r.Stage([]Stage{{Load: 5}}))
	require.Equal(t, 1, r.Stage([]Stage{{}, {Local: true, Load: 100}}))
	for range 50 {
		require.Equal(t, 1, r.Stage([]Stage{{Load: 5}, {Load: 4}}))
	}
}

func BenchmarkCompute(b *testing.B) {
	r := router(1)
	workers := make([]Worker, 1000)
	for i := range workers {
		workers[i] = worker(fmt.Sprint(i), waiting(i%7))
	}
	b.ReportAllocs()
	for b.Loop() {
		r.Compute(0, Query{Model: "m", Conversation: 9}, workers)
	}
}

// TestASequenceFitsWhereItsLiveSlabsDo: it gives slabs back at the one worker, and keeps all at the other.
func TestASequenceFitsWhereItsLiveSlabsDo(t *testing.T) {
	workers := []Worker{worker("keeps", func(w *Worker) { w.FreeSlabs = 50 }),
		worker("slides", func(w *Worker) { w.FreeSlabs, w.KV.LiveSlabs = 10, 8 })}
	r := router(1)
	for range 100 {
		require.Equal(t, 1, r.Compute(0, Query{Model: "m", Slabs: 100}, workers))
		require.Equal(t, 1, r.Compute(0, Query{Model: "m", Slabs: 100, Blocks: 100, ByOverlap: true}, workers))
	}
	workers[1].FreeSlabs = 7
	require.False(t, workers[1].fits(100))
	require.True(t, workers[1].fits(7))
}
