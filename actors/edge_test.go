package actors

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api"
)

// edgeTest drives an edge with a clock of its own.
type edgeTest struct {
	t *testing.T
	edge
	now time.Time
	n   int
}

func newEdgeTest(t *testing.T, size, batch int) *edgeTest {
	return &edgeTest{t: t, edge: newEdge(size, batch), now: time.Unix(1e9, 0)}
}

func (e *edgeTest) submit(tenant string, timeout time.Duration) (id string, err *api.Error) {
	e.n++
	r := &api.Request{ID: fmt.Sprint(e.n), Tenant: tenant}
	if timeout > 0 {
		r.Deadline = e.now.Add(timeout)
	}
	return r.ID, e.enter(r, e.now)
}

// serve keeps the edge full for n ends, one each interval.
func (e *edgeTest) serve(n int, interval time.Duration) {
	e.t.Helper()
	var inside []string
	for id := range e.tenants {
		inside = append(inside, id)
	}
	for i := range n {
		e.now = e.now.Add(interval)
		e.leave(inside[i], e.now)
		id, err := e.submit("", 0)
		require.Nil(e.t, err)
		inside = append(inside, id)
	}
}

func TestRetryAfterIsTheTimeToServeTheQueue(t *testing.T) {
	e := newEdgeTest(t, 30, 10)
	for range 30 {
		_, err := e.submit("", 0)
		require.Nil(t, err)
	}
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

func TestIdleTimeDoesNotCountAsSlowness(t *testing.T) {
	e := newEdgeTest(t, 3, 1)
	fill := func() {
		for range 3 {
			_, err := e.submit("", 0)
			require.Nil(t, err)
		}
	}
	fill()
	e.serve(10, time.Second)
	for id := range e.tenants {
		e.now = e.now.Add(time.Second)
		e.leave(id, e.now)
	}
	e.now = e.now.Add(time.Hour)
	fill()
	_, err := e.submit("", 0)
	require.Equal(t, 2*time.Second, err.RetryAfter)
	e.serve(1, time.Second)
	_, err = e.submit("", 0)
	require.Equal(t, 2*time.Second, err.RetryAfter)
}

func TestADeadlineThatTheQueueTakesIsRefusedAtOnce(t *testing.T) {
	e := newEdgeTest(t, 30, 10)
	for range 25 {
		_, err := e.submit("", 0)
		require.Nil(t, err)
	}
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

func TestAFullEdgeRefusesByShare(t *testing.T) {
	e := newEdgeTest(t, 8, 2)
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
		e.leave(id, e.now)
	}
	require.Equal(t, 4, e.room.Inside())
	_, err = e.submit("a", 0)
	require.Nil(t, err)
}

func TestAFullEdgeTakesARequestThatAnotherGatewayHad(t *testing.T) {
	e := newEdgeTest(t, 1, 1)
	first, err := e.submit("a", 0)
	require.Nil(t, err)
	moved := &api.Request{ID: "moved", Tenant: "a", Resume: &api.Progress{}}
	require.Nil(t, e.enter(moved, e.now))
	_, err = e.submit("a", 0)
	require.NotNil(t, err)
	e.leave(first, e.now)
	e.leave("moved", e.now)
	require.Zero(t, e.room.Inside())
}
