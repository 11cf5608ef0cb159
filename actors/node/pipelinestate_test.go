package node

import (
	"encoding/json"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/cluster"
)

func TestTheStateOfThePipelineHasStepsTimelinesAndNodes(t *testing.T) {
	d := newTestDevice(64)
	d.gate = make(chan struct{})
	p := start(t, testConfig(t, d))
	var open bool
	release := func() {
		if !open {
			open = true
			close(d.gate)
		}
	}
	t.Cleanup(release)
	r := tokensRequest("a", make([]int32, 70), 20) // prompt rows of a step: 64
	r.Tenant = "acme"
	stream, err := p.Submit(t.Context(), r)
	require.NoError(t, err)
	for range 3 { // two of the prompt, one of the answer; the fourth waits
		d.gate <- struct{}{}
	}
	var s *PipelineState
	require.Eventually(t, func() bool {
		s = p.PipelineState()
		return len(s.Steps) == 3 && len(s.Requests) == 1 && s.Requests[0].Generated == 2
	}, patience, time.Millisecond)

	rows := [][3]int{}
	for i, step := range s.Steps {
		require.EqualValues(t, i+1, step.Number)
		require.Positive(t, step.Took)
		require.Positive(t, step.Sampling)
		require.Less(t, step.Sampling, step.Took)
		rows = append(rows, [3]int{step.Sequences, step.DecodeRows, step.PromptRows})
	}
	require.Equal(t, [][3]int{{1, 0, 64}, {1, 0, 6}, {1, 1, 0}}, rows)

	line := s.Requests[0]
	require.Equal(t, []any{"a", "acme", p.name, 70, 0, ""},
		[]any{line.ID, line.Tenant, line.Worker, line.PromptTokens, line.Moves, line.Finish})
	requireOrder(t, line.Arrival, line.Tokenized, line.Begun, line.FirstToken)
	require.True(t, line.End.IsZero())
	kv, err := p.KVState(t.Context(), true)
	require.NoError(t, err)
	require.Len(t, kv.Regions, 1)
	require.Equal(t, []string{strconv.FormatUint(uint64(kv.Regions[0].Seq), 10)}, line.Sequences, "as the state of the KV cache has it")

	require.Len(t, s.Nodes, 1)
	n := s.Nodes[0]
	require.Equal(t, []any{p.name, cluster.Roles(), 1, 1, 64}, []any{n.Node, n.Roles, n.Requests, n.Worker.Running, n.Worker.Slabs})

	release()
	_, _, err = read(stream)
	require.NoError(t, err)
	line = p.PipelineState().Requests[0]
	require.Equal(t, []any{"length", 20}, []any{line.Finish, line.Generated})
	requireOrder(t, line.FirstToken, line.End)
}

// requireOrder requires times that have come, each not before the one before it.
func requireOrder(t *testing.T, times ...time.Time) {
	t.Helper()
	for i, at := range times {
		require.False(t, at.IsZero(), i)
		require.False(t, i > 0 && at.Before(times[i-1]), i)
	}
}

func TestTheNodesOfThePipelineHaveNoHostAndNoAddress(t *testing.T) {
	m := cluster.Member{Node: "n1", Host: "secret-host", Process: 4711, HTTP: "10.1.2.3:80", Roles: []cluster.Role{cluster.Compute},
		Worker: &cluster.Worker{Down: "cannot open /secret/path", Gateways: map[string]int{"n2": 1}}}
	shown, err := json.Marshal(shownNode(&m))
	require.NoError(t, err)
	for _, hidden := range []string{"secret", "4711", "10.1.2.3"} {
		require.NotContains(t, string(shown), hidden)
	}
	require.Contains(t, string(shown), `"down":true`)
}

func TestATimeThatHasNotComeIsNotInATimeline(t *testing.T) {
	shown, err := json.Marshal(Timeline{ID: "a", Arrival: time.Unix(1, 0).UTC()})
	require.NoError(t, err)
	require.NotContains(t, string(shown), "0001-01-01")
	require.Contains(t, string(shown), `"arrival":"1970-01-01T00:00:01Z"`)
}
