package e2e_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/actors/node"
	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/cluster"
	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/compute/device"
	"github.com/millrace/millrace/compute/model"
	"github.com/millrace/millrace/compute/sample"
	"github.com/millrace/millrace/compute/sched"
	"github.com/millrace/millrace/e2e/natstest"
	"github.com/millrace/millrace/kvmgr"
	"github.com/millrace/millrace/kvmgr/kvfile"
	"github.com/millrace/millrace/metrics"
)

// member starts a process of a cluster, as far as its pipeline goes. close drains it, once.
func member(t *testing.T, url string, kv model.KVType, roles ...cluster.Role) (p *node.Node, series *metrics.Metrics, end func()) {
	t.Helper()
	w := memberIn(t, nil, url, kv, roles...)
	return w.Node, w.series, w.end
}

// worker is a process of a cluster, as far as its pipeline goes.
type worker struct {
	*node.Node
	model  *compute.Model
	conn   *nats.Conn
	series *metrics.Metrics
	end    func() // drains it, once
}

// memberIn is member with a directory for its KV pool; nil: it has none.
func memberIn(t *testing.T, pools *kvfile.Dir, url string, kv model.KVType, roles ...cluster.Role) *worker {
	t.Helper()
	return memberOn(t, "", pools, url, kv, roles...)
}

// memberOn is memberIn with a directory for its KV disk; "": it has none.
func memberOn(t *testing.T, disk string, pools *kvfile.Dir, url string, kv model.KVType, roles ...cluster.Role) *worker {
	t.Helper()
	return memberWith(t, device.Options{Backend: "cpu", Threads: 1}, disk, pools, url, kv, roles...)
}

// memberWith is memberOn with a device.
func memberWith(t *testing.T, o device.Options, disk string, pools *kvfile.Dir, url string, kv model.KVType,
	roles ...cluster.Role) *worker {
	t.Helper()
	conn, err := nats.Connect(url)
	require.NoError(t, err)
	tok, err := demoTokenizer()
	require.NoError(t, err)
	m, err := compute.Open(compute.Options{
		Dir: demoModel, Device: o, MaxRows: 128, MaxOutputs: 8, MaxSequences: 8, KV: kv, KVMemory: 32 << 20,
		Pools: pools, Warn: func(err error) { t.Error(err) },
	})
	require.NoError(t, err)
	series := metrics.New(metrics.Build{})
	p, err := node.New(node.Config{
		Roles: roles, ModelID: "tiny-chat", Model: m, Pools: pools, Pool: m.PoolFile, Tokenizer: tok,
		Facts: api.WeightFacts{ContextLength: m.Program.MaxPositions},
		Sched: sched.Config{
			MaxBatchTokens: 128, ChunkTokens: 64, MaxBatchSize: 8, MaxWaiting: 64, DraftRows: 8,
			MaxSequenceTokens: m.Program.MaxPositions, KV: kvmgr.NewSpec(device.SlabTokens, kvmgr.Full{}),
			LeaseAheadTokens: 2 * device.SlabTokens,
		},
		KVDisk:  node.KVDisk{Dir: disk, Size: 64 << 20},
		Cluster: node.Cluster{Conn: conn, Beat: 20 * time.Millisecond}, Metrics: series, Log: zerolog.Nop(),
	})
	require.NoError(t, err)
	ended := false
	end := func() {
		if ended {
			return
		}
		ended = true
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		require.NoError(t, p.Close(ctx))
		conn.Close()
		m.Close()
	}
	t.Cleanup(end)
	return &worker{p, m, conn, series, end}
}

// total is the value of a counter.
func total(t *testing.T, series *metrics.Metrics, name string) (sum float64) {
	t.Helper()
	families, err := series.Registry().Gather()
	require.NoError(t, err)
	for _, f := range families {
		if f.GetName() == name {
			for _, m := range f.GetMetric() {
				sum += m.GetCounter().GetValue()
			}
		}
	}
	return sum
}

// TestAHandOverChangesNoBit drains a worker while sequences run there, and compares what clients see with the same
// requests at one worker.
func TestAHandOverChangesNoBit(t *testing.T) {
	one := device.Options{Backend: "cpu", Threads: 1}
	for _, kv := range kvTypes() {
		t.Run(kv.String(), func(t *testing.T) { handsOver(t, one, kv) })
	}
	two := device.Options{Backend: "cpu", Threads: 2, Ranks: 2}
	t.Run("2 ranks", func(t *testing.T) { handsOver(t, two, model.KVAuto) })
}

func handsOver(t *testing.T, o device.Options, kv model.KVType) {
	t.Helper()
	url := natstest.Start(t, nil).ClientURL()
	gateway, _, _ := member(t, url, kv, cluster.Gateway, cluster.Tokenize, cluster.Detok)
	leaving := memberWith(t, o, "", nil, url, kv, cluster.Compute)
	left, end := leaving.Node, leaving.end
	staying := memberWith(t, o, "", nil, url, kv, cluster.Compute)
	right, series := staying.Node, staying.series
	require.Eventually(t, func() bool { return gateway.Ready() == nil }, patience, time.Millisecond)
	rng := rand.New(rand.NewPCG(5, uint64(len(kv.String()))))
	steps := func(least uint64) bool { return min(left.Member().Worker.Steps, right.Member().Worker.Steps) > least }
	for n := 0; !steps(0); n++ { // until the gateway knows both
		talk(t, gateway, fmt.Sprint("first", n), api.Request{Model: "tiny-chat", N: 1, PromptTokens: promptOf(rng, 5), MaxTokens: 2,
			TopLogprobs: -1, Arrival: time.Now()})
	}
	var requests []api.Request
	var streams []api.Stream
	for i := range 8 {
		q := api.Request{
			ID: fmt.Sprint(i), Tenant: "a", Model: "tiny-chat", N: 1, PromptTokens: promptOf(rng, 200), MaxTokens: 500,
			TopLogprobs: -1, Arrival: time.Now(), IgnoreEOS: true,
		}
		if i%2 == 1 {
			q.Sampling = sample.Params{Temperature: 1.1, TopP: 0.9, Seed: uint64(i)}
		}
		s, err := gateway.Submit(t.Context(), &q)
		require.NoError(t, err)
		requests, streams = append(requests, q), append(streams, s)
	}
	require.Eventually(t, func() bool { return steps(30) }, patience, time.Millisecond)
	end()
	for i, s := range streams {
		got, last, err := readAll(s)
		require.NoError(t, err)
		require.NoError(t, last.Err)
		cold, _ := talk(t, gateway, fmt.Sprint("cold", i), requests[i])
		require.Equal(t, cold.tokens, got)
	}
	require.Positive(t, total(t, series, "millrace_handover_tokens_total"))
	require.Zero(t, total(t, series, "millrace_recomputed_tokens_total"))
	state, err := right.KVState(t.Context(), false)
	require.NoError(t, err)
	require.Equal(t, "ok", state.Check)
}
