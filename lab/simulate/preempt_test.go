package simulate

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/compute/sched"
)

func TestTheLastToArriveIsPreempted(t *testing.T) {
	w := &worker{fleet: &fleet{tally: &tally{}}, paged: newPaged(10, 16)}
	for i, at := range []time.Duration{3, 9, 5} {
		q := live{id: sched.ID(i + 1)}
		q.At = at
		w.live = append(w.live, q)
		leased, err := w.paged.reserve(sched.Reservation{ID: q.id, Tokens: 100, Lease: 16 * (i + 1)})
		require.NoError(t, err)
		require.Equal(t, 16*(i+1), leased)
	}
	require.Equal(t, 2, w.evict())
	require.Equal(t, []sched.Event{sched.Cancel(2)}, w.events)
	require.Equal(t, 3, w.evict(), "a preempted sequence is not preempted again")
}
