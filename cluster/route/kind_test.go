package route

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func of(numerics, text string) func(*Worker) {
	return func(w *Worker) { w.Numerics, w.Text = numerics, text }
}

func drains(w *Worker) { w.Draining = true }

func TestWhatHasBegunGoesOnAtAnEqualOnly(t *testing.T) {
	r := router(1)
	workers := []Worker{worker("a", of("A", "T"), waiting(500)), worker("b", of("B", "T")), worker("none", of("", "T")),
		worker("other", of("A", "U"))}
	for range 50 {
		require.Equal(t, 0, r.Compute(0, Query{Model: "m", Numerics: To("A"), Text: To("T")}, workers))
		require.Equal(t, 2, r.Compute(0, Query{Model: "m", Numerics: To(""), Text: To("T")}, workers), "no digest equals no digest only")
		require.Equal(t, 3, r.Compute(0, Query{Model: "m", Text: To("U")}, workers),
			"ids of one tokenizer are words of its checkpoint only")
	}
	require.Equal(t, -1, r.Compute(0, Query{Model: "m", Numerics: To("C")}, workers))
	require.Equal(t, -1, r.Compute(0, Query{Model: "x", Numerics: To("A")}, workers))
	found := map[int]bool{}
	for range 200 {
		found[r.Compute(0, Query{Model: "m", Numerics: To("A")}, workers)] = true
	}
	require.Equal(t, map[int]bool{3: true}, found, "equals share the load")
}

func TestAWorkerThatDrainsGetsOnlyWhatHasNoOtherPlace(t *testing.T) {
	r := router(1)
	workers := []Worker{worker("a", of("A", ""), drains), worker("b", of("B", ""))}
	bound := Query{Model: "m", Numerics: To("A")}
	require.Equal(t, 0, r.Compute(0, bound, workers))
	require.Equal(t, 1, r.Compute(0, Query{Model: "m"}, workers))
	require.Equal(t, -1, r.Compute(0, Query{Model: "m"}, workers[:1]), "what is new waits")
	workers = append(workers, worker("c", of("A", ""), waiting(900)))
	require.Equal(t, 2, r.Compute(0, bound, workers))
	bound.Avoid = "c"
	require.Equal(t, 2, r.Compute(0, bound, workers), "one that may recover, before one that ends")
}

// TestWhatIsNewBeginsWhereAnEqualLivesWhileThereIsRoom: then nothing is lost with one worker.
func TestWhatIsNewBeginsWhereAnEqualLivesWhileThereIsRoom(t *testing.T) {
	r := router(1)
	chosen := func(q Query, workers ...Worker) map[string]int {
		n := map[string]int{}
		for range 200 {
			n[workers[r.Compute(0, q, workers)].Node]++
		}
		return n
	}
	single := worker("single", of("B", ""), func(w *Worker) { w.Local = true })
	pair := func(n int) []Worker {
		return []Worker{worker("a1", of("A", ""), waiting(n)), worker("a2", of("A", ""), waiting(n)), single}
	}
	require.Zero(t, chosen(Query{Model: "m"}, pair(9)...)["single"])
	require.Equal(t, 200, chosen(Query{Model: "m"}, pair(10)...)["single"], "they are full")
	big := single
	big.FreeSlabs = 200
	require.Equal(t, 200, chosen(Query{Model: "m", Slabs: 101}, pair(0)[0], pair(0)[1], big)["single"], "their memory is")
	require.Equal(t, 200, chosen(Query{Model: "m", Numerics: To("B")}, pair(0)...)["single"], "what has begun does not choose")

	text := []Worker{worker("a1", of("A", "T")), worker("a2", of("A", "U")), worker("b1", of("B", "T")),
		worker("b2", of("B", "T"), waiting(5))}
	require.Equal(t, map[string]int{"b1": 200}, chosen(Query{Model: "m"}, text...), "equals have both digests")

	leaving := []Worker{worker("a1", of("A", "")), worker("a2", of("A", ""), drains), single}
	require.Equal(t, 200, chosen(Query{Model: "m"}, leaving...)["single"], "the local one: neither has an equal that stays")
	failed := chosen(Query{Model: "m", Avoid: "a1"}, pair(0)...)
	require.Equal(t, 200, failed["single"], "a1 has just failed it: a2 alone is no pair")
}

func TestAWorkerServesWholeRequestsWithEveryStageOfItsText(t *testing.T) {
	workers := []Worker{worker("a", of("A", "T")), worker("b", of("A", "U")), worker("c", of("A", ""))}
	names := func(list []Worker) (n []string) {
		for i := range list {
			n = append(n, list[i].Node)
		}
		return n
	}
	tokenizers, detokenizers := []Stage{{Text: "T"}, {Text: "U"}}, []Stage{{Text: "U"}, {Text: "V"}, {}}
	require.Equal(t, []string{"b"}, names(Whole(append([]Worker(nil), workers...), tokenizers, detokenizers)))
	require.Equal(t, []string{"b", "c"}, names(Whole(append([]Worker(nil), workers...), detokenizers)))
	require.Empty(t, Whole(append([]Worker(nil), workers...), tokenizers, nil))
}
