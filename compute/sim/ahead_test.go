package sim

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/compute/device"
	"github.com/millrace/millrace/compute/family"
	"github.com/millrace/millrace/compute/sample"
)

// airborne is a runner whose time is that of c.
func airborne(t *testing.T, c *late) *Runner {
	t.Helper()
	cfg, err := family.LoadConfig(filepath.Join("../../testdata/models", "llama-gqa"))
	require.NoError(t, err)
	p, err := family.Build(cfg, nil)
	require.NoError(t, err)
	d, _, err := Find("cpu")
	require.NoError(t, err)
	r, err := Open(Options{Program: p, Device: d, MaxRows: 64, MaxOutputs: 8, MaxSequences: 8})
	require.NoError(t, err)
	t.Cleanup(r.Close)
	r.pacer = c.pacer()
	return r
}

// TestStepsInTheAirDrawTheTokensOfStepsOneByOne, and take the device's time alone: what the host does meanwhile costs none.
func TestStepsInTheAirDrawTheTokensOfStepsOneByOne(t *testing.T) {
	const steps = 40
	c := &late{time: time.Unix(1, 0)}
	r := airborne(t, c)
	g, err := r.NewRegion(64)
	require.NoError(t, err)
	require.NoError(t, g.Append([]int32{0, 1, 2, 3}))
	prompt := []int32{5, 6, 7}
	rows := func(tokens []int32, at int) []compute.Rows {
		return []compute.Rows{{Region: g, Tokens: tokens, Position: at, Output: true}}
	}
	draw := func(n int) []sample.Draw { return []sample.Draw{{PerNat: 0.5, Random: uint64(n) << 58}} }

	r.options.Speed = 0
	var want []int32
	for n := range steps {
		tokens, at := prompt, 0
		if n > 0 {
			tokens, at = want[n-1:], len(prompt)+n-1
		}
		l, err := r.Run(rows(tokens, at))
		require.NoError(t, err)
		var token [1]int32
		require.NoError(t, l.(compute.Draws).Draw(draw(n), token[:]))
		want = append(want, token[0])
	}

	took := time.Duration(0) // of all steps, on the device
	r.options.Speed = 0.01
	begin := c.time
	host := 3 * time.Microsecond
	var got []int32
	land := func() {
		var token [1]int32
		require.NoError(t, r.Drawn(token[:]))
		got = append(got, token[0])
	}
	for n := range steps {
		c.time = c.time.Add(host)
		batch := rows([]int32{compute.Drawn(0)}, len(prompt)+n-1)
		if n == 0 {
			batch = rows(prompt, 0)
		}
		require.NoError(t, r.Start(batch, draw(n)))
		took += r.took()
		if n > 0 {
			land()
		}
	}
	land()
	require.Equal(t, want, got)
	require.Greater(t, took, 4*steps*host, "the host has less to do than the device")
	require.InDelta(t, took.Seconds(), c.time.Sub(begin).Seconds(), (host + 200*time.Microsecond).Seconds())
}

func TestStepsInTheAirThatADeviceRefuses(t *testing.T) {
	r := airborne(t, &late{time: time.Unix(1, 0)})
	g, err := r.NewRegion(64)
	require.NoError(t, err)
	require.NoError(t, g.Append([]int32{0}))
	rows := []compute.Rows{{Region: g, Tokens: []int32{5}, Output: true}}
	token := make([]int32, 1)
	require.ErrorIs(t, r.Drawn(token), device.ErrInvalid, "nothing was started")
	require.ErrorIs(t, r.Start([]compute.Rows{{Region: g, Tokens: []int32{compute.Drawn(0)}, Output: true}}, nil), device.ErrInvalid)
	require.ErrorIs(t, r.Start(rows, make([]sample.Draw, 2)), device.ErrInvalid)
	require.NoError(t, r.Start(rows, nil))
	_, err = r.Run(rows)
	require.ErrorIs(t, err, device.ErrInvalid)
	require.NoError(t, r.Start(rows, nil))
	require.ErrorIs(t, r.Start(rows, nil), device.ErrInvalid)
	require.ErrorIs(t, r.Drawn(nil), device.ErrInvalid)
	require.NoError(t, r.Drawn(token))
	require.NoError(t, r.Drawn(token))
	_, err = r.Run(rows)
	require.NoError(t, err)
	rows[0].Tokens = []int32{compute.Drawn(0)}
	require.ErrorIs(t, r.Start(rows, nil), device.ErrInvalid, "the step before was run")
}
