package gateway

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/compute/sample"
)

// logged is a request of some choices with log probabilities of the answer, and of the prompt (-1: none).
func logged(n, maxTokens, answer, prompt int) *api.Request {
	r := apiRequest(n, maxTokens)
	if r.TopLogprobs = answer; prompt >= 0 {
		r.PromptLogprobs = &prompt
	}
	return r
}

func TestTheLogProbabilitiesOfARequestAreBounded(t *testing.T) {
	lim := modelLimits{context: 1 << 20, pool: 1 << 20, vocab: 10}
	for name, c := range map[string]struct {
		r      *api.Request
		prompt int
		limit  int    // of the answer
		err    string // "": none
	}{
		"echo with many alternatives and choices": {logged(128, 1, 20, 20), 1000, 0,
			"128 choices with 21 log probabilities for each of 1000 tokens of the prompt and 21 for each of 1 tokens of the answer are 2690688, expected at most 1048576"},
		"of the prompt alone":                  {logged(64, 1, -1, 0), 20_000, 0, "are 1280000, expected at most 1048576"},
		"long answers":                         {logged(128, 2000, 20, -1), 10, 0, "21 for each of 2000 tokens of the answer are 5376000"},
		"one choice of a long prompt":          {logged(1, 10, 5, 5), 100_000, 10, ""},
		"the answer is as long as they may be": {logged(8, 0, 5, -1), 10, 1 << 20 / 48, ""},
		"after those of the prompt":            {logged(2, 0, 0, 3), 1000, (1<<20 - 8000) / 2, ""},
		"none":                                 {logged(128, 0, -1, -1), 10, 1<<20 - 10, ""},
		"of the prompt, with any answer":       {logged(1, 0, -1, 0), 10, 1<<20 - 10, ""},
	} {
		t.Run(name, func(t *testing.T) {
			q := newRequest(c.r, lim)
			err := q.tokenized(prompt{ids: make([]int32, c.prompt)})
			if c.err != "" {
				require.ErrorContains(t, err, c.err)
				require.Equal(t, api.CodeInvalid, func() *api.Error {
					target := &api.Error{}
					_ = errors.As(err, &target)
					return target
				}().Code)
				return
			}
			require.NoError(t, err)
			require.Equal(t, c.limit, q.limit)
		})
	}
}

// TestRequestsShareTheRoomForLogProbabilities: one tenant's leave room for another's, and those that end give theirs back.
func TestRequestsShareTheRoomForLogProbabilities(t *testing.T) {
	e := newAdmissionTest(t, 10_000, 64, 0)
	enter := func(id, tenant string, r *api.Request) *api.Error {
		r.ID, r.Tenant = id, tenant
		return e.enter(r, e.now)
	}
	heavy := func() *api.Request { return logged(100, 480, 20, -1) } // 1,008,000
	require.Nil(t, enter("a", "evil", heavy()))
	require.Nil(t, enter("b", "evil", heavy()))
	err := enter("c", "evil", heavy())
	require.NotNil(t, err)
	require.Equal(t, reasonQueueFull, err.Reason)
	require.Equal(t, api.CodeOverloaded, err.Code)
	require.Contains(t, err.Message,
		"the requests in hand have about 2017280 log probabilities, at most 2097152, or a tenant's share of them, and the request needs about 1008640")
	require.Nil(t, enter("d", "evil", apiRequest(1, 10)), "without log probabilities")
	require.Nil(t, enter("e", "acme", heavy()), "another tenant's share")
	idle := logged(100, 480, 20, -1)
	idle.Priority = api.PriorityIdle
	require.NotNil(t, enter("f", "evil", idle))
	e.leave((&api.Request{ID: "a", Tenant: "evil"}).Key())
	e.leave((&api.Request{ID: "b", Tenant: "evil"}).Key())
	require.Nil(t, enter("c", "evil", heavy()))
	text := logged(1, 1, -1, 5)
	text.Prompt = string(make([]byte, 4000*1024))
	require.NotNil(t, enter("g", "evil", text), "the tokens of a text are estimated")
	for id, tenant := range map[string]string{"c": "evil", "d": "evil", "e": "acme"} {
		e.leave((&api.Request{ID: id, Tenant: tenant}).Key())
	}
	require.Zero(t, e.scores.Inside())
}

// TestABeamSearchLeavesRowsAndMemoryToOtherTenants, where there may be some: it needs all of its own in each step.
func TestABeamSearchLeavesRowsAndMemoryToOtherTenants(t *testing.T) {
	m := &model{capacity: 64}
	search := func(width int, tenant string) *api.Request {
		r := apiRequest(1, 0)
		r.Beams, r.Tenant = &sample.BeamParams{Width: width}, tenant
		return r
	}
	require.NoError(t, checkBeams(search(64, ""), m))
	require.NoError(t, checkBeams(search(48, "evil"), m))
	require.ErrorContains(t, checkBeams(search(49, "evil"), m),
		"num_beams is 49, expected at most 48: the others of the 64 rows of a step (max_batch_size) are kept for other tenants")
	accepted := search(64, "evil")
	accepted.Takeover = &api.Progress{}
	require.NoError(t, checkBeams(accepted, m), "another gateway accepted it")
	lim := modelLimits{context: 5000, pool: 1600, vocab: 10, slabTokens: 16}
	for tenant, limit := range map[string]int{"": 48, "evil": 32} {
		r := newRequest(search(32, tenant), lim)
		require.NoError(t, r.tokenized(prompt{ids: make([]int32, 32)}))
		require.Equal(t, limit, r.limit, tenant)
	}
}
