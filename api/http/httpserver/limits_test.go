package httpserver

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestASteadyBodyMayTakeItsTimeAndADripMayNot(t *testing.T) {
	var l Limits
	l.defaults()
	begun := time.Unix(1e9, 0)
	require.Equal(t, 10*time.Second, l.bodyDeadline(begun, 0).Sub(begun))
	require.Equal(t, 11*time.Second, l.bodyDeadline(begun, 8<<10).Sub(begun))
	require.Equal(t, 1034*time.Second, l.bodyDeadline(begun, 8<<20).Sub(begun), "the largest body")
	now := begun
	for got := int64(0); got < 8<<20; got += 1 << 10 { // at exactly the rate
		require.False(t, now.After(l.bodyDeadline(begun, got)))
		now = now.Add(time.Second / 8)
	}
	now = begun
	got := int64(0)
	for !now.After(l.bodyDeadline(begun, got)) { // a byte a second
		got++
		now = now.Add(time.Second)
	}
	require.Equal(t, int64(11), got)
}

func TestConnectionsLeaveRoomForOtherFiles(t *testing.T) {
	for files, want := range map[uint64]int{0: 16, 20: 16, 1024: 512, 20_000: 10_000, 1 << 20: 16384, 1<<64 - 1: 16384} {
		require.Equal(t, want, maxConnections(files))
	}
	require.NotZero(t, fileLimit())
}
