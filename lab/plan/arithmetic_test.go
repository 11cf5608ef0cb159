package plan_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/kvmgr"
	"github.com/millrace/millrace/lab/plan"
)

// tokenBytes is equation (1) of arXiv:2401.05391: the keys and values of one token in all layers, with size bytes for each element.
func tokenBytes(layers, kvHeads, headDim, size int) uint64 {
	return 2 * uint64(layers) * uint64(kvHeads) * uint64(headDim) * uint64(size)
}

// TestTheTablesOfTheTGIArticle: Llama-7B in 16 bits on an A100, tables 2 to 5 of the article "LLM inference at scale
// with TGI". Three of its printed results do not follow from its formulas: 9.5 s for the total time, 0.12 GB for
// the KV cache after the prefill (and so 14.12 GB in use; 0.6 after decoding, and 14.6), and 67 GB for the
// KV cache of 32 requests of 3,000 + 2,000 tokens. The formulas give 9.6 s, 1.07 GB (15.07; 3.22 and 17.22) and 84 GB.
func TestTheTablesOfTheTGIArticle(t *testing.T) {
	const input, output, batch, layers, hidden, flops, bandwidth, memory = 512, 1024, 4, 32, 4096, 312e12, 1.5e12, 80e9
	model := plan.Weights{Parameters: 7e9, Bits: 16}
	token := tokenBytes(layers, 1, hidden, 2) // the heads together
	kv := func(batch, input, output int) uint64 {
		return kvmgr.StandardBytes(kvmgr.Segments{Prompt: input, Response: output, Beams: 1}, batch, token)
	}
	ms := func(seconds float64) string { return fmt.Sprintf("%.2f ms", 1e3*seconds) }
	gb := func(bytes float64) string { return fmt.Sprintf("%.2f GB", bytes/1e9) }

	products, read := model.Seconds(batch*input, flops, bandwidth)
	ttft := max(products, read)
	require.Equal(t, "91.90 ms", ms(products), "table 3, prefill: 91.9 ms")
	require.Equal(t, "9.33 ms", ms(read), "9.3 ms")
	products, read = model.Seconds(batch, flops, bandwidth)
	tpot := max(products, read)
	require.Equal(t, "0.18 ms", ms(products), "table 3, decode: 0.17 ms, cut off")
	require.Equal(t, "9.33 ms", ms(tpot), "table 4")
	require.Equal(t, "9.6 s", fmt.Sprintf("%.1f s", ttft+tpot*output), "printed: 9.5 s")

	weights := model.Bytes()
	for _, c := range []struct {
		when         string
		kv           uint64
		used, unused string
	}{
		{"before the prefill", kv(batch, 0, 0), "14.00 GB", "66.00 GB"},
		{"after the prefill; printed: 14.12 and 65.88", kv(batch, input, 0), "15.07 GB", "64.93 GB"},
		{"after decoding; printed: 14.6 and 65.4", kv(batch, input, output), "17.22 GB", "62.78 GB"},
	} {
		require.Equal(t, c.used, gb(weights+float64(c.kv)), c.when)
		require.Equal(t, c.unused, gb(memory-weights-float64(c.kv)), c.when)
	}
	require.Equal(t, "1.07 GB", gb(float64(kv(batch, input, 0))), "printed: 0.12")
	large := kv(32, 3000, 2000)
	require.Equal(t, "83.89 GB", gb(float64(large)), "printed: 67 GB, and 83.8 with the weights")
	require.Greater(t, weights+float64(large), memory, "it does not fit, as the article says")
}

// TestThePaperExample: section 3.2, GPT-J-6B with 32 requests of 4 beams, 1024 + 1024 tokens: 86 GB by equation (3),
// 63% of the 137 GB of equation (2).
func TestThePaperExample(t *testing.T) {
	token := tokenBytes(32, 32, 128, 2)
	s := kvmgr.Segments{Prompt: 1024, Response: 1024, Beams: 4}
	standard, segment := kvmgr.StandardBytes(s, 32, token), kvmgr.SegmentBytes(s, 32, 16, token)
	require.InDelta(t, 137, float64(standard)/1e9, 0.5)
	require.InDelta(t, 86, float64(segment)/1e9, 0.5)
	require.InDelta(t, 0.63, float64(segment)/float64(standard), 0.0051, "62.5%")
	require.Equal(t, segment, 32*uint64(plan.Slabs(s, kvmgr.NewSpec(16, kvmgr.Full{})))*16*token)
}

// TestAPoolHoldsTheRequestsThatTheAllocatorAdmits, one more is refused.
func TestAPoolHoldsTheRequestsThatTheAllocatorAdmits(t *testing.T) {
	for _, slabTokens := range []int{1, 16} {
		for _, sizes := range [][3]int{{1, 1, 1}, {15, 1, 1}, {15, 2, 1}, {100, 28, 1}, {15, 2, 4}, {16, 16, 2}, {33, 47, 3}} {
			s := kvmgr.Segments{Prompt: sizes[0], Response: sizes[1], Beams: sizes[2]}
			for _, pool := range []int{150, 299, 300} {
				m, err := kvmgr.New(kvmgr.Config{Slabs: pool, Spec: kvmgr.NewSpec(slabTokens, kvmgr.Full{})})
				require.NoError(t, err)
				admitted := 0
				for ; err == nil; admitted++ {
					if s.Beams == 1 {
						err = m.Reserve(kvmgr.Seq(admitted), kvmgr.Declared(s.Prompt+s.Response))
					} else {
						_, err = m.ReserveSegments(kvmgr.Seq(admitted), s, kvmgr.Prompt{})
					}
				}
				require.True(t, errors.Is(err, kvmgr.ErrNoSlabs) || errors.Is(err, kvmgr.ErrNeverFits), "%v", err)
				require.Equal(t, admitted-1, plan.Requests(pool, s, kvmgr.NewSpec(slabTokens, kvmgr.Full{})),
					"%+v in %d slabs of %d tokens", s, pool, slabTokens)
			}
		}
	}
}

func TestEquationFourAndThePrice(t *testing.T) {
	require.InDelta(t, 1024, plan.Throughput(64, 128, 8), 1e-9)
	require.InDelta(t, 1, plan.PricePerMillion(3.6, 1000), 1e-9, "3.6 per hour is 0.001 per second, for 1,000 tokens")
}
