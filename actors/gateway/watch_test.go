package gateway

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/actors/msg"
	"github.com/millrace/millrace/kvmgr/chain"
)

// Bounds of the watch under test.
const (
	testSilence = 3 * time.Second // so that what is forgotten shows first
	testStall   = 2 * time.Second

	testPatience = 10 * time.Second // with a tokenizer
)

// testWatch is the watch of node "me" at a time that the test sets.
type testWatch struct {
	*watch
	now         time.Time
	partitioned bool
	gone        map[string]bool
	finished    map[string]bool
	leaving     map[string]takers
	moving      map[string]bool
	bound       *atomic.Bool // of the next sequence
	slow        bool         // requests: what is in trouble stays where it is
	pids        map[msg.SeqID]*actor.PID
}

func newTestWatch() *testWatch {
	w := &testWatch{
		watch: newWatch("me", testSilence, testStall), now: time.Unix(1000, 0),
		gone: map[string]bool{}, finished: map[string]bool{}, leaving: map[string]takers{}, moving: map[string]bool{},
		pids: map[msg.SeqID]*actor.PID{}, bound: &atomic.Bool{},
	}
	w.look()
	return w
}

func (w *testWatch) Partitioned() bool         { return w.partitioned }
func (w *testWatch) Alive(node string) bool    { return !w.gone[node] }
func (w *testWatch) Finished(node string) bool { return w.finished[node] }
func (w *testWatch) leave(node string) takers  { return w.leaving[node] }
func (w *testWatch) moves(node string) bool    { return w.moving[node] }

// request is the one of a sequence; the watch knows it by its pointer.
func (w *testWatch) request(seq msg.SeqID) *actor.PID {
	if w.pids[seq] == nil {
		w.pids[seq] = actor.NewPID("me", fmt.Sprint(seq))
	}
	return w.pids[seq]
}

func (w *testWatch) runs(seq msg.SeqID, worker, detok string, received int) *watched {
	return w.begin(w.now, seq, worker, detok, w.request(seq), w.bound, received)
}

// look ticks now. The losses are "1 worker_dead", by sequence.
func (w *testWatch) look() (losses []string, again []*actor.PID) {
	list, again := w.tick(w.now, w)
	return w.describe(list), again
}

// pass lets time go by, with a tick at least as often as is due, until there is
// trouble.
func (w *testWatch) pass(d time.Duration) []string {
	for end := w.now.Add(d); w.now.Before(end); {
		w.now = w.now.Add(min(watchEvery, end.Sub(w.now)))
		if losses, _ := w.look(); len(losses) > 0 {
			return losses
		}
	}
	return nil
}

// says takes a worker's report: sequences and what each has generated.
func (w *testWatch) says(worker string, generated map[msg.SeqID]int) []string {
	losses, _ := w.takes(&msg.Progress{Node: worker}, generated, takers{true, true})
	return losses
}

func (w *testWatch) takes(p *msg.Progress, generated map[msg.SeqID]int, others takers) (losses []string, strangers []msg.SeqID) {
	for seq, n := range generated {
		p.Seqs, p.Generated = append(p.Seqs, seq), append(p.Generated, n)
	}
	list, strangers := w.report(w.now, p, others)
	slices.Sort(strangers)
	return w.describe(list), strangers
}

func (w *testWatch) describe(list []lostSequence) (out []string) {
	slices.SortFunc(list, func(a, b lostSequence) int { return cmp.Compare(a.lost.Seq, b.lost.Seq) })
	for _, t := range list {
		if t.request != w.request(t.lost.Seq) {
			out = append(out, fmt.Sprintf("request %s of sequence %d", t.request, t.lost.Seq))
		}
		out = append(out, fmt.Sprint(t.lost.Seq, " ", t.lost.Why))
		for worker := range w.workers {
			if !w.slow {
				w.end(t.lost.Seq, worker)
			}
		}
	}
	return out
}

func none(t *testing.T, losses []string) {
	t.Helper()
	require.Empty(t, losses)
}

func TestTheSequencesOfADeadWorkerAreLostOnce(t *testing.T) {
	w := newTestWatch()
	w.runs(1, "a", "d", 0)
	w.runs(2, "b", "d", 0)
	w.runs(3, "a", "me", 0)
	w.runs(4, "me", "me", 0)
	w.runs(5, "a", "d", 0)
	w.end(5, "a")
	require.Equal(t, 2, w.sequences("a"))
	require.Equal(t, 2, w.texts("d"))
	w.gone["a"], w.gone["me"] = true, true // this process never counts as dead to itself
	losses, _ := w.look()
	require.Equal(t, []string{"1 worker_dead", "3 worker_dead"}, losses)
	require.Zero(t, w.sequences("a"))
	require.Equal(t, 1, w.texts("d"))
	require.Equal(t, 1, w.texts("me"))
	losses, _ = w.look()
	none(t, losses)
	w.end(1, "a") // its request gets the loss and ends it
	require.Equal(t, 1, w.texts("d"))
}

