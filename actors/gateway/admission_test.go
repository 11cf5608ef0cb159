package gateway

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/compute/sample"
	"github.com/millrace/millrace/compute/sched"
)

// admissionTest drives an admission with a clock of its own, as a worker that runs batch requests
// at once does.
type admissionTest struct {
	t *testing.T
	admission
	now     time.Time
	n       int
	batch   int
	running []string
	waiting []string
}

func newAdmissionTest(t *testing.T, size, batch int, longest time.Duration) *admissionTest {
	begin := time.Unix(1e9, 0)
	return &admissionTest{t: t, admission: newAdmission(size, batch, longest, begin), now: begin.Add(time.Hour), batch: batch}
}

func (e *admissionTest) submit(tenant string, timeout time.Duration) (id string, err *api.Error) {
	e.n++
	r := &api.Request{ID: fmt.Sprint(e.n), Tenant: tenant}
	if timeout > 0 {
		r.Deadline = e.now.Add(timeout)
	}
	if err = e.enter(r, e.now); err == nil {
		e.waiting = append(e.waiting, r.Key())
		e.begin()
	}
	return r.Key(), err
}

// begin lets requests begin while the batch has room.
func (e *admissionTest) begin() {
	for len(e.running) < e.batch && len(e.waiting) > 0 {
		e.begun(e.waiting[0], e.now)
		e.begun(e.waiting[0], e.now) // a second time changes nothing
		e.running, e.waiting = append(e.running, e.waiting[0]), e.waiting[1:]
	}
}

// end ends the oldest request after a time.
func (e *admissionTest) end(after time.Duration) {
	e.now = e.now.Add(after)
	e.leave(e.running[0])
	e.leave(e.running[0])
	e.running = e.running[1:]
	e.begin()
}

func (e *admissionTest) fill(n int) {
	e.t.Helper()
	for range n {
		_, err := e.submit("", 0)
		require.Nil(e.t, err)
	}
}

// serve keeps as many inside for n ends, one each interval.
func (e *admissionTest) serve(n int, interval time.Duration) {
	e.t.Helper()
	for range n {
		e.end(interval)
		e.fill(1)
	}
}

func TestRetryAfterIsTheTimeToServeTheQueue(t *testing.T) {
	e := newAdmissionTest(t, 30, 10, 0)
	e.fill(30)
	_, err := e.submit("", 0)
	require.Equal(t, reasonQueueFull, err.Reason)
	require.Equal(t, shortestRetry, err.RetryAfter, "nothing has ended yet")
	e.serve(100, 250*time.Millisecond)
	_, err = e.submit("", 0)
	require.Equal(t, 5*time.Second, err.RetryAfter, "20 wait, 4 end in a second")
	e.serve(300, 100*time.Millisecond)
	_, err = e.submit("", 0)
	require.InDelta(t, 2, err.RetryAfter.Seconds(), 0.05, "the rate is that of the last ends")
	e.serve(300, 10*time.Second)
	_, err = e.submit("", 0)
	require.Equal(t, longestRetry, err.RetryAfter)
}

func TestAQueueThatTakesTooLongIsRefusedAtOnce(t *testing.T) {
	e := newAdmissionTest(t, 1000, 10, time.Second)
	e.fill(10 + 11) // nothing is known: as many may wait as run, and one more is admitted after them
	_, err := e.submit("", 0)
	require.NotNil(t, err)
	require.Equal(t, reasonQueueWait, err.Reason)
	require.Equal(t, shortestRetry, err.RetryAfter)
	_, err = e.submit("b", 0)
	require.Nil(t, err)
	for range 100 {
		e.end(50 * time.Millisecond)
		_, _ = e.submit("", 0) // refused or not
	}
	for i := len(e.waiting); i <= 20; i++ {
		e.fill(1)
	}
	_, err = e.submit("", 0)
	require.NotNil(t, err, "21 wait, 20 end in a second")
	require.Equal(t, reasonQueueWait, err.Reason)
	require.Equal(t, api.CodeOverloaded, err.Code)
	require.InDelta(t, 1.05, err.RetryAfter.Seconds(), 0.01)
	require.Contains(t, err.Message, "which takes about 1.1s, at most 1s is allowed")
	for range 5 {
		_, err = e.submit("b", 0)
		require.Nil(t, err, "another tenant is not refused for the queue of the first")
	}
	for range 12 {
		e.end(50 * time.Millisecond)
	}
	e.fill(1)
	for len(e.running) > 0 { // an idle server takes a burst, as far as it takes no longer than that
		e.end(50 * time.Millisecond)
	}
	e.fill(10 + 21)
	_, err = e.submit("", 0)
	require.NotNil(t, err)
}

