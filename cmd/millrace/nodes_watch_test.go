package main

import (
	"bytes"
	"context"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/cluster"
)

func TestWatchShowsSlabsHitsAndTheRateOfEachWorker(t *testing.T) {
	var out bytes.Buffer
	v := newView(&out, false)
	first := cluster.Worker{Running: 3, Waiting: 1, Slabs: 10, UsedSlabs: 4, Promised: 2, Cached: 3, FreeSlabs: 4, Generated: 100}
	second := cluster.Worker{Slabs: 5, FreeSlabs: 5, Generated: 7}
	report := func(age time.Duration) *nodesReport {
		a, b := first, second
		return &nodesReport{"nats://x", []cluster.Observed{
			{Member: cluster.Member{Node: "n1", Roles: []cluster.Role{cluster.Gateway}}},
			{Member: cluster.Member{Node: "n2", Host: "h", Process: 8, Model: "m", Worker: &a}, BeatAge: age},
			{Member: cluster.Member{Node: "n3", Host: "h", Process: 9, Model: "m", Draining: true, Worker: &b}, BeatAge: age},
		}}
	}
	clock := time.Date(2026, 1, 2, 10, 0, 0, 0, time.UTC)
	require.NoError(t, v.show(clock, report(200*time.Millisecond)))
	require.Contains(t, out.String(), "10:00:00  nats://x  3 processes\n")
	out.Reset()

	first.Generated, first.PrefixTokens, first.PrefixHits = 160, 200, 50
	require.NoError(t, v.show(clock.Add(time.Second), report(0))) // 1.2 s after the beat before it
	const table = `10:00:01  nats://x  3 processes
NODE  PROCESS  MODEL  RUNNING  WAITING  SLABS  USED  PROMISED  CACHED  FREE  HITS   TOKENS/S  STATE     BEAT
n2    h:8      m      3        1        10     4     2         3       4     25.0%  50.0      serving   0s
n3    h:9      m      0        0        5      0     0         0       5     -      0.0       draining  0s
all                   3        1        15     4     2         3       9     25.0%  50.0                

`
	require.Equal(t, table, out.String())
	out.Reset()

	require.NoError(t, v.show(clock.Add(2*time.Second), report(time.Second))) // no beat came: the last rate
	require.Contains(t, out.String(), "50.0      serving   1s")
	out.Reset()

	v.terminal = true
	first.Generated = 3 // it started again
	require.NoError(t, v.show(clock.Add(3*time.Second), report(0)))
	require.True(t, strings.HasPrefix(out.String(), "\x1b[H\x1b[2J10:00:03"), "a table replaces the one before")
	require.Contains(t, out.String(), "0.0       serving")
	require.False(t, strings.HasSuffix(out.String(), "\n\n"))
}

// untilTables ends a context after some writes.
type untilTables struct {
	bytes.Buffer
	left int
	end  func()
}

func (u *untilTables) Write(p []byte) (int, error) {
	if u.left--; u.left == 0 {
		u.end()
	}
	return u.Buffer.Write(p)
}

func TestWatchEndsWithoutAnErrorWhenItIsInterrupted(t *testing.T) {
	url, nc := natsServer(t)
	beat(t, nc, cluster.Member{Roles: []cluster.Role{cluster.Compute}, Host: "h", Process: 8, Worker: &cluster.Worker{Slabs: 10}})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	out := &untilTables{left: 2, end: cancel}
	o := &nodesOptions{url: url, heartbeat: cluster.DefaultBeat}
	conn, err := connectToBeats(o)
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, watchNodes(ctx, conn, o, newView(out, false), zerolog.Nop()))
	require.Equal(t, 2, strings.Count(out.String(), "h:8"))

	conn.Close()
	require.Error(t, watchNodes(t.Context(), conn, o, newView(io.Discard, false), zerolog.Nop()))
}
