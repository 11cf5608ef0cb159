package node

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/compute/model"
	"github.com/millrace/millrace/kvmgr"
)

// TestDraftTokensOfTheFirstLayersChangeNoToken: requests and their next turns, greedy and sampled, four beside each other and then alone,
// in a pool of two conversations, from which some move to the tier. Most draft tokens are wrong, since the weights are random. The next
// turns begin with cached keys, also those of positions that had rejected draft tokens.
func TestDraftTokensOfTheFirstLayersChangeNoToken(t *testing.T) {
	for _, kv := range []model.KVType{model.KVAuto, model.KVInt8} {
		t.Run(kv.String(), func(t *testing.T) {
			const n = 8
			answers, turns := windowed{"llama-gqa", 0, kvmgr.Counts{Full: 1}, 0}.plainAnswers(t, "cpu", kv, n)
			w := windowed{"llama-gqa", 0, kvmgr.Counts{Full: 2}, 1}
			m := w.open(t, "cpu", kv, 2*2*(modelTurns/testSlabTokens+1))
			cfg := testConfig(t, newTestDevice(0))
			modelConfig(&cfg, m, true)
			cfg.Sched.Predict = true
			cfg.KVSpill = KVDisk{Dir: t.TempDir(), Size: 4 << 20}
			p := start(t, cfg)
			briefly(t, p)
			conversation := func(i int) {
				q := modelRequest(i)
				tokens, err := modelTokens(p, q)
				if err != nil || !equal(tokens, answers[i]) {
					t.Errorf("request %d: %v; token %d differs", i, err, commonTokens(tokens, answers[i]))
				}
				tokens, err = modelTokens(p, nextTurn(q, answers[i]))
				if err != nil || !equal(tokens, turns[i]) {
					t.Errorf("next turn of %d: %v; token %d differs", i, err, commonTokens(tokens, turns[i]))
				}
			}
			var wg sync.WaitGroup
			for first := range 4 {
				wg.Go(func() {
					for i := first; i < n; i += 4 {
						conversation(i)
					}
				})
			}
			wg.Wait()
			require.Positive(t, p.sum(t, "millrace_kv_spill_restores_total"))
			conversation(0)
			q := modelRequest(0)
			next, last := answer(t, p, nextTurn(q, answers[0]))
			require.Equal(t, turns[0], next)
			require.Equal(t, len(q.PromptTokens)+modelAnswer+4, last.Usage.CachedTokens, "all but the last token of the prompt")
			drafted, accepted := p.sum(t, "millrace_draft_tokens_total"), p.sum(t, "millrace_draft_tokens_accepted_total")
			t.Logf("%v of %v draft tokens were accepted", accepted, drafted)
			require.Greater(t, accepted, 10)
			require.Greater(t, drafted, 2*accepted, "rejected ones, too")
			requireModelClean(t, p, m)
		})
	}
}

// TestBeamsBesideDraftTokensOfTheFirstLayers have the answers that they have without these.
func TestBeamsBesideDraftTokensOfTheFirstLayers(t *testing.T) {
	var answers [][]int32
	for early := range 2 {
		w := windowed{"llama-gqa", 0, kvmgr.Counts{Full: 1 + early}, early}
		m := w.open(t, "cpu", model.KVAuto, 200)
		cfg := testConfig(t, newTestDevice(0))
		modelConfig(&cfg, m, true)
		p := start(t, cfg)
		answers = append(answers, beamsBesideAnother(t, p))
		requireModelClean(t, p, m)
	}
	require.Equal(t, answers[0], answers[1])
}