// TestTheLastWordOfAWorkerDoesNotOvertakeItsText: that comes by way of a detokenizer.
func TestTheLastWordOfAWorkerDoesNotOvertakeItsText(t *testing.T) {
	w := newTestWatch()
	s := w.runs(1, "a", "d", 0)
	w.runs(2, "a", "d", 0)
	w.gone["a"], w.finished["a"] = true, true
	none(t, w.pass(lostAfter-1))
	s.received.Store(5)
	w.end(2, "a")
	none(t, w.pass(lostAfter))
	require.Equal(t, []string{"1 worker_dead"}, w.pass(2*watchEvery), "nothing comes any more")
}

func TestTheNodesThatSequencesNeedAreProbed(t *testing.T) {
	w := newTestWatch()
	require.Empty(t, w.nodes())
	w.runs(1, "a", "d", 0)
	w.runs(2, "a", "a", 0)
	w.runs(3, "me", "me", 0)
	require.ElementsMatch(t, []string{"a", "d"}, w.nodes())
	w.end(1, "a")
	require.Equal(t, []string{"a"}, w.nodes())
}

func TestAWorkerIsSilentForASequenceThatItDoesNotReport(t *testing.T) {
	w := newTestWatch()
	w.runs(1, "a", "me", 0)
	w.runs(2, "me", "d", 0) // here: its reports cannot be lost
	none(t, w.pass(testSilence))
	w.says("a", map[msg.SeqID]int{1: 0})
	none(t, w.pass(testSilence))
	require.Equal(t, []string{"1 worker_silent"}, w.pass(time.Nanosecond))
}

func TestASequenceIsForgottenWhenReportsHaveBeenWithoutItForLongEnough(t *testing.T) {
	w := newTestWatch()
	w.runs(1, "a", "me", 0)
	w.runs(2, "me", "me", 0)
	none(t, w.says("a", nil))
	none(t, w.says("me", nil))
	none(t, w.pass(lostAfter-1))
	none(t, w.says("a", nil))
	none(t, w.says("a", map[msg.SeqID]int{1: 0})) // the reports before it had been late
	none(t, w.says("a", nil))
	none(t, w.pass(lostAfter-1))
	none(t, w.says("a", nil))
	none(t, w.pass(1))
	require.Equal(t, []string{"1 worker_forgot"}, w.says("a", nil))
	none(t, w.says("me", nil)) // nothing is lost inside a process
	require.Equal(t, 1, w.sequences("me"))
}

func TestTextIsLostOnlyWhenNothingCameForLongEnough(t *testing.T) {
	for _, at := range [][2]string{{"a", "me"}, {"a", "d"}, {"me", "d"}} {
		w := newTestWatch()
		s := w.runs(1, at[0], at[1], 3)
		says := func(n int) []string { return w.says(at[0], map[msg.SeqID]int{1: n}) }
		none(t, says(5))
		none(t, w.pass(lostAfter-1))
		none(t, says(7))
		s.received.Store(5) // fewer than generated, but some arrived
		none(t, w.pass(1))
		none(t, says(8))
		none(t, w.pass(lostAfter-1))
		none(t, says(9))
		s.received.Store(9) // all came
		none(t, says(9))
		none(t, w.pass(1))
		none(t, says(10))
		none(t, w.pass(lostAfter-1))
		none(t, says(10))
		none(t, w.pass(1))
		require.Equal(t, []string{"1 text_lost"}, says(10), "%v", at)
		require.Zero(t, w.sequences(at[0]))
	}
	w := newTestWatch()
	w.runs(1, "me", "me", 0)
	none(t, w.says("me", map[msg.SeqID]int{1: 9}))
	none(t, w.pass(10*lostAfter))
	none(t, w.says("me", map[msg.SeqID]int{1: 9})) // nothing is lost inside a process
}

