package log

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestATenantIsSureOfItsShareAndMayBorrowTheRest has five tenants and 1,000 bytes: a share of 100 for
// each, and 500 to borrow.
func TestATenantIsSureOfItsShareAndMayBorrowTheRest(t *testing.T) {
	q := newQuota(1000)
	require.True(t, q.reserve("one", "a", 1000), "alone")
	q.tenants = 5
	q.free("one")
	require.True(t, q.reserve("one", "a", 600))
	require.False(t, q.reserve("two", "a", 1))
	require.False(t, q.reserve("one", "a", 601))
	require.Equal(t, int64(600), q.used("a"), "it keeps what it has")
	require.True(t, q.reserve("three", "b", 100))
	require.False(t, q.reserve("four", "b", 1), "nothing is left to borrow")
	require.True(t, q.reserve("one", "a", 599))
	require.True(t, q.reserve("four", "b", 1))
	for _, tenant := range []string{"c", "d", "e"} {
		require.True(t, q.reserve(tenant, tenant, 100), "its share")
		require.False(t, q.reserve(tenant, tenant, 101))
	}
	require.Equal(t, int64(500), q.borrowed())
	q.free("nothing")
	q.free("one")
	q.free("one")
	require.Zero(t, q.used("a"))
	require.True(t, q.reserve("c", "c", 599))
}

// TestAQuotaCountsTheLogsOfOtherGateways checks that other gateways count, and that a dead gateway
// counts until its records expire.
func TestAQuotaCountsTheLogsOfOtherGateways(t *testing.T) {
	now := time.Unix(100, 0)
	q := newQuota(1000)
	q.receive(now, "g", map[string]int64{"a": 900}, false)
	require.False(t, q.reserve("one", "a", 101))
	require.True(t, q.reserve("one", "a", 100))
	q.receive(now, "g", map[string]int64{"b": 1}, false)
	require.Equal(t, int64(1000), q.used("a"), "tenants that are not in the report do not change")
	require.Equal(t, int64(300), q.takeOver("two", "a", 300, "g"))
	require.Equal(t, int64(1000), q.used("a"), "counted once")
	q.receive(now, "g", map[string]int64{"b": 1}, true)
	require.Equal(t, int64(400), q.used("a"))
	require.Empty(t, q.silent(now))
	silent := q.silent(now.Add(time.Second))
	require.Equal(t, map[string]int64{"b": 1}, silent["g"].bytes)

	late := newQuota(1000)
	late.inherit(silent["g"].reported, "g", silent["g"].bytes)
	require.Equal(t, int64(1), late.used("b"))
	late.transferred("b", 5, "g")
	require.Zero(t, late.used("b"))
	late.inherit(now, "g", map[string]int64{"b": 7})
	require.Zero(t, late.used("b"), "its own knowledge is newer")
	late.expire(now)
	require.Len(t, late.others, 1)
	late.expire(now.Add(1))
	require.Empty(t, late.others)
}

// TestATakeoverKeepsATenantWithinItsQuota checks sizes around a step, with room to round up and without.
func TestATakeoverKeepsATenantWithinItsQuota(t *testing.T) {
	for _, size := range []int64{1, reserveStep - 1, reserveStep, reserveStep + 1, 3 * reserveStep} {
		for _, other := range []int64{0, 5} { // bytes of another log at the gateway that is taken over from
			for _, room := range []int64{0, 1, reserveStep - 1, reserveStep, 2 * reserveStep} {
				from := newQuota(other + size + room)
				require.True(t, from.reserve("other", "a", other))
				had, ok := from.reserveLog("log", "a", size)
				require.True(t, ok)
				require.Equal(t, room >= reservedFor(size)-size, had%reserveStep == 0, "it rounds up if there is room")

				q := newQuota(from.limit)
				q.receive(time.Unix(1, 0), "g", from.own, true)
				got := q.takeOver("log", "a", size, "g")
				about := fmt.Sprintf("a log of %d bytes beside %d, and room for %d more", size, other, room)
				require.GreaterOrEqual(t, got, size, about)
				require.GreaterOrEqual(t, q.used("a"), other+size, about)
				require.LessOrEqual(t, q.used("a"), q.limit, about)
				if room == 0 || room == 2*reserveStep {
					require.Equal(t, had, got, about)
					require.Equal(t, other, q.others["g"].bytes["a"], about)
				}
			}
		}
	}
}
