package device_test

import (
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/compute/device"
	"github.com/millrace/millrace/compute/family"
	"github.com/millrace/millrace/compute/family/fixture"
	"github.com/millrace/millrace/compute/model"
	"github.com/millrace/millrace/compute/weights"
)

const quantized = "../../testdata/quantized/"

// openModel opens a checkpoint of any format.
func openModel(t *testing.T, path string) (*family.Config, *model.Program, *weights.Checkpoint) {
	t.Helper()
	cfg, err := family.LoadConfig(path)
	require.NoError(t, err)
	w, err := family.OpenWeights(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, w.Close()) })
	p, err := family.Build(cfg, w)
	require.NoError(t, err)
	return cfg, p, w
}

// TestGGUFOfAModelIsTheSameModel: a file that was converted without quantizing
// gives the program and the bits of the folder that it was made from.
func TestGGUFOfAModelIsTheSameModel(t *testing.T) {
	files, err := filepath.Glob(quantized + "gguf/*.gguf")
	require.NoError(t, err)
	require.Len(t, files, 14)
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".gguf")
		t.Run(name, func(t *testing.T) {
			m, err := fixture.Open(filepath.Join("../../testdata/models", name))
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, m.Weights.Close()) })
			cfg, p, w := openModel(t, file)
			require.Equal(t, m.Config.Generation.EOS, cfg.Generation.EOS)
			require.Equal(t, m.Config.Generation.BOS, cfg.Generation.BOS)
			require.Equal(t, m.Config.MaxPositions, cfg.MaxPositions)
			if !p.HasExperts() { // those of a layer are one tensor in GGUF
				require.Equal(t, m.Program.Tensors, p.Tensors)
			}
			require.Len(t, p.Ops, len(m.Program.Ops))

			tokens := m.Expected.Tokens()
			got := open(t, "ref", "", p, w, len(tokens)).run(t, tokens)
			if cfg.Rope.Divisors != nil { // of Llama 3: the same frequencies but for their rounding
				requireClose(t, m.Expected.Logits, got, tolerance(device.Options{Backend: "ref"}, m))
				return
			}
			want := open(t, "ref", "", m.Program, m.Weights, len(tokens)).run(t, tokens)
			for row := range want {
				requireSameBits(t, want[row], got[row], row)
			}
		})
	}
}

// TestQuantizedModelsGiveTheLogitsOfTheirValues: transformers with the values
// that a format's formula gives, and how far these are from the plain model's.
func TestQuantizedModelsGiveTheLogitsOfTheirValues(t *testing.T) {
	// The root mean square of the logits' error over that of the logits, at
	// most: that of rounding weights to 8 or 4 bits through one random layer.
	for name, limit := range map[string]float64{
		"tiny-q8_0.gguf": 0.02, "tiny-q4_0.gguf": 0.3, "tiny-q4_k_m.gguf": 0.2,
		"gptq-4": 0.25, "gptq-4-act": 0.25, "gptq-8": 0.02, "gptq-v2": 0.3, "awq": 0.25,
		"fp8": 0.07, "ct-int4": 0.35, "ct-int3-zeros": 0.5, "ct-int8-rows": 0.03, "ct-fp8": 0.07, "ct-nvfp4": 0.25, "ct-mxfp4": 0.35,
		"bnb-nf4": 0.25, "bnb-int8": 0.02,
	} {
		t.Run(name, func(t *testing.T) {
			want, plain := expectedLogits(t, name)
			tokens := make([]int32, len(want))
			vocab := len(want[0])
			for i := range tokens { // tokens() of make_quantized.py
				tokens[i] = int32((7*i*i + 3*i + 1) % vocab)
			}
			_, p, w := openModel(t, quantized+name)
			require.NoError(t, p.SetWeights(model.WeightPlan{}.WithoutBlocks()))                           // those are tested elsewhere: rows lose more than weights
			for backend, tolerance := range map[string]float64{"ref": 1e-3, "cpu": 0.02 * largest(want)} { // as tolerance has them
				got := open(t, backend, "", p, w, len(tokens)).run(t, tokens)
				requireClose(t, want, got, tolerance)
				t.Logf("%s: %.3f of the plain logits", backend, distance(plain, got))
				require.Less(t, distance(plain, got), limit, backend)
				require.Greater(t, distance(plain, got), limit/20, "%s: no sign of quantization", backend)
			}
		})
	}
}