func TestAStepThatDoesNotEndLosesItsSequencesIfThereIsAnotherWorker(t *testing.T) {
	w := newTestWatch()
	w.runs(1, "a", "d", 2)
	w.runs(2, "a", "me", 2)
	w.runs(3, "me", "me", 2)
	stuck := func(worker string, inStep time.Duration, elsewhere bool) []string {
		losses, _ := w.takes(&msg.Progress{Node: worker, InStep: inStep}, map[msg.SeqID]int{1: 2, 2: 2}, takers{elsewhere, elsewhere})
		return losses
	}
	none(t, stuck("a", testStall, true))
	none(t, stuck("a", testStall+1, false))
	require.Equal(t, []string{"1 worker_stalled", "2 worker_stalled"}, stuck("a", testStall+1, true))
	require.Equal(t, []string{"3 worker_stalled"}, stuck("me", testStall+1, true), "its own worker too")
}

func TestSequencesLeaveADrainingWorkerOfAnotherProcess(t *testing.T) {
	w := newTestWatch()
	w.runs(1, "a", "me", 0)
	w.runs(2, "b", "me", 0)
	w.runs(3, "me", "me", 0)
	w.leaving["a"], w.leaving["me"] = takers{true, true}, takers{true, true} // what is here finishes here
	losses, _ := w.look()
	require.Equal(t, []string{"1 worker_draining"}, losses)
}

// TestASequenceLeavesItsPrefillWorkerWithItsFirstTokenFromThere, and again when the copy has had its time.
func TestASequenceLeavesItsPrefillWorkerWithItsFirstTokenFromThere(t *testing.T) {
	w := newTestWatch()
	w.slow = true
	first, again := w.runs(1, "a", "me", 0), w.runs(2, "a", "me", 50) // the second had 50 tokens elsewhere
	w.runs(3, "b", "me", 0).received.Store(1)
	local := w.runs(4, "me", "me", 0)
	w.moving["a"], w.moving["me"] = true, true
	losses, _ := w.look()
	none(t, losses)
	first.received.Store(1)
	require.Equal(t, []string{"1 prefill_done"}, w.pass(watchEvery))
	again.received.Store(51)
	local.received.Store(1)
	require.Equal(t, []string{"2 prefill_done", "4 prefill_done"}, w.pass(watchEvery))
	w.leaving["a"] = takers{true, true}
	none(t, w.pass(watchEvery))
	w.stays(1, "a")
	require.Equal(t, []string{"1 worker_draining"}, w.pass(2*fullTime), "the drain says more")
}

func TestASequenceStaysAtADrainingWorkerWithoutAnEqual(t *testing.T) {
	w := newTestWatch()
	w.runs(1, "a", "me", 0)
	w.leaving["a"] = takers{any: true}
	losses, _ := w.look()
	require.Empty(t, losses, "not begun either: its request may be bound to the kind of the worker")
}

// TestABoundSequenceLeavesAStalledWorkerForAnEqualOnly, and one without a token for any worker.
func TestABoundSequenceLeavesAStalledWorkerForAnEqualOnly(t *testing.T) {
	for _, c := range []struct {
		others takers
		leave  []string // of 1, which is bound, and 2
	}{
		{takers{}, nil}, {takers{any: true}, []string{"2 worker_stalled"}},
		{takers{any: true, equal: true}, []string{"1 worker_stalled", "2 worker_stalled"}},
		{takers{equal: true}, []string{"1 worker_stalled"}},
	} {
		w := newTestWatch()
		w.bound.Store(true)
		w.runs(1, "a", "me", 0)
		w.bound = &atomic.Bool{}
		w.runs(2, "a", "me", 0)
		losses, _ := w.takes(&msg.Progress{Node: "a", InStep: testStall + 1}, map[msg.SeqID]int{1: 0, 2: 0}, c.others)
		require.Equal(t, c.leave, losses, "%+v", c.others)
	}
}

func TestASequenceIsLostWithItsDetokenizer(t *testing.T) {
	w := newTestWatch()
	w.runs(1, "a", "d", 0)
	w.runs(2, "me", "d", 0)
	w.runs(3, "a", "e", 0)
	w.runs(4, "a", "me", 0)
	w.gone["d"], w.gone["me"] = true, true
	losses, _ := w.look()
	require.Equal(t, []string{"1 detok_dead", "2 detok_dead"}, losses)
	require.Zero(t, w.texts("d"))
}

