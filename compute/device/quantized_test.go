package device_test

import (
	"encoding/json"
	"maps"
	"math"
	"os"
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

// TestGGUFOfAModelIsTheSameModel: a file that was converted without quantizing gives the bits of the folder that it was made from. Those of
// testdata/gguf were made by llama.cpp's converter.
func TestGGUFOfAModelIsTheSameModel(t *testing.T) {
	files, err := filepath.Glob(quantized + "gguf/*.gguf")
	require.NoError(t, err)
	require.Len(t, files, 14)
	converted, err := filepath.Glob("../../testdata/gguf/*.gguf")
	require.NoError(t, err)
	require.Len(t, converted, 112)
	for _, file := range append(files, converted...) {
		name := strings.TrimSuffix(filepath.Base(file), ".gguf")
		t.Run(name, func(t *testing.T) {
			m, err := fixture.Open(asLlamaCppKnows(t, filepath.Join("../../testdata/models", modelOf(name))))
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, m.Weights.Close()) })
			cfg, p, w := openModel(t, file)
			require.Equal(t, m.Config.Generation.EOS, cfg.Generation.EOS)
			require.Equal(t, m.Config.Generation.BOS, cfg.Generation.BOS)
			if cfg.MaxPositions != 1<<20 { // what the converter writes for models with states
				require.Equal(t, m.Config.MaxPositions, cfg.MaxPositions)
			}
			require.Len(t, p.Ops, len(m.Program.Ops))

			tokens := m.Expected.Tokens()
			for _, backend := range []string{"ref", "cpu"} {
				got := open(t, backend, "", p, w, len(tokens)).run(t, tokens)
				want := open(t, backend, "", m.Program, m.Weights, len(tokens)).run(t, tokens)
				if cfg.Rope.Divisors != nil || rounded(p) || name == "ling-norm-head" { // the same values but for their rounding
					requireClose(t, want, got, tolerance(device.Options{Backend: backend}, m))
					continue
				}
				for row := range want {
					requireSameBits(t, want[row], got[row], row)
				}
			}
		})
	}
}

// modelOf is the folder of which a file was made: there are two files of some.
func modelOf(name string) string {
	if name == "hunyuan-vl" {
		return "hunyuan"
	}
	return strings.TrimSuffix(name, "-old")
}

// TestGGUFOfAnEncoderIsTheSameEncoder: RoBERTa's positions begin at 0 in a file of the architecture bert.
func TestGGUFOfAnEncoderIsTheSameEncoder(t *testing.T) {
	files, err := filepath.Glob("../../testdata/gguf/encoders/*.gguf")
	require.NoError(t, err)
	require.Len(t, files, 11)
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".gguf")
		t.Run(name, func(t *testing.T) {
			folder := filepath.Join("../../testdata/encoders", name)
			var texts []encoded
			require.NoError(t, weights.ReadJSON(filepath.Join(folder, "expected.json"), &texts, "texts"))
			run := func(path, backend string) (*family.Config, [][]float32) {
				cfg, p, w := openModel(t, path)
				d, err := device.Open(device.Options{Backend: backend})
				require.NoError(t, err)
				defer d.Close()
				e, err := d.Load(p, w, device.Limits{MaxRows: 500, MaxOutputs: len(texts), MaxHidden: len(texts)})
				require.NoError(t, err)
				defer e.Close()
				require.NoError(t, e.ReserveKV(100))
				return cfg, runEncoder(t, e, p, texts)
			}
			for _, backend := range []string{"ref", "cpu"} {
				cfg, want := run(asLlamaCppKnows(t, folder), backend)
				own, got := run(file, backend)
				require.Equal(t, cfg.Pooling.Mode, own.Pooling.Mode)
				require.Equal(t, cfg.Pooling.Dense, own.Pooling.Dense)
				require.Equal(t, cfg.MaxPositions, own.MaxPositions)
				require.Equal(t, cfg.Classifier, own.Classifier)
				for i := range want {
					requireSameBits(t, want[i], got[i], i)
				}
			}
		})
	}
}

