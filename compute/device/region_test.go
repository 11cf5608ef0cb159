package device_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/compute/device"
	"github.com/millrace/millrace/compute/family/fixture"
)

// TestARegionAdvances: what it unmaps is not read again, and a step that sees it fails.
func TestARegionAdvances(t *testing.T) {
	m, err := fixture.Open("../../testdata/models/mistral-window")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, m.Weights.Close()) })
	for _, backend := range backends(t) {
		t.Run(backend, func(t *testing.T) {
			d, err := device.Open(options(t, backend, ""))
			require.NoError(t, err)
			t.Cleanup(d.Close)
			e, err := d.Load(m.Program, m.Weights, device.Limits{MaxRows: 64, MaxOutputs: 1})
			require.NoError(t, err)
			t.Cleanup(e.Close)
			require.NoError(t, e.ReserveKV(8))
			r, err := e.NewRegion(96)
			require.NoError(t, err)
			t.Cleanup(r.Close)
			run := func(position, n int) error {
				tokens := make([]int32, n)
				_, err := e.Run([]device.Rows{{Region: r, Tokens: tokens, Position: position, OutputsFrom: n - 1}})
				return err
			}
			require.NoError(t, r.Append([]int32{0, 1, 2, 3}))
			require.NoError(t, run(0, 60))
			require.NoError(t, r.Advance(2))
			require.NoError(t, r.Advance(1), "it is there already")
			require.NoError(t, run(60, 1))
			require.Error(t, run(41, 1), "token 41 sees 31")
			require.ErrorIs(t, r.Advance(5), device.ErrInvalid, "place 4 is not mapped")
			n, err := r.Unmap(5)
			require.NoError(t, err)
			require.Equal(t, 2, n)
			require.NoError(t, r.Advance(3))
			require.NoError(t, r.Append([]int32{5, 6}), "at places 3 and 4")
			require.Equal(t, 80, r.Tokens())
			require.NoError(t, run(64, 1))
			require.Error(t, run(57, 1), "token 57 sees 47")
			require.ErrorIs(t, r.Advance(7), device.ErrInvalid)
		})
	}
}

// TestGroupsOfLayersAdvanceByThemselves: of a Qwen2 whose first layer sees all tokens, the others give slabs back.
func TestGroupsOfLayersAdvanceByThemselves(t *testing.T) {
	m, err := fixture.Open("../../testdata/models/qwen2-window")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, m.Weights.Close()) })
	for _, backend := range backends(t) {
		t.Run(backend, func(t *testing.T) {
			d, err := device.Open(options(t, backend, ""))
			require.NoError(t, err)
			t.Cleanup(d.Close)
			e, err := d.Load(m.Program, m.Weights, device.Limits{MaxRows: 64, MaxOutputs: 1})
			require.NoError(t, err)
			t.Cleanup(e.Close)
			require.NoError(t, e.ReserveKV(16))
			run := func(r *device.Region, position, n int) []float32 {
				out, err := e.Run([]device.Rows{{Region: r, Tokens: make([]int32, n), Position: position, OutputsFrom: n - 1}})
				require.NoError(t, err)
				return append([]float32(nil), out.Row(0)...)
			}
			fails := func(r *device.Region, position int) {
				_, err := e.Run([]device.Rows{{Region: r, Tokens: make([]int32, 1), Position: position}})
				require.Error(t, err)
			}
			r, err := e.NewRegion(96)
			require.NoError(t, err)
			t.Cleanup(r.Close)
			require.ErrorIs(t, r.Append([]int32{0, 1}), device.ErrInvalid, "three slabs for each place")
			require.ErrorIs(t, r.Advance(1), device.ErrInvalid, "the first layer needs all")
			require.NoError(t, r.Append([]int32{0, 3, 6, 1, 4, 7, 2, 5, 8}))
			run(r, 0, 40)
			want := run(r, 40, 1)
			require.NoError(t, r.Advance(2))
			require.Equal(t, want, run(r, 40, 1), "token 40 sees 34")
			fails(r, 37) // sees 31
			require.ErrorIs(t, r.Advance(4), device.ErrInvalid, "place 3 is not mapped")
			require.NoError(t, r.Append([]int32{9, 3, 6}), "slabs of the others serve again")
			require.Equal(t, want, run(r, 40, 1))
			run(r, 41, 20)

			other, err := e.NewRegion(96) // a hit of 40 tokens
			require.NoError(t, err)
			t.Cleanup(other.Close)
			require.NoError(t, other.Append([]int32{0, -1, -1}))
			require.NoError(t, other.Append([]int32{1, -1, -1, 2, 5, 8}))
			require.Equal(t, want, run(other, 40, 1))
			fails(other, 37)
			n, err := other.Unmap(1)
			require.NoError(t, err)
			require.Equal(t, 3, n, "those of a place")
			n, err = other.Unmap(9)
			require.NoError(t, err)
			require.Equal(t, 2, n)
			n, err = other.Unmap(1)
			require.NoError(t, err)
			require.Zero(t, n)
		})
	}
}
