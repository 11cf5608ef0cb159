package roofline

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/compute/model"
	"github.com/millrace/millrace/compute/sim"
)

// thousand has 1e12 bytes/s and 1e14 operations/s: 100 for a byte.
func thousand() sim.Peak { return sim.Peak{ID: "test", GBps: 1000, TFLOPS: 100} }

func program(t *testing.T, name string) *model.Program {
	t.Helper()
	p, err := PaperModel{Name: name}.Program()
	require.NoError(t, err)
	return p
}

// Llama-2-7B: hidden 4096, 32 layers, 32 heads of 128, MLP 11008, vocabulary 32000.
func TestTheBoundOfLlama2By7BByHand(t *testing.T) {
	b := NewBound(program(t, "llama-2-7b"), Workload{Prompt: 1024, Gen: 2, Batch: 1, Beams: 1, Tiles: 1}, thousand(), model.BF16Sizes())
	bytes, flops := 1e-12, 1e-14 // seconds for one of them

	// A decode step after 1024 tokens is bound by its bytes, in every op.
	decode := []float64{
		/* embed       */ 4096*2 + 4096*4,
		/* attn.norm   */ 32 * (4096*4 + 4096*(4+2)),
		/* attn.qkv    */ 32 * (3*4096*4096*2 + 4096*2 + 3*4096*4),
		/* rope_store  */ 32 * (2*4096*2 + (2+2)*4096*4),
		/* attention   */ 32 * (2*1025*4096*2 + 4096*(4+2)),
		/* attn.out    */ 32 * (4096*4096*2 + 4096*(2+4+4)),
		/* mlp.norm    */ 32 * (4096*4 + 4096*(4+2)),
		/* mlp.gate_up */ 32 * (2*11008*4096*2 + 4096*2 + 11008*2),
		/* mlp.down    */ 32 * (4096*11008*2 + 11008*2 + 4096*(4+4)),
		/* select_rows */ 2*4096*4 + 2*4096*2,
		/* final.norm  */ 4096*4 + 4096*(4+2),
		/* logits      */ 32000*4096*2 + 4096*2 + 32000*4,
	}
	// The prefill of 1024 tokens is bound by the products of linear ops and
	// attention, all else by bytes. A head's key takes 4 x 128 flops and an exponential. The last
	// layer continues with one row after its attention.
	prefill := []float64{
		1024 * (4096*2 + 4096*4) * bytes,
		32 * (4096*4 + 1024*4096*(4+2)) * bytes,
		32 * 2 * 3 * 4096 * 4096 * 1024 * flops,
		32 * 1024 * (2*4096*2 + (2+2)*4096*4) * bytes,
		32 * (1024 * 1025 / 2) * 32 * (4*128 + 1) * flops,
		31*1024*(2*4096*4096+4096)*flops + decode[5]/32*bytes,
		31*(4096*4+1024*4096*(4+2))*bytes + decode[6]/32*bytes,
		31*2*2*11008*4096*1024*flops + decode[7]/32*bytes,
		31*1024*(2*4096*11008+4096)*flops + decode[8]/32*bytes,
		decode[9] * bytes, decode[10] * bytes, decode[11] * bytes,
	}
	var ttft, tpot float64
	for i := range decode {
		require.InEpsilon(t, prefill[i], b.Prefill[i].Seconds, 1e-12, b.Prefill[i].Name)
		require.InEpsilon(t, decode[i]*bytes, b.Decode[i].Seconds, 1e-12, b.Decode[i].Name)
		require.Equal(t, "memory", b.Decode[i].Limit)
		ttft, tpot = ttft+prefill[i], tpot+decode[i]*bytes
	}
	require.Len(t, b.Prefill, len(prefill))
	require.Equal(t, "products", b.Prefill[2].Limit)
	require.InEpsilon(t, ttft, b.TTFT, 1e-12)
	require.InEpsilon(t, tpot, b.TPOT, 1e-12)
	require.Equal(t, 3+32*8+2, Total(b.Prefill).Ops)
}

func TestTheBoundScalesWithTheDevice(t *testing.T) {
	p := program(t, "gpt-j-6b")
	w := Workload{Prompt: 100, Gen: 5, Batch: 3, Beams: 2, Tiles: 1}
	d, twice := thousand(), thousand()
	twice.GBps *= 2
	twice.TFLOPS *= 2
	slow, fast := NewBound(p, w, d, model.BF16Sizes()), NewBound(p, w, twice, model.BF16Sizes())
	require.InEpsilon(t, slow.TTFT, 2*fast.TTFT, 1e-12)
	require.InEpsilon(t, slow.TPOT, 2*fast.TPOT, 1e-12)
}

// sum is the cost of the ops of a kind.
func sum(p *model.Program, s Step, kind model.OpKind) (c model.Cost) {
	for i, cost := range Costs(p, s, model.BF16Sizes()) {
		if p.Ops[i].Kind == kind {
			c = c.Plus(cost)
		}
	}
	return c
}

func TestABatchReadsTheWeightsOnceAndEachCacheOnce(t *testing.T) {
	p := program(t, "opt-30b")
	one, seven := Step{Batch: 1, Beams: 1, Rows: 1, Past: 50, Tiles: 1}, Step{Batch: 7, Beams: 1, Rows: 1, Past: 50, Tiles: 1}
	require.Equal(t, sum(p, one, model.OpLinear).WeightBytes, sum(p, seven, model.OpLinear).WeightBytes)
	require.Equal(t, 7*sum(p, one, model.OpLinear).Flops, sum(p, seven, model.OpLinear).Flops)
	require.Equal(t, sum(p, one, model.OpAttention).Times(7), sum(p, seven, model.OpAttention))
}