func TestNobodyIsRefusedWhileTheBatchHasRoom(t *testing.T) {
	e := newAdmissionTest(t, 1000, 10, 0)
	e.fill(20)
	e.serve(100, 10*time.Second)
	for len(e.running) > 0 {
		e.end(10 * time.Second)
	}
	e.longest = time.Second
	for i := range 10 { // all at once; none has begun
		require.Nil(t, e.enter(&api.Request{ID: fmt.Sprint("burst-", i)}, e.now))
	}
	_, err := e.submit("", 0)
	require.Equal(t, reasonQueueWait, err.Reason)
	require.Equal(t, longestRetry, err.RetryAfter)
}

func TestARequestThatLeavesTheQueueIsNotWaitedFor(t *testing.T) {
	e := newAdmissionTest(t, 30, 10, 0)
	e.fill(30)
	e.serve(100, 250*time.Millisecond)
	for _, id := range e.waiting[5:] {
		e.leave(id)
	}
	require.Equal(t, 5, e.waits.Inside())
	require.Equal(t, 15, e.limit.Inside())
}

func TestADeadlineThatTheQueueTakesIsRefusedAtOnce(t *testing.T) {
	e := newAdmissionTest(t, 30, 10, 0)
	e.fill(25)
	_, err := e.submit("", time.Millisecond)
	require.Nil(t, err, "nothing is known yet")
	e.serve(100, 500*time.Millisecond) // 16 wait: 8 s
	_, err = e.submit("", 7*time.Second)
	require.Equal(t, reasonDeadline, err.Reason)
	require.Equal(t, api.CodeOverloaded, err.Code)
	require.Equal(t, 8*time.Second, err.RetryAfter)
	_, err = e.submit("", 9*time.Second)
	require.Nil(t, err)
	_, err = e.submit("other", 7*time.Second)
	require.Nil(t, err, "another tenant's turn comes before that")
}

func TestAFullGatewayRefusesByShare(t *testing.T) {
	e := newAdmissionTest(t, 8, 2, 0)
	var ids []string
	for range 8 {
		id, err := e.submit("a", 0)
		require.Nil(t, err)
		ids = append(ids, id)
	}
	for range 4 {
		_, err := e.submit("b", 0)
		require.Nil(t, err, "b is below its half")
	}
	_, err := e.submit("b", 0)
	require.NotNil(t, err)
	_, err = e.submit("a", 0)
	require.NotNil(t, err)
	for _, id := range append(ids, ids...) { // a second time changes nothing
		e.leave(id)
	}
	require.Equal(t, 4, e.limit.Inside())
	require.Equal(t, 4, e.waits.Inside())
	_, err = e.submit("a", 0)
	require.Nil(t, err)
}

func TestAFullGatewayTakesARequestThatAnotherGatewayHad(t *testing.T) {
	e := newAdmissionTest(t, 1, 1, 0)
	first, err := e.submit("a", 0)
	require.Nil(t, err)
	moved := &api.Request{ID: "moved", Tenant: "a", Takeover: &api.Progress{}}
	require.Nil(t, e.enter(moved, e.now))
	_, err = e.submit("a", 0)
	require.NotNil(t, err)
	e.leave(first)
	e.leave((&api.Request{ID: "moved", Tenant: "a"}).Key())
	require.Zero(t, e.limit.Inside())
	require.Zero(t, e.waits.Inside())
}

