package e2e_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/cluster"
	"github.com/millrace/millrace/compute/sample"
	"github.com/millrace/millrace/e2e/natstest"
)

// TestPrefillAndDecodeWorkersGiveTheTokensOfAComputeWorker compares what sequences give that begin at one worker and
// continue at another with the same requests at a worker that does both.
func TestPrefillAndDecodeWorkersGiveTheTokensOfAComputeWorker(t *testing.T) {
	for _, kv := range kvTypes() {
		t.Run(kv.String(), func(t *testing.T) {
			url, whole := natstest.Start(t, nil).ClientURL(), natstest.Start(t, nil).ClientURL()
			gateway, _, _ := member(t, url, kv, cluster.Gateway, cluster.Tokenize, cluster.Detok)
			prefill, begun, _ := member(t, url, kv, cluster.Prefill)
			decode, moved, _ := member(t, url, kv, cluster.Decode)
			one, _, _ := member(t, whole, kv, cluster.Roles()...)
			require.Eventually(t, func() bool { return gateway.Ready() == nil && one.Ready() == nil }, patience, time.Millisecond)
			rng := rand.New(rand.NewPCG(6, uint64(len(kv.String()))))
			for n := 0; total(t, moved, "millrace_handover_tokens_total") == 0 && n < 1000; n++ { // until the gateway knows both
				talk(t, gateway, fmt.Sprint("first", n), api.Request{
					Model: "tiny-chat", N: 1, PromptTokens: promptOf(rng, 50), MaxTokens: 200, TopLogprobs: -1, Arrival: time.Now(),
					IgnoreEOS: true,
				})
			}
			var requests []api.Request
			var streams []api.Stream
			prompts := 0
			for i := range 6 {
				q := api.Request{
					ID: fmt.Sprint(i), Tenant: "a", Model: "tiny-chat", N: 1, PromptTokens: promptOf(rng, 200), MaxTokens: 500,
					TopLogprobs: -1, Arrival: time.Now(), IgnoreEOS: true,
				}
				if i%2 == 1 {
					q.Sampling = sample.Params{Temperature: 1.1, TopP: 0.9, Seed: uint64(i)}
				}
				s, err := gateway.Submit(t.Context(), &q)
				require.NoError(t, err)
				prompts += len(q.PromptTokens)
				requests, streams = append(requests, q), append(streams, s)
			}
			for i, s := range streams {
				got, last, err := readAll(s)
				require.NoError(t, err)
				require.NoError(t, last.Err)
				want, _ := talk(t, one, fmt.Sprint("one", i), requests[i])
				require.Equal(t, want.tokens, got)
			}
			require.GreaterOrEqual(t, total(t, moved, "millrace_handover_tokens_total"), float64(prompts), "all moved")
			require.Zero(t, total(t, moved, "millrace_recomputed_tokens_total")+total(t, begun, "millrace_recomputed_tokens_total"))
			require.Positive(t, min(prefill.Member().Worker.Steps, decode.Member().Worker.Steps))
		})
	}
}
