package e2e_test

import (
	"encoding/json"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/compute/device"
)

// TestExplainShowsWhatTheSYCLBackendLaunches expects at most 8 of our kernels for a Llama
// layer (9 in the paper), one more with oneDNN, which computes gate and up one by one, and the
// total that the library counts.
func TestExplainShowsWhatTheSYCLBackendLaunches(t *testing.T) {
	path := syclProgram(t)
	for isa, most := range map[string]int{"simd": 8, "simd-onednn": 9} {
		t.Run(isa, func(t *testing.T) { explainLaunches(t, path, isa, most) })
	}
}

func explainLaunches(t *testing.T, path, isa string, most int) {
	out, err := runProgram(path, nil, "explain", "--model", demoModel, "--backend", "sycl", "--device", "cpu", "--isa", isa, "--prefill", "37", "--json")
	require.NoError(t, err, out)
	var found struct {
		Launches struct {
			Groups []struct {
				First, Count, Prefill, Decode int
			}
			Prefill, Decode int
		}
	}
	require.NoError(t, json.Unmarshal([]byte(out), &found))
	const all, selections = 8, 2 // the last layer selects the rows that it continues with
	layers := 0
	for _, g := range found.Launches.Groups {
		if g.First >= 0 {
			layers += g.Count
			allowed := most
			if layers == all && g.Count == 1 {
				allowed += selections
			}
			require.LessOrEqual(t, g.Prefill, allowed)
			require.LessOrEqual(t, g.Decode, allowed)
		}
	}
	require.Equal(t, all, layers)

	library, err := filepath.Abs("../build/lib/libmillrace_sycl.so")
	require.NoError(t, err)
	m, err := compute.Open(compute.Options{
		Dir: demoModel, Device: device.Options{Backend: "sycl", Device: "cpu", ISA: isa, Library: library},
		MaxRows: 37, MaxOutputs: 1, MaxSequences: 1,
	})
	require.NoError(t, err)
	defer m.Close()
	region, err := m.NewRegion(38)
	require.NoError(t, err)
	defer region.Close()
	require.NoError(t, region.Append([]int32{0, 1, 2}))
	count := func(rows, at int) (n int) {
		ops, err := m.RunTimed([]compute.Rows{{Region: region, Tokens: make([]int32, rows), Position: at, Output: true}})
		require.NoError(t, err)
		for _, op := range ops {
			n += op.Launches
		}
		return n
	}
	require.Equal(t, count(37, 0), found.Launches.Prefill)
	require.Equal(t, count(1, 37), found.Launches.Decode)
}
