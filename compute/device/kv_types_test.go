package device_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/compute/device"
	"github.com/millrace/millrace/compute/family/fixture"
	"github.com/millrace/millrace/compute/model"
)

// TestKVCachesOfCodesAreThoseOfRef: as requireCodesOfRef says, with keys and values as codes.
func TestKVCachesOfCodesAreThoseOfRef(t *testing.T) {
	for kv, limit := range map[model.KVType]float64{model.KVInt8: 0.02, model.KVInt4: 0.06, model.KVKivi: 0.03} {
		t.Run(kv.String(), func(t *testing.T) {
			for _, backend := range backends(t) {
				if backend == "cpu" || device.IsOptional(backend) && kv != model.KVKivi { // it has none
					requireCodesOfRef(t, backend, func(p *model.Program) { p.KV = kv }, 0.001, limit)
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
	for _, kv := range []model.KVType{model.KVAuto, model.KVBF16, model.KVInt8, model.KVInt4, model.KVKivi} {
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
		{"cpu", model.KVF16, "a KV cache of f16: this backend keeps keys and values as bf16, int8, int4 or kivi"},
		{"ref", model.KVBF16, "a KV cache of bf16: this backend keeps keys and values as f32, int8, int4 or kivi"},
		{"sycl", model.KVF16, "a KV cache of f16: this backend keeps keys and values as bf16, int8 or int4"},
		{"sycl", model.KVKivi, "a KV cache of kivi: this backend keeps keys and values as bf16, int8 or int4"},
		{"cuda", model.KVF16, "a KV cache of f16: this backend keeps keys and values as bf16, int8 or int4"},
		{"cuda", model.KVKivi, "a KV cache of kivi: this backend keeps keys and values as bf16, int8 or int4"},
	} {
		if device.IsOptional(tt.backend) && !tested(t, tt.backend) {
			continue
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