func TestBeamsShareThePromptsCache(t *testing.T) {
	p := program(t, "llama-2-13b")
	token := p.KVBytesPerToken(model.BF16Sizes())
	s := Workload{Prompt: 1024, Batch: 3, Beams: 4, Tiles: 1}.Decode(20)
	require.Equal(t, 3*(1024+4*21)*token, sum(p, s, model.OpAttention).KVBytes)
	one := Step{Batch: 1, Beams: 1, Rows: 1, Past: 1024 + 20, Tiles: 1}
	require.Equal(t, 12*sum(p, one, model.OpAttention).Flops, sum(p, s, model.OpAttention).Flops)

	window := &model.Op{Kind: model.OpAttention, Window: 30} // 9 of the prompt's, 21 of each response
	require.EqualValues(t, 3*(9+4*21)*10, s.attention(window, model.Cost{KVBytes: 30 * 10}).KVBytes)
}

func TestTilesDivideProductsAndCacheButNotTheNorms(t *testing.T) {
	p := program(t, "bloom-176b")
	one, eight := Step{Batch: 1, Beams: 1, Rows: 16, Tiles: 1}, Step{Batch: 1, Beams: 1, Rows: 16, Tiles: 8}
	for _, kind := range []model.OpKind{model.OpLinear, model.OpAttention, model.OpRopeStore} {
		require.Equal(t, sum(p, one, kind).Over(8), sum(p, eight, kind), kind)
	}
	require.Equal(t, sum(p, one, model.OpNorm), sum(p, eight, model.OpNorm))
}

// Each of two tiles has half of the products and, for each layer, two sums that both read.
func TestABoundOfTilesCountsTheirExchange(t *testing.T) {
	p := program(t, "llama-2-7b")
	work := Workload{Prompt: 1024, Gen: 2, Batch: 1, Beams: 1, Tiles: 1}
	one := NewBound(p, work, thousand(), model.BF16Sizes())
	work.Tiles = 2
	two := NewBound(p, work, thousand(), model.BF16Sizes())
	require.True(t, two.Exchange)
	require.InEpsilon(t, kindOf(one.Prefill, model.OpLinear).Flops/2, kindOf(two.Prefill, model.OpLinear).Flops, 1e-3)
	sums := kindOf(two.Decode, model.OpAllReduce)
	require.Equal(t, 64, sums.Ops)
	require.EqualValues(t, 64*4096*4*(2+1+1), sums.Bytes, "two are read, and the residual is read and written")
	require.Greater(t, two.TPOT, one.TPOT/2)
	require.Less(t, two.TPOT, one.TPOT*0.6)
}

func kindOf(lines []OpGroup, kind model.OpKind) OpGroup {
	var of []OpGroup
	for _, l := range lines {
		if l.Kind == kind.String() {
			of = append(of, l)
		}
	}
	return Total(of)
}

func TestThePapersModelsHaveTheirPublishedSize(t *testing.T) {
	for name, billions := range map[string]float64{ // values of all tensors, as published
		"gpt-j-6b": 6.05, "llama-2-7b": 6.74, "llama-2-13b": 13.02, "opt-30b": 29.97, "bloom-176b": 176.25,
	} {
		values := program(t, name).WeightBytes(model.BF16Sizes()) / 2
		require.InEpsilon(t, billions*1e9, values, 2e-3, name)
	}
}

// A prefill of 1024 rows is bound by products, whose peak for 8-bit weights is the
// device's for integers, where it has one; attention keeps that of 16 bits.
func TestQuantizedOpsAreBoundByThePeakOfIntegers(t *testing.T) {
	p := program(t, "llama-2-7b")
	work := Workload{Prompt: 1024, Gen: 2, Batch: 1, Beams: 1, Tiles: 1}
	lines := func(d sim.Peak) map[string]OpGroup {
		byName := map[string]OpGroup{}
		for _, l := range NewBound(p, work, d, model.BF16Sizes()).Prefill {
			byName[l.Name] = l
		}
		return byName
	}
	d := thousand()
	d.TOPS = 3 * d.TFLOPS
	bits16 := lines(d)
	weights, err := model.ParseWeights("int8")
	require.NoError(t, err)
	require.NoError(t, p.SetWeights(weights))
	unknown := lines(thousand())
	quantized := lines(d)

	// The one row of mlp.gate_up in the last layer, bound by its bytes, adds less than 1%.
	const flops = 31 * 2 * 2 * 11008 * 4096 * 1024
	require.InEpsilon(t, flops/1e14, bits16["mlp.gate_up"].Seconds, 1e-2)
	require.InEpsilon(t, flops/1e14, unknown["mlp.gate_up"].Seconds, 1e-2)
	require.InEpsilon(t, flops/3e14, quantized["mlp.gate_up"].Seconds, 1e-2)
	require.Equal(t, "products", quantized["mlp.gate_up"].Limit)
	require.InDelta(t, bits16["attn.attention"].Seconds, quantized["attn.attention"].Seconds, 0)
}

func TestThePapersBounds(t *testing.T) {
	p, err := NewPaper()
	require.NoError(t, err)
	require.Len(t, p.Latency, 10)
	require.Len(t, p.Prompts, 8)
	for _, c := range append(p.Latency, p.Prompts...) {
		require.Less(t, c.PeakTPOT, c.EffectiveTPOT, c.Model)
		require.LessOrEqual(t, c.PeakTTFT, c.EffectiveTTFT, c.Model)
		// A decode step reads every weight at least.
		require.Greater(t, c.EffectiveTPOT, float64(c.WeightBytes)/1e12, c.Model)
	}
	// 2 x 16 bits x bandwidth / peak is 419 rows without activations and KV cache.
	require.Greater(t, p.EffectiveBend, 419)
	require.Less(t, p.PeakBend, p.EffectiveBend)
}
