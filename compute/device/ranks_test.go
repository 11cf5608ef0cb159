package device_test

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/compute/device"
	"github.com/millrace/millrace/compute/family/fixture"
	"github.com/millrace/millrace/compute/model"
)

// rankedBackends are those that divide a device among ranks.
func rankedBackends(t *testing.T) []string {
	t.Helper()
	return slices.DeleteFunc(backends(t), func(backend string) bool { return backend == "cuda" })
}

// ranked are the options of a backend with ranks and threads of each.
func ranked(t *testing.T, backend string, ranks, threads int) device.Options {
	t.Helper()
	o := options(t, backend, "")
	o.Ranks, o.Threads = ranks, ranks*threads
	return o
}

// splits are the fixtures that can be split among ranks.
func splits(t *testing.T, ranks int) (models []*fixture.Model) {
	t.Helper()
	for _, dir := range distinctFixtures(t) {
		m, err := fixture.Open(dir)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, m.Weights.Close()) })
		require.NoError(t, m.Program.SetWeights(model.WeightPlan{}.WithoutBlocks()))
		if _, err := m.Program.Split(ranks); err != nil {
			require.ErrorIs(t, err, model.ErrRanks)
			continue
		}
		models = append(models, m)
	}
	return models
}

// TestRanksComputeWhatOneComputes: logits near those of one rank, and the same greedy tokens on ref.
func TestRanksComputeWhatOneComputes(t *testing.T) {
	least := map[int]int{2: 130, 4: 30}
	if testing.Short() {
		least = map[int]int{2: 30, 4: 7}
	}
	for _, ranks := range []int{2, 4} {
		models := splits(t, ranks)
		require.GreaterOrEqual(t, len(models), least[ranks])
		for _, backend := range rankedBackends(t) {
			for _, m := range models {
				if backend == "sycl" && (ranks > 2 || !slices.Contains(ofEachKind, filepath.Base(m.Dir))) {
					continue // its CPU device has a part for each of two threads
				}
				t.Run(fmt.Sprintf("%s/%d/%s", backend, ranks, filepath.Base(m.Dir)), func(t *testing.T) {
					tokens := m.Expected.Tokens()
					one := openWith(t, ranked(t, backend, 1, 1), m.Program, m.Weights, len(tokens)).run(t, tokens)
					got := openWith(t, ranked(t, backend, ranks, 1), m.Program, m.Weights, len(tokens)).run(t, tokens)
					requireClose(t, one, got, tolerance(device.Options{Backend: backend}, m))
					for row := range got {
						if backend == "ref" && second(one[row]) > 2e-3 {
							require.Equal(t, argmax(one[row]), argmax(got[row]), "row %d", row)
						}
					}
				})
			}
		}
	}
}

// second is how far the second largest logit is from the largest one.
func second(logits []float32) float64 {
	best := argmax(logits)
	margin := float32(1e9)
	for i, v := range logits {
		if int32(i) != best {
			margin = min(margin, logits[best]-v)
		}
	}
	return float64(margin)
}

// ofEachKind are fixtures of plain layers, grouped KV heads and biases, few KV heads, windows, ALiBi slopes and experts.
var ofEachKind = []string{"llama-gqa", "qwen2", "mistral-window", "bloom-8-heads", "qwen3-moe", "gpt-oss"}

func kinds(t *testing.T, test func(t *testing.T, backend string, m *fixture.Model)) {
	for _, name := range ofEachKind {
		m, err := fixture.Open("../../testdata/models/" + name)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, m.Weights.Close()) })
		for _, backend := range rankedBackends(t) {
			t.Run(backend+"/"+name, func(t *testing.T) { test(t, backend, m) })
		}
	}
}

// TestTheThreadsOfRanksChangeNoBit, nor do the chunks of a prompt.
func TestTheThreadsOfRanksChangeNoBit(t *testing.T) {
	kinds(t, func(t *testing.T, backend string, m *fixture.Model) {
		tokens := m.Expected.Tokens()
		want := openWith(t, ranked(t, backend, 2, 1), m.Program, m.Weights, len(tokens)).run(t, tokens)
		s := openWith(t, ranked(t, backend, 2, 2), m.Program, m.Weights, len(tokens))
		for _, chunk := range []int{len(tokens), 1, 7} {
			s.restart()
			for at := 0; at < len(tokens); at += chunk {
				for i, row := range s.run(t, tokens[at:min(at+chunk, len(tokens))]) {
					requireSameBits(t, want[at+i], row, at+i)
				}
			}
		}
	})
}

