package e2e_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/cluster"
	"github.com/millrace/millrace/compute/model"
	"github.com/millrace/millrace/compute/sample"
	"github.com/millrace/millrace/e2e/natstest"
	"github.com/millrace/millrace/kvmgr/kvfile"
)

func pools(t *testing.T) *kvfile.Dir {
	t.Helper()
	return poolsAt(t, onTmpfs(t))
}

func onTmpfs(t *testing.T) string {
	t.Helper()
	path, err := os.MkdirTemp("/dev/shm", "millrace-test") //nolint:usetesting // TempDir is not on tmpfs
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(path)) })
	return path
}

func poolsAt(t *testing.T, path string) *kvfile.Dir {
	t.Helper()
	d, err := kvfile.Open(path, func(err error) { t.Error(err) })
	require.NoError(t, err)
	t.Cleanup(d.Close)
	return d
}

// die makes a worker dead for the others: it sends nothing, and its pool has no owner. It computes on, as if it had been
// killed in the middle of a step.
func (w *worker) die(t *testing.T) {
	t.Helper()
	fd, _ := w.model.PoolFile().Fd()
	require.NoError(t, unix.Flock(int(fd), unix.LOCK_UN))
	w.conn.Close()
}

// TestARestartFindsItsPrefixes sends a prompt to a process that was started again, which had answered it before.
func TestARestartFindsItsPrefixes(t *testing.T) {
	path := onTmpfs(t)
	start := func() *worker {
		w := memberIn(t, poolsAt(t, path), natstest.Start(t, nil).ClientURL(), model.KVAuto, cluster.Roles()...)
		require.Eventually(t, func() bool { return w.Ready() == nil }, patience, time.Millisecond)
		return w
	}
	prompt := make([]int32, 100)
	for i := range prompt {
		prompt[i] = int32(7 * i)
	}
	q := api.Request{Model: "tiny-chat", N: 1, PromptTokens: prompt, MaxTokens: 20, TopLogprobs: -1, Arrival: time.Now(), IgnoreEOS: true}
	before := start()
	cold, cached := talk(t, before.Node, "a", q)
	require.Zero(t, cached)
	before.die(t)
	after := start()
	other, cached := talk(t, after.Node, "b", q)
	require.Zero(t, cached, "it is another tenant's")
	require.Equal(t, cold.tokens, other.tokens)
	again, cached := talk(t, after.Node, "a", q)
	require.Equal(t, 96, cached)
	require.Equal(t, cold.tokens, again.tokens)
	require.InDelta(t, 96, total(t, after.series, "millrace_adopted_tokens_total"), 0)
}

// TestAnAdoptionChangesNoBit kills a worker while sequences run there, and compares what clients see with the same requests at
// one worker.
func TestAnAdoptionChangesNoBit(t *testing.T) {
	for _, kv := range kvTypes() {
		t.Run(kv.String(), func(t *testing.T) { adoption(t, kv, true) })
	}
}

// TestAPoolOfAnotherDirectoryIsNotAdopted: the sequences are computed again.
func TestAPoolOfAnotherDirectoryIsNotAdopted(t *testing.T) {
	adoption(t, model.KVAuto, false)
}

func adoption(t *testing.T, kv model.KVType, adopts bool) {
	t.Helper()
	url := natstest.Start(t, nil).ClientURL()
	dir := pools(t)
	gateway, _, _ := member(t, url, kv, cluster.Gateway, cluster.Tokenize, cluster.Detok)
	left := memberIn(t, dir, url, kv, cluster.Compute)
	if !adopts {
		dir = pools(t)
	}
	right := memberIn(t, dir, url, kv, cluster.Compute)
	require.Eventually(t, func() bool { return gateway.Ready() == nil }, patience, time.Millisecond)
	rng := rand.New(rand.NewPCG(5, uint64(len(kv.String()))))
	steps := func(least uint64) bool { return min(left.Member().Worker.Steps, right.Member().Worker.Steps) > least }
	for n := 0; !steps(0); n++ { // until the gateway knows both
		talk(t, gateway, fmt.Sprint("first", n), api.Request{Model: "tiny-chat", N: 1, PromptTokens: promptOf(rng, 5), MaxTokens: 2,
			TopLogprobs: -1, Arrival: time.Now()})
	}
	common := slices.Clip(promptOf(rng, 300))
	var requests []api.Request
	var streams []api.Stream
	for i := range 8 {
		q := api.Request{
			ID: fmt.Sprint(i), Tenant: "a", Model: "tiny-chat", N: 1, PromptTokens: append(common, promptOf(rng, 300)...), MaxTokens: 500,
			TopLogprobs: -1, Arrival: time.Now(), IgnoreEOS: true,
		}
		if i%2 == 1 {
			q.Sampling = sample.Params{Temperature: 1.1, TopP: 0.9, Seed: uint64(i)}
		}
		s, err := gateway.Submit(t.Context(), &q)
		require.NoError(t, err)
		requests, streams = append(requests, q), append(streams, s)
	}
	require.Eventually(t, func() bool { return steps(60) }, patience, time.Millisecond)
	left.die(t)
	for i, s := range streams {
		got, last, err := readAll(s)
		require.NoError(t, err)
		require.NoError(t, last.Err)
		cold, _ := talk(t, gateway, fmt.Sprint("cold", i), requests[i])
		require.Equal(t, cold.tokens, got)
	}
	adopted, recomputed := total(t, right.series, "millrace_adopted_tokens_total"),
		total(t, right.series, "millrace_recomputed_tokens_total")
	if adopts {
		require.Positive(t, adopted)
		require.Zero(t, recomputed)
	} else {
		require.Zero(t, adopted)
		require.Positive(t, recomputed)
	}
	state, err := right.KVState(t.Context(), false)
	require.NoError(t, err)
	require.Equal(t, "ok", state.Check)
}
