package node

import (
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/cluster"
	"github.com/millrace/millrace/e2e/natstest"
)

// newRoutingNodes is newTestNodes with JetStream: gateways know what workers have. A worker is hardly silent on a busy machine, so
// no sequence is computed twice, and a lost message costs less than patience.
func newRoutingNodes(t *testing.T) *testNodes {
	return &testNodes{t: t, url: natstest.Start(t, &server.Options{JetStream: true}).ClientURL(), dead: patience / 4}
}

// series waits until a series of a node has a value.
func (n *node) series(t *testing.T, name string, want float64) {
	t.Helper()
	require.Eventually(t, func() bool { return n.value(t, name) == want }, patience, time.Millisecond, name)
}

// value is that of a counter or gauge.
func (n *node) value(t *testing.T, name string) float64 {
	t.Helper()
	families, err := n.cfg.Metrics.Registry().Gather()
	require.NoError(t, err)
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()[0].GetCounter().GetValue() + f.GetMetric()[0].GetGauge().GetValue() // one of them is zero
		}
	}
	require.Fail(t, "no series "+name)
	return 0
}

// follows waits until a gateway has the snapshots of its workers.
func (n *node) follows(t *testing.T, workers int) {
	t.Helper()
	n.series(t, "millrace_prefix_index_snapshots_total", float64(workers))
}

// knows waits until a gateway knows as many slabs as the workers have.
func (n *node) knows(t *testing.T, slabs int) {
	t.Helper()
	n.series(t, "millrace_prefix_index_blocks", float64(slabs))
}

func TestAConversationReturnsToTheWorkerThatHasIt(t *testing.T) {
	c := newRoutingNodes(t)
	gateway, _, _, compute := four(c, 4, nil)
	gateway.follows(t, len(compute))
	slabs := 0
	for i := range 4 { // by token ids: nothing but the caches says where they were
		prompt := numbered(100+400*i, 100)
		for turn := range 3 {
			r := tokensRequest(fmt.Sprint(i, turn), prompt, 30)
			r.CacheSalt = []string{"", "salt"}[i%2]
			tokens, last := answer(t, gateway.Node, r)
			if turn > 0 {
				require.Equal(t, len(prompt)-11, last.Usage.CachedTokens, "conversation %d, turn %d", i, turn)
			}
			before := (len(prompt) - 11) / testSlabTokens
			if turn == 0 {
				before = 0
			}
			slabs += (len(prompt)+29)/testSlabTokens - before
			gateway.knows(t, slabs)
			prompt = append(append(prompt, tokens...), numbered(3500+100*i+20*turn, 10)...)
		}
	}
	served := 0
	for _, n := range compute {
		if n.device.computed() > 100 {
			served++
		}
	}
	require.Equal(t, 4, served, "first turns go where the least is")
}

func TestAGatewayThatIsNewTakesSnapshots(t *testing.T) {
	c := newRoutingNodes(t)
	gateway, _, _, compute := four(c, 2, nil)
	gateway.follows(t, len(compute))
	prompt := numbered(100, 100)
	answer(t, gateway.Node, tokensRequest("first", prompt, 2))
	gateway.knows(t, 6)
	other := c.start(nil, cluster.Gateway)
	other.sees(t, 5)
	other.knows(t, 6)
	_, last := answer(t, other.Node, tokensRequest("second", append(prompt, 7, 8, 9), 2))
	require.Equal(t, 100, last.Usage.CachedTokens)
}

func TestAWorkerThatDiesLosesItsEntries(t *testing.T) {
	c := newRoutingNodes(t)
	gateway, _, _, compute := four(c, 3, nil)
	gateway.follows(t, len(compute))
	var had []*node // more than one if a message was lost
	prompt := numbered(100, 100)
	before := map[*node]int{}
	for _, n := range compute {
		before[n] = n.device.computed()
	}
	answer(t, gateway.Node, tokensRequest("first", prompt, 2))
	for _, n := range compute {
		if n.device.computed() > before[n] {
			had = append(had, n)
		}
	}
	gateway.knows(t, 6*len(had))
	for _, n := range had {
		n.kill()
	}
	gateway.knows(t, 0)
	_, last := answer(t, gateway.Node, tokensRequest("second", prompt, 2))
	require.Zero(t, last.Usage.CachedTokens)
}

func TestEqualPromptsAtOnceGoToOneWorker(t *testing.T) {
	c := newRoutingNodes(t)
	gateway, _, _, compute := four(c, 4, gated)
	for _, n := range compute {
		t.Cleanup(n.device.open1) // before the node closes
	}
	gateway.follows(t, len(compute))
	prompt := numbered(100, 300)
	r := tokensRequest("choices", prompt, 3)
	r.N = 3
	var streams []api.Stream
	for i := range 3 {
		if i > 0 {
			r = tokensRequest(fmt.Sprint(i), prompt, 3)
		}
		s, err := gateway.Submit(t.Context(), r)
		require.NoError(t, err)
		streams = append(streams, s)
	}
	require.Eventually(t, func() bool {
		placed := 0
		for _, n := range compute {
			placed += gateway.gateway.Sequences(n.name)
		}
		return placed == 5
	}, patience, time.Millisecond)
	for _, n := range compute {
		n.device.open1()
	}
	for _, s := range streams {
		_, last, err := read(s)
		require.NoError(t, err)
		require.NoError(t, last.Err)
	}
	computed := 0
	for _, n := range compute {
		computed += n.device.computed()
	}
	require.Equal(t, 300+4+5*2, computed, "one prompt, its last token again for the others, and the answers")
}

func TestNothingIsFollowedWithOneWorkerOrWithoutJetStream(t *testing.T) {
	for name, workers := range map[string]int{"one worker": 1, "no JetStream": 2} {
		t.Run(name, func(t *testing.T) {
			c := newTestNodes(t)
			if workers == 1 {
				c = newRoutingNodes(t)
			}
			gateway, _, _, _ := four(c, workers, nil)
			prompt := numbered(100, 100)
			for i := range 4 {
				answer(t, gateway.Node, tokensRequest(fmt.Sprint(i), prompt, 2))
			}
			gateway.follows(t, 0)
			require.Zero(t, gateway.value(t, "millrace_placed_prompt_blocks_total"))
		})
	}
}
