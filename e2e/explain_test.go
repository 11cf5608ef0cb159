package e2e_test

import (
	"encoding/json"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/compute/device"
)

// productsOfFloats matches the class of a CPU device whose processor has no products of 16 bits:
// there rows and weights of a prompt's linear ops are widened by a launch each. No GPU does that.
var productsOfFloats = regexp.MustCompile(`oneDNN [^,]*: \d*[34]`)

// TestExplainShowsWhatAGPULaunches expects at most 8 of our kernels for a Llama
// layer (9 in the paper), one more with oneDNN, which computes gate and up one by one, and the
// total that the library counts.
func TestExplainShowsWhatAGPULaunches(t *testing.T) {
	most := map[string]map[string]int{"sycl": {"simd": 8, "simd-onednn": 9}, "cuda": {"mma": 8, "simd": 8}}
	eachGPU(t, func(t *testing.T, b gpuBackend) {
		path := b.program(t)
		for isa, most := range most[b.name] {
			t.Run(isa, func(t *testing.T) { b.explainLaunches(t, path, isa, most) })
		}
	})
}

func (b gpuBackend) explainLaunches(t *testing.T, path, isa string, most int) {
	args := append([]string{"explain", "--model", demoModel, "--isa", isa, "--prefill", "37", "--json"}, b.flags...)
	out, err := runProgram(path, nil, args...)
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

	library, err := filepath.Abs("../build/lib/libmillrace_" + b.name + ".so")
	require.NoError(t, err)
	o := device.Options{Backend: b.name, ISA: isa, Library: library}
	if b.name == "sycl" {
		o.Device = "cpu"
	}
	m, err := compute.Open(compute.Options{
		Dir: demoModel, Device: o,
		MaxRows: 37, MaxOutputs: 1, MaxSequences: 1,
	})
	require.NoError(t, err)
	defer m.Close()

	const all, selections = 8, 2 // the last layer selects the rows that it continues with
	const linears, widened = 4, 2
	if productsOfFloats.MatchString(m.Numerics().Class) {
		most += linears * widened
	}
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