func TestEachChoiceAndEachBeamTakesAPlace(t *testing.T) {
	e := newAdmissionTest(t, 10, 4, 0)
	enter := func(id string, r api.Request, may bool) {
		t.Helper()
		r.ID = id
		err := e.enter(&r, e.now)
		if may {
			require.Nil(t, err)
			return
		}
		require.NotNil(t, err)
		require.Equal(t, reasonQueueFull, err.Reason)
		require.Equal(t, api.CodeOverloaded, err.Code)
	}
	enter("more than there are", api.Request{N: 11}, false)
	enter("a", api.Request{N: 4}, true)
	enter("b", api.Request{N: 2, Beams: &sample.BeamParams{Width: 4}}, true)
	enter("c", api.Request{N: 3}, false)
	enter("d", api.Request{N: 1, Beams: &sample.BeamParams{Width: 3}}, false)
	enter("e", api.Request{N: 2}, true)
	enter("f", api.Request{N: 1}, false)
	enter("g", api.Request{N: 6, Tenant: "other"}, false) // half of the room is the other tenant's share
	enter("h", api.Request{N: 5, Tenant: "other"}, true)
	e.leave((&api.Request{ID: "a"}).Key())
	enter("i", api.Request{N: 1}, false)
	e.leave((&api.Request{ID: "h", Tenant: "other"}).Key())
	enter("i", api.Request{N: 4}, true)
	for _, id := range []string{"b", "e", "i", "i"} {
		e.leave((&api.Request{ID: id}).Key())
	}
	require.Zero(t, e.places)
	require.Zero(t, e.limit.Inside())
}

func TestARefusalSaysHowManyPlacesARequestAsksFor(t *testing.T) {
	e := newAdmissionTest(t, 10, 4, 0)
	err := e.enter(&api.Request{ID: "a", N: 128}, e.now)
	require.ErrorContains(t, err, "0 sequences in hand, at most 10")
	require.ErrorContains(t, err, "needs 128")
}

func TestIdleRequestsTakeNoPlaceOfOthers(t *testing.T) {
	require.Equal(t, sched.PriorityIdle, api.PriorityIdle)
	now := time.Unix(0, 0)
	e := newAdmission(4, 4, time.Second, now)
	idle := func(i int) *api.Request {
		return &api.Request{ID: fmt.Sprint("idle-", i), N: 1, Priority: api.PriorityIdle}
	}
	require.Nil(t, e.enter(idle(1), now))
	require.Nil(t, e.enter(idle(2), now))
	require.Equal(t, reasonQueueFull, e.enter(idle(3), now).Reason, "half of the batch")
	for i := range 4 {
		require.Nil(t, e.enter(&api.Request{ID: fmt.Sprint(i), N: 1}, now), "the bound is for others")
	}
	require.NotNil(t, e.enter(&api.Request{ID: "5", N: 1}, now))
	e.leave(idle(1).Key())
	require.Equal(t, reasonQueueFull, e.enter(idle(3), now).Reason, "others wait")
	for i := range 4 {
		e.begun((&api.Request{ID: fmt.Sprint(i)}).Key(), now)
	}
	require.Nil(t, e.enter(idle(3), now))
	e.leave(idle(2).Key())
	e.leave(idle(3).Key())
	require.Nil(t, e.enter(&api.Request{ID: "wide", N: 9, Priority: api.PriorityIdle}, now), "alone it may be larger than the half")
	require.Equal(t, 9, e.idle)
	e.leave((&api.Request{ID: "wide"}).Key())
	require.Zero(t, e.idle)
	e.resize(4, 4, 4)
	require.Nil(t, e.enter(idle(4), now))
	require.NotNil(t, e.enter(idle(5), now), "gateways share the half")
}
