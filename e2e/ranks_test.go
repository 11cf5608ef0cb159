package e2e_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/e2e/natstest"
)

// TestAWorkerOfRanksMayBeKilled: its streams continue at a worker with as many ranks, from the slabs of the dead one.
func TestAWorkerOfRanksMayBeKilled(t *testing.T) {
	alone := startServer(t, "--threads", "2", "--tensor-parallel", "2")
	const streams = 6
	bodies, want := make([]string, streams), make([]string, streams)
	for i := range streams {
		// Prompts with the same beginning are one conversation, which stays at one process.
		body := fmt.Sprintf(longBody, fmt.Sprintf(`"temperature":1.2,"top_p":0.95,"seed":%d`, i))
		bodies[i] = strings.Replace(body, "Once upon", fmt.Sprintf("%d times upon", i), 1)
		var err error
		want[i], err = streamText("http://"+alone.http, bodies[i], func() {})
		require.NoError(t, err)
	}
	url := natstest.Start(t, nil).ClientURL()
	shm := onTmpfs(t)
	for _, role := range []string{"tokenize", "detok"} {
		startRole(t, url, role)
	}
	var workers []*server
	for range 2 {
		workers = append(workers, startRole(t, url, "compute", "--kv-shm", shm, "--threads", "2", "--tensor-parallel", "2"))
	}
	gateway := startRole(t, url, "gateway")
	require.Eventually(t, func() bool { return metric(t, gateway, `millrace_nodes{role="compute"}`) == 2 }, patience, 10*time.Millisecond)
	var wg, begun sync.WaitGroup
	begun.Add(streams)
	for i := range streams {
		wg.Go(func() {
			once := sync.OnceFunc(begun.Done)
			defer once()
			got, err := streamText("http://"+gateway.http, bodies[i], once)
			if err != nil || got != want[i] {
				t.Errorf("stream %d: %v; found %q, expected %q", i, err, got, want[i])
			}
		})
	}
	begun.Wait()
	require.NoError(t, workers[0].cmd.Process.Kill())
	wg.Wait()
	require.Positive(t, metric(t, gateway, "millrace_migrations_total"))
	require.Positive(t, metric(t, workers[1], "millrace_adopted_tokens_total"))
}