// A process that received nothing, or did not run, has to listen first.
func TestAPartitionAndALongPauseResetTheTimers(t *testing.T) {
	for name, miss := range map[string]func(*testWatch){
		"deaf": func(w *testWatch) {
			w.partitioned = true
			none(t, w.pass(10*testSilence))
			w.partitioned = false
		},
		"pause": func(w *testWatch) {
			w.now = w.now.Add(stopped + 1)
			losses, again := w.look()
			none(t, losses)
			require.Empty(t, again)
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newTestWatch()
			w.runs(1, "a", "me", 0)
			w.runs(2, "b", "me", 0)
			w.wait(w.now, w.request(3), []string{"t"}, testPatience)
			none(t, w.says("b", map[msg.SeqID]int{2: 1}))
			none(t, w.pass(lostAfter-1)) // one more moment, and its text is lost
			w.gone["a"], w.leaving["b"], w.gone["t"] = true, takers{true, true}, true
			miss(w)
			w.gone["a"], w.leaving["b"], w.gone["t"] = false, takers{}, false
			none(t, w.says("b", map[msg.SeqID]int{2: 1}))
			none(t, w.pass(lostAfter-1))
			none(t, w.says("b", map[msg.SeqID]int{2: 1}))
			none(t, w.pass(testSilence-lostAfter+1))
			require.Equal(t, []string{"1 worker_silent"}, w.pass(time.Nanosecond))
			for end := w.now.Add(testPatience - testSilence - 1); w.now.Before(end); {
				w.now = w.now.Add(min(watchEvery, end.Sub(w.now)))
				_, again := w.look()
				require.Empty(t, again)
			}
			w.now = w.now.Add(time.Nanosecond)
			_, again := w.look()
			require.Equal(t, []*actor.PID{w.request(3)}, again)
		})
	}
}

func TestAWaitingRequestTriesAgainWhenItsNodeIsGoneOrTooLate(t *testing.T) {
	w := newTestWatch()
	w.wait(w.now, w.request(1), nil, testPatience)
	w.wait(w.now, w.request(2), []string{"t"}, testPatience)
	w.wait(w.now, w.request(3), []string{"me"}, testPatience)
	w.wait(w.now, w.request(4), []string{"u"}, testPatience)
	again := func() (ids []string) {
		_, pids := w.look()
		for _, pid := range pids {
			ids = append(ids, pid.Id)
		}
		slices.Sort(ids)
		return ids
	}
	require.Equal(t, []string{"1"}, again())
	w.gone["u"], w.gone["me"] = true, true
	require.Equal(t, []string{"1", "4"}, again())
	require.Equal(t, []string{"1", "4"}, again(), "until it waits no more")
	w.waitNoMore(w.request(1))
	w.wait(w.now, w.request(4), []string{"t"}, testPatience)
	require.Empty(t, again())
}

func TestTooLateIsATimeOfEachWaitingRequest(t *testing.T) {
	w := newTestWatch()
	w.wait(w.now, w.request(2), []string{"t"}, testPatience)
	none(t, w.pass(testPatience))
	_, again := w.look()
	require.Empty(t, again)
	w.wait(w.now, w.request(4), []string{"t"}, testPatience)
	w.now = w.now.Add(time.Nanosecond)
	_, again = w.look()
	require.Equal(t, []*actor.PID{w.request(2)}, again)
}

func TestSequencesThatNobodyWaitsForAreReturned(t *testing.T) {
	w := newTestWatch()
	w.runs(1, "a", "me", 0)
	w.runs(2, "b", "me", 0)
	w.runs(3, "a", "me", 0)
	w.end(3, "a")
	losses, strangers := w.takes(&msg.Progress{Node: "a"}, map[msg.SeqID]int{1: 0, 2: 0, 3: 0, 4: 0}, takers{true, true})
	none(t, losses)
	require.Equal(t, []msg.SeqID{2, 3, 4}, strangers, "what moved, what ended, what never was")
	_, strangers = w.takes(&msg.Progress{Node: "c"}, map[msg.SeqID]int{1: 0}, takers{true, true})
	require.Equal(t, []msg.SeqID{1}, strangers)
}

// TestASequenceWhoseTextMovesIsNoStrangerMeanwhile: reports come at any moment.
func TestASequenceWhoseTextMovesIsNoStrangerMeanwhile(t *testing.T) {
	w := newTestWatch()
	w.runs(1, "a", "x", 0)
	var moves sync.WaitGroup
	moves.Go(func() {
		for i := range 20000 {
			w.begin(w.now, 1, "a", []string{"y", "x"}[i%2], w.pids[1], w.bound, 0)
		}
	})
	for range 20000 {
		_, strangers := w.report(w.now, &msg.Progress{Node: "a", Seqs: []msg.SeqID{1}, Generated: []int{0}}, takers{})
		require.Empty(t, strangers)
	}
	moves.Wait()
	require.Equal(t, []int{1, 1, 0}, []int{w.sequences("a"), w.texts("x"), w.texts("y")})
}

