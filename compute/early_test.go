package compute_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/compute/device"
	"github.com/millrace/millrace/compute/model"
)

// earlyTokens are more than two slabs.
var earlyTokens = []int32{3, 80, 41, 7, 19, 66, 5, 90, 14, 33, 58, 2, 71, 9, 27, 44, 63, 8, 12, 99, 31, 50, 6, 77, 20, 38, 85, 11, 47, 1,
	29, 60, 4, 52, 18}

// inRegion returns a region of a model with slabs for the tokens.
func inRegion(t *testing.T, m *compute.Model) compute.Region {
	t.Helper()
	r, err := m.NewRegion(48)
	require.NoError(t, err)
	t.Cleanup(r.Close)
	var slabs []int32
	for i := range 3 * m.KV().Counts().Count() {
		slabs = append(slabs, int32(3*m.KV().Counts().Count()-1-i))
	}
	require.NoError(t, r.Append(slabs))
	return r
}

// step runs tokens one at a time from a position on and returns the logits of the last one.
func step(t *testing.T, run func([]compute.Rows) (compute.Logits, error), r compute.Region, tokens []int32, position int) (row []float32) {
	t.Helper()
	for i := range tokens {
		l, err := run([]compute.Rows{{Region: r, Tokens: tokens[i : i+1], Position: position + i, Output: true}})
		require.NoError(t, err)
		row = append([]float32(nil), l.Row(0)...)
	}
	return row
}

// TestTheFirstLayersReadTheKeysOfTheWholeModel: after a prompt that Run has computed, Draft gives the bits that the first layers alone give
// for all tokens, and Run then gives the bits that it gives without draft tokens, at the positions of rejected ones too.
func TestTheFirstLayersReadTheKeysOfTheWholeModel(t *testing.T) {
	const prompt, end = 30, 35
	for _, c := range []struct {
		dir, backend string
		kv           model.KVType
	}{
		{"llama-gqa", "cpu", model.KVAuto}, {"llama-gqa", "ref", model.KVAuto}, {"llama-gqa", "cpu", model.KVInt8},
		{"llama-gqa", "cpu", model.KVInt4}, {"gptj", "cpu", model.KVAuto}, {"opt-postnorm", "cpu", model.KVAuto},
		{"bloom-6-heads", "cpu", model.KVAuto}, {"qwen3-moe", "cpu", model.KVAuto}, {"deepseek-v2", "cpu", model.KVAuto},
		{"gemma", "cpu", model.KVAuto},
	} {
		t.Run(c.dir+"/"+c.backend+"/"+c.kv.String(), func(t *testing.T) {
			o := compute.Options{Dir: "../testdata/models/" + c.dir, Device: device.Options{Backend: c.backend, Threads: 1}, KV: c.kv,
				KVMemory: 1 << 20, NoPacked: true}
			plain := open(t, o)
			require.Nil(t, plain.Drafter())
			o.DraftLayers, o.DraftRows = 1, 4
			m := open(t, o)
			alone := step(t, m.Drafter().Draft, inRegion(t, m), earlyTokens[:end], 0)

			r, other := inRegion(t, m), inRegion(t, plain)
			_, err := m.Run([]compute.Rows{{Region: r, Tokens: earlyTokens[:prompt], Output: true}})
			require.NoError(t, err)
			require.Equal(t, alone, step(t, m.Drafter().Draft, r, earlyTokens[prompt:end], prompt))
			for _, tokens := range [][]int32{{50, 51, 52}, earlyTokens[prompt:end]} { // others than the draft tokens, and they themselves
				_, err := plain.Run([]compute.Rows{{Region: other, Tokens: earlyTokens[:prompt], Output: true}})
				require.NoError(t, err)
				want := step(t, plain.Run, other, tokens, prompt)
				require.NotEqual(t, want, alone)
				require.Equal(t, want, step(t, m.Run, r, tokens, prompt))
			}
		})
	}
}

// TestTheFirstLayersAreThereAfterAReload, and what they cannot do is refused.
func TestTheFirstLayersAreThereAfterAReload(t *testing.T) {
	o := compute.Options{Dir: "../testdata/models/llama-gqa", KVMemory: 1 << 20, NoPacked: true, DraftLayers: 1, DraftRows: 4}
	m := open(t, o)
	require.Equal(t, m.Engine().Info().MaxSlabs/3*2, m.Mappings(), "a slab of the first layers is mapped twice")
	require.Equal(t, m.Slabs(), m.CommittedSlabs())
	r, err := m.NewRegion(48)
	require.NoError(t, err)
	require.NoError(t, r.Append([]int32{0, 1, 2, 3, 4, 5}))
	want := step(t, m.Draft, r, earlyTokens[:20], 0)
	n, err := r.Unmap(3)
	require.NoError(t, err)
	require.Equal(t, 2, n, "those of a place")
	_, err = m.Draft([]compute.Rows{{Region: r, Tokens: earlyTokens[:1], Position: 33}})
	require.ErrorContains(t, err, "is not mapped")
	r.Close()
	require.NoError(t, m.Reload())
	require.Equal(t, want, step(t, m.Draft, inRegion(t, m), earlyTokens[:20], 0))

	o.Dir, o.MaxRows, o.MaxOutputs = "../testdata/models/lfm2", 8, 1
	_, err = compute.Open(o)
	require.ErrorIs(t, err, model.ErrEarly)
}
