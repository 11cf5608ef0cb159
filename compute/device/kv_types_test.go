package device_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/compute/device"
	"github.com/millrace/millrace/compute/model"
	"github.com/millrace/millrace/compute/model/fixture"
)

// TestKVCachesOfCodesAreThoseOfRef runs a fixture with keys and values as codes: on every
// instruction set its logits are near those of ref, which keeps what the codes stand for,
// are not those of floats, and do not depend on how the tokens are cut into steps.
func TestKVCachesOfCodesAreThoseOfRef(t *testing.T) {
	for kv, allowed := range map[model.KVType]float64{model.KVInt8: 0.02, model.KVInt4: 0.06} {
		t.Run(kv.String(), func(t *testing.T) {
			m, err := fixture.Open("../../testdata/models/llama-gqa")
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, m.Weights.Close()) })
			tokens := m.Expected.Tokens()
			plain := open(t, "ref", "", m.Program, m.Weights, len(tokens)).run(t, tokens)
			m.Program.KV = kv
			ref := open(t, "ref", "", m.Program, m.Weights, len(tokens)).run(t, tokens)
			effect := distance(plain, ref)
			t.Logf("codes move the logits by %.2g of their size", effect)
			require.Greater(t, effect, 0.001, "ref took no notice of the cache's type")
			for _, isa := range isas(t, "cpu") {
				s := open(t, "cpu", isa, m.Program, m.Weights, len(tokens))
				whole := s.run(t, tokens)
				off := distance(ref, whole)
				t.Logf("%s is %.2g away from ref", isa, off)
				require.LessOrEqual(t, off, allowed, isa)
				s.restart()
				for i := range tokens {
					requireSameBits(t, whole[i], s.run(t, tokens[i:i+1])[0], i)
				}
			}
		})
	}
}

// TestSlabsAreAsLargeAsTheProgramSays: admission and the device count the same bytes, up
// to the pages of a slab.
func TestSlabsAreAsLargeAsTheProgramSays(t *testing.T) {
	m, err := fixture.Open("../../testdata/models/llama-gqa")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, m.Weights.Close()) })
	d, err := device.Open(options(t, "cpu", ""))
	require.NoError(t, err)
	t.Cleanup(d.Close)
	for _, kv := range []model.KVType{model.KVAuto, model.KVBF16, model.KVInt8, model.KVInt4} {
		m.Program.KV = kv
		e, err := d.Load(m.Program, m.Weights, device.Limits{MaxRows: 1, MaxOutputs: 1})
		require.NoError(t, err)
		info := e.Info()
		e.Close()
		bytes := uint64(m.Program.KVBytesPerToken(model.BF16Sizes())) * device.SlabTokens
		require.GreaterOrEqual(t, info.SlabBytes, bytes)
		require.Less(t, info.SlabBytes, bytes+65536)
		if kv != model.KVAuto {
			require.Equal(t, kv.String(), info.KVType)
		}
	}
}

func TestKVTypesThatABackendLacksAreRefused(t *testing.T) {
	for _, tt := range []struct {
		backend string
		kv      model.KVType
		want    string
	}{
		{"cpu", model.KVF16, "a KV cache of f16: this backend keeps keys and values as bf16, int8 or int4"},
		{"ref", model.KVBF16, "a KV cache of bf16: this backend keeps keys and values as f32, int8 or int4"},
		{"sycl", model.KVInt8, "a KV cache of int8: this backend keeps keys and values as "},
	} {
		if tt.backend == "sycl" && len(backends(t)) < 3 {
			continue // backends says so
		}
		m, err := fixture.Open("../../testdata/models/llama-gqa")
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, m.Weights.Close()) })
		m.Program.KV = tt.kv
		d, err := device.Open(options(t, tt.backend, ""))
		require.NoError(t, err)
		t.Cleanup(d.Close)
		_, err = d.Load(m.Program, m.Weights, device.Limits{MaxRows: 1, MaxOutputs: 1})
		require.ErrorIs(t, err, device.ErrUnsupported)
		require.ErrorContains(t, err, tt.want)
	}
}
