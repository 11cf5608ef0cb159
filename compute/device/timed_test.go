package device_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/compute/device"
	"github.com/millrace/millrace/compute/family/fixture"
)

func TestTimedStepsGiveTheSameBitsAndATimeForEachOp(t *testing.T) {
	m, err := fixture.Open("../../testdata/models/opt-postnorm")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, m.Weights.Close()) })
	tokens := m.Expected.Tokens()
	for _, backend := range backends(t) {
		t.Run(backend, func(t *testing.T) {
			want := open(t, backend, "", m.Program, m.Weights, len(tokens)).run(t, tokens)

			o := options(t, backend, "")
			o.Profile = true
			s := openWith(t, o, m.Program, m.Weights, len(tokens))
			for range 2 {
				got, times, err := s.engine.RunTimed([]device.Rows{{Region: s.region, Tokens: tokens}})
				require.NoError(t, err)
				require.Len(t, times, len(m.Program.Ops))
				for i, op := range times {
					require.Positive(t, op.Time, m.Program.Ops[i].Name)
					require.Positive(t, op.Launches, m.Program.Ops[i].Name)
				}
				for row := range want {
					requireSameBits(t, want[row], got.Row(row), row)
				}
			}
		})
	}
}