// Its worker may get a redirect to continue it.
func TestALostSequenceIsNoStrangerUntilItsRequestEndsIt(t *testing.T) {
	w := newTestWatch()
	w.slow = true
	w.runs(1, "a", "d", 0)
	w.gone["d"] = true
	losses, _ := w.look()
	require.Equal(t, []string{"1 detok_dead"}, losses)
	losses, _ = w.look()
	none(t, losses)
	losses, strangers := w.takes(&msg.Progress{Node: "a", InStep: 2 * testStall}, map[msg.SeqID]int{1: 5}, takers{true, true})
	none(t, losses)
	require.Empty(t, strangers)
	w.end(1, "a")
	_, strangers = w.takes(&msg.Progress{Node: "a"}, map[msg.SeqID]int{1: 5}, takers{true, true})
	require.Equal(t, []msg.SeqID{1}, strangers)
}

func TestSequencesLeaveADrainingWorkerAFewAtATimeAndADeadOneAtOnce(t *testing.T) {
	const many = leaveShare * (leaveLeast + 1)
	w := newTestWatch()
	for seq := range msg.SeqID(many) {
		w.runs(seq+1, "a", "me", 0)
	}
	w.leaving["a"] = takers{true, true}
	list, _ := w.look()
	require.Len(t, list, many/leaveShare)
	for left := many - len(list); left > leaveLeast; left -= len(list) {
		w.now = w.now.Add(watchEvery)
		list, _ = w.look()
		require.GreaterOrEqual(t, len(list), leaveLeast)
		require.Less(t, len(list), left)
	}
	list, _ = w.look()
	require.NotEmpty(t, list)
	require.Zero(t, w.sequences("a"))
	for seq := range msg.SeqID(many) {
		w.runs(seq+1, "b", "me", 0)
	}
	w.gone["b"] = true
	list, _ = w.look()
	require.Len(t, list, many)
}

func TestASequenceWithoutRoomElsewhereIsToLeaveAgain(t *testing.T) {
	w := newTestWatch()
	w.slow = true // it runs on
	w.runs(1, "a", "a", 0)
	w.leaving["a"] = takers{true, true}
	leave := []string{"1 worker_draining"}
	require.Equal(t, leave, w.pass(watchEvery))
	w.stays(1, "a")
	none(t, w.pass(fullTime))
	require.Equal(t, leave, w.pass(watchEvery))
	w.says("a", map[msg.SeqID]int{1: 0})
	require.Empty(t, w.pass(fullTime+watchEvery), "its keys and values are on their way")
}

func TestASequenceThatItsRequestLeftIsNoStranger(t *testing.T) {
	w := newTestWatch()
	w.runs(1, "a", "me", 0)
	w.watch.leave(1, "a")
	losses, strangers := w.takes(&msg.Progress{Node: "a", InStep: 2 * testStall}, map[msg.SeqID]int{1: 5}, takers{true, true})
	none(t, losses)
	require.Empty(t, strangers, "the worker would cancel it")
}

// TestARestOfTheWatchIsNoPauseOfItsProcess: a sequence that begins after it is judged at the next tick.
func TestARestOfTheWatchIsNoPauseOfItsProcess(t *testing.T) {
	w := newTestWatch()
	require.True(t, w.rest(w.now))
	require.Empty(t, w.idle.Woken())
	w.now = w.now.Add(time.Minute)
	w.slow = true
	w.runs(1, "a", "me", 0)
	require.Len(t, w.idle.Woken(), 1)
	require.False(t, w.rest(w.now))
	w.gone["a"] = true
	w.now = w.now.Add(watchEvery)
	losses, _ := w.look()
	require.Equal(t, []string{"1 worker_dead"}, losses)
	w.prompts(1, "a", []chain.Hash{{1}})
	w.end(1, "a")
	require.False(t, w.rest(w.now), "its slabs may be on their way to the index")
	w.now = w.now.Add(2 * eventsLate)
	w.look()
	require.False(t, w.rest(w.now), "the next request may be near")
	w.now = w.now.Add(restEvery)
	require.True(t, w.rest(w.now))
	<-w.idle.Woken()
	w.wait(w.now, w.request(2), nil, 0)
	require.Len(t, w.idle.Woken(), 1)
	require.False(t, w.rest(w.now))
}