// TestASlabHasAllRanks: slabs that one engine writes continue on another one of as many ranks, and the numerics of
// other numbers of ranks differ.
func TestASlabHasAllRanks(t *testing.T) {
	kinds(t, func(t *testing.T, backend string, m *fixture.Model) {
		tokens := m.Expected.Tokens()
		n := len(tokens) - 3
		from := openWith(t, ranked(t, backend, 2, 1), m.Program, m.Weights, len(tokens))
		to := openWith(t, ranked(t, backend, 2, 1), m.Program, m.Weights, len(tokens))
		from.run(t, tokens[:n])
		slab := make([]byte, from.engine.Info().SlabBytes)
		for i := range from.engine.Slabs(len(tokens)) {
			require.NoError(t, from.engine.ReadSlab(int32(i), slab))
			require.NoError(t, to.engine.WriteSlab(int32(i), slab))
		}
		to.length = n
		want, got := from.run(t, tokens[n:]), to.run(t, tokens[n:])
		for row := range want {
			requireSameBits(t, want[row], got[row], row)
		}
		one := openWith(t, ranked(t, backend, 1, 1), m.Program, m.Weights, len(tokens))
		first, err := one.engine.Numerics()
		require.NoError(t, err)
		two, err := from.engine.Numerics()
		require.NoError(t, err)
		if backend == "sycl" { // its text says how many threads a part has
			require.True(t, strings.HasSuffix(two, " ranks-2"), two)
		} else {
			require.Equal(t, first+" ranks-2", two)
		}
	})
}

// TestQuantizedWeightsAreSplit: by whole groups and blocks. Scales of rows, and of weights of 8 bits, are those of a rank's share.
func TestQuantizedWeightsAreSplit(t *testing.T) {
	for _, plan := range []string{"int8", "fp8", "int4", "nf4"} {
		t.Run(plan, func(t *testing.T) {
			_, p, w := openModel(t, "../../models/tiny-chat")
			weights, err := model.ParseWeights(plan)
			require.NoError(t, err)
			require.NoError(t, p.SetWeights(weights))
			tokens := []int32{1, 5, 900, 31, 7, 2000, 8, 4}
			one := openWith(t, ranked(t, "cpu", 1, 1), p, w, len(tokens)).run(t, tokens)
			got := openWith(t, ranked(t, "cpu", 2, 1), p, w, len(tokens)).run(t, tokens)
			requireClose(t, one, got, 0.1*float64(one[0][argmax(one[0])]))
		})
	}
	for _, name := range []string{"tiny-q8_0.gguf", "tiny-q4_0.gguf"} {
		t.Run(name, func(t *testing.T) {
			_, p, w := openModel(t, quantized+name)
			tokens := []int32{1, 5, 9, 3, 7, 2, 8, 4}
			for _, backend := range []string{"ref", "cpu"} {
				one := openWith(t, ranked(t, backend, 1, 1), p, w, len(tokens)).run(t, tokens)
				got := openWith(t, ranked(t, backend, 2, 1), p, w, len(tokens)).run(t, tokens)
				requireClose(t, one, got, 0.05*float64(one[0][argmax(one[0])]))
			}
		})
	}
}

// TestWhatIsNotSplitIsRefused, by name.
func TestWhatIsNotSplitIsRefused(t *testing.T) {
	for name, found := range map[string]string{
		"mamba":       "layers with a state",
		"deepseek-v3": "a matrix of each head",
		"olmo2":       "op attn.q_norm of layer 0: found a norm of",
		"gemma3n":     "alternating updates",
		"yoco":        "keys and values without queries",
		"opt-prenorm": "found 5 heads and 5 KV heads",
	} {
		m, err := fixture.Open("../../testdata/models/" + name)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, m.Weights.Close()) })
		d, err := device.Open(ranked(t, "ref", 2, 1))
		require.NoError(t, err)
		t.Cleanup(d.Close)
		_, err = d.Load(m.Program, m.Weights, device.Limits{MaxRows: 1, MaxOutputs: 1})
		require.ErrorIs(t, err, device.ErrUnsupported)
		require.ErrorContains(t, err, "tensor parallelism of 2 ranks: ")
		require.ErrorContains(t, err, found)
	}
	_, err := device.Open(device.Options{Backend: "cpu", Ranks: 3, Threads: 2})
	require.ErrorIs(t, err, device.ErrInvalid)
	require.ErrorContains(t, err, "2 threads for 3 ranks, expected one for each")
	if tested(t, "cuda") {
		_, err := device.Open(ranked(t, "cuda", 2, 1))
		require.ErrorIs(t, err, device.ErrUnsupported)
		require.ErrorContains(t, err, "has one part")
	}
	if tested(t, "sycl") {
		_, err := device.Open(ranked(t, "sycl", 7, 1))
		require.ErrorIs(t, err, device.ErrUnsupported)
		require.ErrorContains(t, err, "7 ranks: ")
	}
}