// expectedLogits of a quantized checkpoint: with its values, and before.
func expectedLogits(t *testing.T, name string) (want, plain [][]float32) {
	t.Helper()
	path := quantized + name + "/expected.safetensors"
	if file, ok := strings.CutSuffix(name, ".gguf"); ok {
		path = quantized + file + ".expected.safetensors"
	}
	want, err := fixture.Matrix(path, "logits")
	require.NoError(t, err)
	plain, err = fixture.Matrix(path, "plain")
	require.NoError(t, err)
	return want, plain
}

func requireClose(t *testing.T, want, got [][]float32, limit float64) {
	t.Helper()
	require.Len(t, got, len(want))
	for row := range want {
		for i := range want[row] {
			diff := math.Abs(float64(got[row][i]) - float64(want[row][i]))
			if !(diff <= limit) { // a NaN too
				t.Fatalf("row %d, token %d: %g, expected %g: off by %g, at most %g", row, i, got[row][i], want[row][i], diff, limit)
			}
		}
	}
}

func largest(rows [][]float32) float64 {
	most := 0.0
	for _, row := range rows {
		for _, x := range row {
			most = max(most, math.Abs(float64(x)))
		}
	}
	return most
}

// distance is the root mean square of the difference over that of want.
func distance(want, got [][]float32) float64 {
	var off, all float64
	for row := range want {
		for i, x := range want[row] {
			d := float64(got[row][i]) - float64(x)
			off, all = off+d*d, all+float64(x)*float64(x)
		}
	}
	return math.Sqrt(off / all)
}

// medianDistance is the median of the rows' distances.
func medianDistance(want, got [][]float32) float64 {
	rows := make([]float64, len(want))
	for i := range want {
		rows[i] = distance(want[i:i+1], got[i:i+1])
	}
	slices.Sort(rows)
	return rows[len(rows)/2]
}

// TestBackendsKeepQuantizedWeightsAlike: the codes of weights are the same everywhere, and
// so the logits are near those of ref, which multiplies what the codes stand for. In short mode with the distinct fixtures.
func TestBackendsKeepQuantizedWeightsAlike(t *testing.T) {
	run := map[string][]string{} // the backends of each fixture
	for _, backend := range backends(t) {
		for _, folder := range distinctFixtures(t, backend) {
			if backend != "ref" {
				run[folder] = append(run[folder], backend)
			}
		}
	}
	for _, folder := range slices.Sorted(maps.Keys(run)) {
		t.Run(filepath.Base(folder), func(t *testing.T) {
			m, err := fixture.Open(folder)
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, m.Weights.Close()) })
			tokens := m.Expected.Tokens()
			plain := open(t, "ref", "", m.Program, m.Weights, len(tokens)).run(t, tokens)
			for _, name := range []string{"int8", "int4-64", "fp8", "nf4"} {
				t.Run(name, func(t *testing.T) {
					kept, err := model.ParseWeights(name)
					require.NoError(t, err)
					require.NoError(t, m.Program.SetWeights(kept))
					want := open(t, "ref", "", m.Program, m.Weights, len(tokens)).run(t, tokens)
					for _, backend := range run[folder] {
						got := open(t, backend, "", m.Program, m.Weights, len(tokens)).run(t, tokens)
						off := distance(want, got)
						if m.Program.HasExperts() { // rounding chooses other experts in some rows
							off = medianDistance(want, got)
						}
						t.Logf("%s: %.4f of ref's logits, which are %.4f off the plain ones", backend, off, distance(plain, want))
						require.Less(t, off, 0.04, backend) // bf16 operands and keys
					}
				})
			}
		})
	}
}
