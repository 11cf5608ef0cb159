package main

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestBusyTimeIsNeitherIdleNorStolen(t *testing.T) {
	busy, err := busyTime("cpu  100 20 3 9999 8888 4 5 7777 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n")
	require.NoError(t, err)
	require.Equal(t, 1320*time.Millisecond, busy)
	for _, text := range []string{"", "intr 1 2 3 4 5 6 7 8", "cpu 1 2 3", "cpu 1 2 3 4 5 x 7 8"} {
		_, err := busyTime(text)
		require.ErrorContains(t, err, "/proc/stat", text)
	}
}

func TestTimingIsJudgedOnAQuietMachine(t *testing.T) {
	broken := errors.New("too slow")
	quiet, busy := shares{took: 10, server: 9, load: 1}, shares{took: 10, server: 9, load: 1, others: 1000}
	var r report
	require.NoError(t, r.judge(nil, []shares{quiet, quiet}))
	require.ErrorIs(t, r.judge(broken, []shares{quiet, quiet}), broken)
	require.Empty(t, r.Notes)
	require.NoError(t, r.judge(broken, []shares{quiet, busy}))
	require.Contains(t, r.Notes[0], "too slow")
}