// asLlamaCppKnows is the folder of a model, or a copy with other members of its configuration: those that GGUF files have no keys for, with
// the values that llama.cpp has for all models of the architecture.
func asLlamaCppKnows(t *testing.T, folder string) string {
	t.Helper()
	known := map[string]map[string]any{
		"afmoe":   {"layer_types": []string{"sliding_attention", "sliding_attention"}},
		"cohere2": {"sliding_window_pattern": 4},
		"deepseek-v3": {"rope_parameters": map[string]any{"rope_type": "yarn", "rope_theta": 1e4, "factor": 4,
			"original_max_position_embeddings": 32, "mscale": 0.8, "mscale_all_dim": 0.8}},
		"dots1":          {"sliding_window": nil},
		"embeddinggemma": {"layer_types": nil},
		"falcon":         {"max_position_embeddings": 2048},
		"falcon-groups":  {"max_position_embeddings": 2048},
		"gpt-oss-mxfp4":  {"swiglu_limit": 7},
		"granite-swa":    {"layer_rope_theta": []float64{10000, 10000, 0}},
		"llama4": {"attention_chunk_size": 8192, "floor_scale": 8192, "layer_types": nil, "no_rope_layers": nil,
			"no_rope_layer_interval": 4},
		"minimax-m3": {"swiglu_limit": 7},
		"minicpm3":   {"scale_emb": 12, "dim_model_base": 256},
		"smollm3":    {"no_rope_layer_interval": 4},
		"starcoder2": {"sliding_window": nil},
	}[filepath.Base(folder)]
	if known == nil {
		return folder
	}
	copied := t.TempDir()
	require.NoError(t, os.CopyFS(copied, os.DirFS(folder)))
	var config map[string]any
	path := filepath.Join(copied, "config.json")
	raw, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(raw, &config))
	maps.Copy(config, known)
	raw, err = json.Marshal(config)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, raw, 0o600))
	return copied
}

// rounded says whether a program has states, whose decay is the exponential of what a checkpoint has in GGUF files, or Gemma 3n's sparse
// gates, whose cutoff is the quantile of what it has.
func rounded(p *model.Program) bool {
	return slices.ContainsFunc(p.Ops, func(op model.Op) bool {
		return op.Kind == model.OpRecur || op.Gate != nil && op.Gate.Sparse
	})
}

// TestQuantizedModelsGiveTheLogitsOfTheirValues: transformers with the values
// that a format's formula gives, and how far these are from the plain model's.
func TestQuantizedModelsGiveTheLogitsOfTheirValues(t *testing.T) {
	// The root mean square of the logits' error over that of the logits, at
	// most: that of rounding weights to 8 or 4 bits through one random layer.
	for name, limit := range map[string]float64{
		"tiny-q8_0.gguf": 0.02, "tiny-q4_0.gguf": 0.3, "tiny-q4_k_m.gguf": 0.2,
		"gptq-4": 0.25, "gptq-4-act": 0.25, "gptq-8": 0.02, "gptq-v2": 0.3, "awq": 0.25,
		"fp8": 0.07, "fp8-128": 0.07, "ct-int4": 0.35, "ct-int3-zeros": 0.5, "ct-int8-rows": 0.03, "ct-fp8": 0.07, "ct-nvfp4": 0.25,
		"ct-mxfp4": 0.35, "bnb-nf4": 0.25, "bnb-int8": 0.02, "bitnet": 1.2, "bitnet-divided": 1.2, "bitnet-online": 1.2,
	} {
		t.Run(name, func(t *testing.T) {
			want, plain := expectedLogits(t, name)
			tokens := quantizedTokens(len(want), len(want[0]))
			_, p, w := openModel(t, quantized+name)
			require.NoError(t, p.SetWeights(model.WeightPlan{}.WithoutBlocks())) // those are tested elsewhere: rows lose more than weights
			exact := 1e-3
			if slices.ContainsFunc(p.Tensors, func(t model.Tensor) bool { return t.Blocks != "" }) && !strings.HasSuffix(name, ".gguf") {
				exact = 1e-3 * largest(want) // the oracle rounds values to F16, and blocks have scales in F16
			}
			for backend, tolerance := range map[string]float64{"ref": exact, "cpu": 0.02 * largest(want)} { // as tolerance has them
				got := open(t, backend, "", p, w, len(tokens)).run(t, tokens)
				requireClose(t, want, got, tolerance)
				t.Logf("%s: %.3f of the plain logits", backend, distance(plain, got))
				require.Less(t, distance(plain, got), limit, backend)
				require.Greater(t, distance(plain, got), limit/20, "%s: no sign of quantization", backend)
			}
		})
	}
}

// quantizedTokens are those of tokens() of make_quantized.py.
func quantizedTokens(n, vocab int) []int32 {
	tokens := make([]int32, n)
	for i := range tokens {
		tokens[i] = int32((7*i*i + 3*i + 1) % vocab)
	}
	return tokens
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
	others := slices.DeleteFunc(backends(t), func(backend string) bool { return backend == "ref" })
	for _, folder := range distinctFixtures(t) {
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
					for _, backend := range others {
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
