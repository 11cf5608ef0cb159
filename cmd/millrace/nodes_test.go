package main

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/cluster"
	"github.com/millrace/millrace/metrics"
)

// beat has nodes beat until the test ends. Their names are those of their keys.
func beat(t *testing.T, nc *nats.Conn, members ...cluster.Member) {
	t.Helper()
	for _, m := range members {
		r, err := cluster.Join(cluster.Config{
			Conn: nc, Beat: 10 * time.Millisecond, Key: cluster.NewKey(), Self: func() cluster.Member { return m },
			Metrics: metrics.New(metrics.Build{}).Cluster(), Log: zerolog.Nop(),
		})
		require.NoError(t, err)
		t.Cleanup(r.Leave)
	}
}

func TestNodesListsWhoServes(t *testing.T) {
	url, nc := natsServer(t)
	code, stdout, stderr := millrace(t, nil, "nodes", "--nats", url, "--heartbeat", "1ms")
	require.Equal(t, 0, code, stderr)
	require.Equal(t, "no process found at "+url+": check --nats, and that --heartbeat is not shorter than theirs\n", stdout)

	beat(t, nc,
		cluster.Member{Roles: []cluster.Role{cluster.Gateway}, Host: "h", Process: 7},
		cluster.Member{Roles: []cluster.Role{cluster.Compute, cluster.Detok}, Host: "h", Process: 8, Model: "m", Draining: true,
			Worker: &cluster.Worker{Backend: "cpu", Weights: "int8", Running: 3, Waiting: 1, Capacity: 64, FreeSlabs: 9, Slabs: 10}})
	code, stdout, stderr = millrace(t, nil, "nodes", "--nats", url, "--heartbeat", "1s", "--json")
	require.Equal(t, 0, code, stderr)
	var r nodesReport
	require.NoError(t, json.Unmarshal([]byte(stdout), &r))
	require.Equal(t, url, r.NATS)
	require.Len(t, r.Nodes, 2)
	i := slices.IndexFunc(r.Nodes, func(h cluster.Observed) bool { return h.Process == 8 })
	require.Equal(t, 64, r.Nodes[i].Worker.Capacity)
	require.Equal(t, 1, strings.Count(stdout, "\n"))
}

func TestTheTableOfNodesHasWhatEachOffers(t *testing.T) {
	var out bytes.Buffer
	worker := cluster.Worker{Backend: "cpu", Weights: "int8", Running: 3, Waiting: 1, Capacity: 64, FreeSlabs: 9, Slabs: 10,
		InStep: 1234567 * time.Microsecond}
	worker.Numerics, worker.Class = "0123456789abcdef0123", "avx2"
	down := worker
	down.Down, down.Numerics, down.Class = "the device failed", "9999", ""
	require.NoError(t, printNodes(&out, &nodesReport{Nodes: []cluster.Observed{
		{Member: cluster.Member{Node: "n1", Roles: []cluster.Role{cluster.Gateway}, Host: "h", Process: 7},
			BeatAge: 12345 * time.Microsecond},
		{Member: cluster.Member{Node: "n2", Roles: []cluster.Role{cluster.Compute, cluster.Detok}, Host: "h", Process: 8, Model: "m",
			Draining: true, Text: "t1", Worker: &worker}},
		{Member: cluster.Member{Node: "n3", Roles: []cluster.Role{cluster.Compute}, Host: "h", Process: 9, Model: "m", Worker: &down}},
	}}))
	require.Equal(t, `NODE  PROCESS  ROLES          MODEL  WEIGHTS   NUMERICS                 TEXT  LOAD       FREE SLABS  IN STEP  STATE                    BEAT
n1    h:7      gateway        -      -         -                        -     -          -           -        serving                  12ms
n2    h:8      compute,detok  m      cpu/int8  0123456789abcdef (avx2)  t1    3+1 of 64  9 of 10     1.235s   draining                 0s
n3    h:9      compute        m      cpu/int8  9999                     -     3+1 of 64  9 of 10     1.235s   down: the device failed  0s
mixed pool: model "m" has several numerics digests, workers: 1 of 0123456789abcdef (avx2), 1 of 9999; an answer continues at its own only
mixed pool: model "m" has several text digests, processes: 1 of no digest, 1 of t1; an answer continues at its own only
`, out.String())
}

func TestNodesSaysWhatIsWrong(t *testing.T) {
	for want, args := range map[string][]string{
		"--heartbeat: found 0s, expected more than 0s":       {"--heartbeat", "0s"},
		"--nats-creds and --nats-nkey: expected one of them": {"--nats-creds", "a", "--nats-nkey", "b"},
		"--nats-nkey: b: ": {"--nats-nkey", "b"},
		"NATS at nats://xxxxx@127.0.0.1:1: nats: no servers available": {"--nats", "nats://me:secret@127.0.0.1:1"},
	} {
		code, stdout, stderr := millrace(t, nil, append([]string{"nodes"}, args...)...)
		require.Contains(t, stderr, want)
		require.NotContains(t, stderr, "secret")
		require.Empty(t, stdout)
		if strings.HasPrefix(want, "--") {
			require.Equal(t, 2, code)
		} else {
			require.Equal(t, 1, code)
		}
	}
}
