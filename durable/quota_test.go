package durable

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestATenantIsSureOfItsShareAndMayBorrowTheRest: half of 1,000 bytes is lent, of the other half each of five has 100.
func TestATenantIsSureOfItsShareAndMayBorrowTheRest(t *testing.T) {
	l := newQuota(1000)
	require.True(t, l.reserve("one", "a", 1000), "alone")
	l.tenants = 5
	l.free("one")
	require.True(t, l.reserve("one", "a", 600))
	require.False(t, l.reserve("two", "a", 1))
	require.False(t, l.reserve("one", "a", 601))
	require.Equal(t, int64(600), l.used("a"), "it keeps what it has")
	require.True(t, l.reserve("three", "b", 100))
	require.False(t, l.reserve("four", "b", 1), "all is lent")
	require.True(t, l.reserve("one", "a", 599))
	require.True(t, l.reserve("four", "b", 1))
	for _, tenant := range []string{"c", "d", "e"} {
		require.True(t, l.reserve(tenant, tenant, 100), "its share")
		require.False(t, l.reserve(tenant, tenant, 101))
	}
	require.Equal(t, int64(500), l.borrowed())
	l.free("nothing")
	l.free("one")
	l.free("one")
	require.Zero(t, l.used("a"))
	require.True(t, l.reserve("c", "c", 599))
}

// TestALedgerKnowsWhatOtherGatewaysHold, also of one that died, until its records have expired.
func TestAQuotaCountsTheLogsOfOtherGateways(t *testing.T) {
	now := time.Unix(100, 0)
	l := newQuota(1000)
	l.receive(now, "g", map[string]int64{"a": 900}, false)
	require.False(t, l.reserve("one", "a", 101))
	require.True(t, l.reserve("one", "a", 100))
	l.receive(now, "g", map[string]int64{"b": 1}, false)
	require.Equal(t, int64(1000), l.used("a"), "not said again")
	l.takeOver("two", "a", 300, "g")
	require.Equal(t, int64(1000), l.used("a"), "counted once")
	l.receive(now, "g", map[string]int64{"b": 1}, true)
	require.Equal(t, int64(400), l.used("a"))
	require.Empty(t, l.silent(now))
	silent := l.silent(now.Add(time.Second))
	require.Equal(t, map[string]int64{"b": 1}, silent["g"].bytes)

	later := newQuota(1000)
	later.inherit(silent["g"].reported, "g", silent["g"].bytes)
	require.Equal(t, int64(1), later.used("b"))
	later.transferred("b", 5, "g")
	require.Zero(t, later.used("b"))
	later.inherit(now, "g", map[string]int64{"b": 7})
	require.Zero(t, later.used("b"), "known better here")
	later.expire(now)
	require.Len(t, later.others, 1)
	later.expire(now.Add(1))
	require.Empty(t, later.others)
}
