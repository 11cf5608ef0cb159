package device_test

import (
	"encoding/binary"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/compute/device"
	"github.com/millrace/millrace/compute/family/fixture"
	"github.com/millrace/millrace/compute/weights"
)

func TestTypesThatABackendLacksAreRefused(t *testing.T) {
	for backend, dtype := range map[string]string{"cpu": "f16", "": "f32", "ref": "bf16", "sycl": "f32", "cuda": "f32"} {
		if device.IsOptional(backend) && !tested(t, backend) {
			continue
		}
		o := options(t, backend, "")
		o.DType = dtype
		_, err := device.Open(o)
		require.ErrorIs(t, err, device.ErrUnsupported)
		require.ErrorContains(t, err, `dtype "`+dtype+`": backend `)
		require.ErrorContains(t, err, "has auto, ")
	}
}

// scaled has a bf16 tensor of a checkpoint with all its elements replaced.
type scaled struct {
	device.Tensors
	name string
	to   float32
}

func (s scaled) Tensor(name string) (weights.Tensor, bool) {
	w, ok := s.Tensors.Tensor(name)
	if ok && name == s.name {
		data := make([]byte, len(w.Data))
		for i := 0; i < len(data); i += 2 {
			binary.LittleEndian.PutUint16(data[i:], uint16(math.Float32bits(s.to)>>16))
		}
		w.Data = data
	}
	return w, ok
}

func (s scaled) Reserved(name string) (weights.Tensor, bool) { return s.Tensor(name) }

// TestNothingBeyondF16IsLostSilently: a weight that f16 cannot hold is refused by its
// value, and an operand that it cannot hold makes the logits NaN, which fail a request;
// bf16 takes both.
func TestNothingBeyondF16IsLostSilently(t *testing.T) {
	for _, backend := range device.Optional() {
		t.Run(backend, func(t *testing.T) {
			if !tested(t, backend) {
				t.Skip("NOT TESTED: see above")
			}
			requireNothingBeyondF16(t, backend)
		})
	}
}

func requireNothingBeyondF16(t *testing.T, backend string) {
	t.Helper()
	m, err := fixture.Open("../../testdata/models/llama-gqa")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, m.Weights.Close()) })
	require.True(t, hasBF16(m))
	const linear, norm = "model.layers.0.mlp.down_proj.weight", "model.layers.0.post_attention_layernorm.weight"
	tokens := m.Expected.Prompt
	for dtype, fits := range map[string]bool{"f16": false, "bf16": true, "auto": true} {
		t.Run(dtype, func(t *testing.T) {
			o := options(t, backend, "simd")
			o.DType = dtype
			d, err := device.Open(o)
			require.NoError(t, err)
			t.Cleanup(d.Close)
			e, err := d.Load(m.Program, scaled{m.Weights, linear, 131072}, device.Limits{MaxRows: 1, MaxOutputs: 1})
			if fits {
				require.NoError(t, err)
				e.Close()
			} else {
				require.ErrorIs(t, err, device.ErrUnsupported)
				require.ErrorContains(t, err, "a weight of 131072 is beyond F16")
			}
			logits := openWith(t, o, m.Program, scaled{m.Weights, norm, 131072}, len(tokens)).run(t, tokens)
			for _, x := range logits[len(logits)-1] {
				require.Equal(t, fits, !math.IsNaN(float64(x)))
			}
		})
	}
}
