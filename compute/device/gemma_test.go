package device_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/compute/device"
	"github.com/millrace/millrace/compute/family/fixture"
	"github.com/millrace/millrace/compute/model"
)

// TestLayersOfSeveralShapesKeepCodesAsRefDoes: keys of other layers, inputs of layers, and streams, with weights and with keys and values
// as codes.
func TestLayersOfSeveralShapesKeepCodesAsRefDoes(t *testing.T) {
	for _, name := range []string{"gemma4", "gemma4-e", "gemma3n"} {
		for _, plan := range []string{"int8", "int4"} {
			t.Run(name+"/weights/"+plan, func(t *testing.T) {
				w, err := model.ParseWeights(plan)
				require.NoError(t, err)
				requireCodesOf(t, name, "cpu", func(p *model.Program) { require.NoError(t, p.SetWeights(w)) }, 0.002, 2*allowed)
			})
		}
		for kv, limit := range map[model.KVType]float64{model.KVInt8: 0.04, model.KVInt4: 0.12} {
			t.Run(name+"/kv/"+kv.String(), func(t *testing.T) {
				requireCodesOf(t, name, "cpu", func(p *model.Program) { p.KV = kv }, 0.001, limit)
			})
		}
	}
}

// TestKiviIsRefusedWhereLayersHaveWindowsOrKeysOfOthers, by what was found.
func TestKiviIsRefusedWhereLayersHaveWindowsOrKeysOfOthers(t *testing.T) {
	for _, backend := range []string{"ref", "cpu"} {
		m, err := fixture.Open("../../testdata/models/gemma4-e")
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, m.Weights.Close()) })
		d, err := device.Open(options(t, backend, ""))
		require.NoError(t, err)
		t.Cleanup(d.Close)
		m.Program.KV, m.Program.OneGroup = model.KVKivi, true
		_, err = d.Load(m.Program, m.Weights, device.Limits{MaxRows: 4, MaxOutputs: 1})
		require.ErrorIs(t, err, device.ErrUnsupported)
		require.ErrorContains(t, err, "a KV cache of kivi: found")
	}
}
