package device_test

import (
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/compute/device"
	"github.com/millrace/millrace/compute/family/fixture"
	"github.com/millrace/millrace/compute/sample"
)

// TestADeviceDrawsWhatTheSamplerDraws from the same logits, in one call for some rows. Backends whose logits are the caller's leave it
// to the sampler.
func TestADeviceDrawsWhatTheSamplerDraws(t *testing.T) {
	for _, backend := range backends(t) {
		t.Run(backend, func(t *testing.T) {
			m, err := fixture.Open(filepath.Join("..", "..", "testdata", "models", "llama-gqa"))
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, m.Weights.Close()) })
			tokens := m.Expected.Tokens()
			s := openWith(t, options(t, backend, ""), m.Program, m.Weights, len(tokens))
			logits, err := s.engine.Run([]device.Rows{{Region: s.region, Tokens: tokens}})
			require.NoError(t, err)
			vocab := len(logits.Row(0))
			rng := rand.New(rand.NewPCG(71, 73))
			said := 0
			for range 100 {
				var draws []sample.Draw
				var want []int32
				for range 1 + rng.IntN(logits.Rows()) {
					p := sample.Params{
						Temperature: 2 * rng.Float32(), TopK: rng.IntN(2) * rng.IntN(vocab+2), TopP: float32(rng.IntN(2)) * rng.Float32(),
						MinP: float32(rng.IntN(2)) * 0.3 * rng.Float32(), Seed: rng.Uint64(),
					}
					position := rng.IntN(1 << 20)
					d, ok := sample.New(p, vocab, nil).Draw(position)
					require.True(t, ok)
					d.Row = rng.IntN(logits.Rows())
					if rng.IntN(3) == 0 {
						d.Mask = make([]uint32, (vocab+31)/32)
						for i := range d.Mask {
							d.Mask[i] = rng.Uint32()
						}
					}
					token, err := d.Token(slices.Clone(logits.Row(d.Row)), new(sample.Scratch))
					require.NoError(t, err)
					draws, want = append(draws, d), append(want, token)
				}
				got := make([]int32, len(draws))
				require.NoError(t, logits.Draw(draws, got))
				for i, token := range got {
					if token >= 0 {
						said++
						require.Equal(t, want[i], token, "%+v", draws[i])
					}
				}
			}
			if device.IsOptional(backend) {
				require.Greater(t, said, 100, "the device drew nothing")
			} else {
				require.Zero(t, said)
			}
			if device.IsOptional(backend) {
				require.Error(t, logits.Draw([]sample.Draw{{Row: logits.Rows()}}, make([]int32, 1)), "a row too many")
			}
		})
	}
}

// TestStepsInTheAirDrawTheTokensOfStepsOneByOne, of two sequences whose tokens stay on the device from one step to the next.
func TestStepsInTheAirDrawTheTokensOfStepsOneByOne(t *testing.T) {
	for _, backend := range backends(t) {
		t.Run(backend, func(t *testing.T) {
			const steps = 6
			m, err := fixture.Open(filepath.Join("..", "..", "testdata", "models", "llama-gqa"))
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, m.Weights.Close()) })
			prompt := m.Expected.Tokens()[:5]
			open := func() (*sequence, func(n int, last []int32) []device.Rows) {
				s := openWith(t, options(t, backend, ""), m.Program, m.Weights, 2*len(prompt)+2*steps)
				return s, func(n int, last []int32) []device.Rows {
					if n == 0 {
						return []device.Rows{{Region: s.region, Tokens: prompt, OutputsFrom: len(prompt) - 1}}
					}
					return []device.Rows{{Region: s.region, Tokens: last, Position: len(prompt) + n - 1}}
				}
			}
			draw := func(n int) []sample.Draw { return []sample.Draw{{PerNat: 0.7, Random: uint64(n*n+1) << 57}} }
			air, batch := open()
			require.Equal(t, device.IsOptional(backend), air.engine.RunsAhead())
			if !air.engine.RunsAhead() {
				require.ErrorIs(t, air.engine.Start(batch(0, nil), nil), device.ErrUnsupported)
				return
			}
			var got []int32
			land := func() {
				token := make([]int32, 1)
				require.NoError(t, air.engine.Drawn(token))
				got = append(got, token...)
			}
			for n := range steps {
				require.NoError(t, air.engine.Start(batch(n, []int32{-1}), draw(n)))
				if n > 0 {
					land()
				}
			}
			require.ErrorIs(t, air.engine.Start(batch(1, []int32{-2}), nil), device.ErrInvalid, "an output that is not there")
			land()

			one, batch := open()
			var want []int32
			for n := range steps {
				l, err := one.engine.Run(batch(n, want[max(len(want)-1, 0):]))
				require.NoError(t, err)
				token := make([]int32, 1)
				require.NoError(t, l.Draw(draw(n), token))
				want = append(want, token...)
			}
			require.Equal(t, want, got)
		})
	}
}
