package device_test

import (
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/compute/device"
	"github.com/millrace/millrace/compute/family/fixture"
	"github.com/millrace/millrace/compute/model"
)

// allowed is how far the other backends may be from ref: they round activations to 16 bits before
// they become codes, so that some codes are the neighbors of ref's.
const allowed = 0.04

// TestQuantizedWeightsAreThoseOfRef: as requireCodesOfRef says, with quantized weights.
func TestQuantizedWeightsAreThoseOfRef(t *testing.T) {
	for _, name := range []string{"int8", "int4", "int4-64", "int4-128", "fp8", "nf4", "int8+attn.out=bf16",
		"nf4+attn.out=int4+mlp.down=fp8"} {
		t.Run(name, func(t *testing.T) {
			w, err := model.ParseWeights(name)
			require.NoError(t, err)
			for _, backend := range backends(t) {
				if backend != "ref" {
					requireCodesOfRef(t, backend, func(p *model.Program) { require.NoError(t, p.SetWeights(w)) }, 0.002, allowed)
				}
			}
		})
	}
}

// requireCodesOfRef is requireCodesOf a Llama.
func requireCodesOfRef(t *testing.T, backend string, quantize func(*model.Program), effect, limit float64) {
	t.Helper()
	requireCodesOf(t, "llama-gqa", backend, quantize, effect, limit)
}

// requireCodesOf runs a fixture with values kept as codes. On every variant of the backend its
// logits are within limit of those of ref, whose codes are the same, and do not depend on how
// the tokens are cut into steps. Those of ref are at least effect away from those of the
// values themselves. Both are root mean squares, over that of the logits.
func requireCodesOf(t *testing.T, name, backend string, quantize func(*model.Program), effect, limit float64) {
	t.Helper()
	m, err := fixture.Open(filepath.Join("../../testdata/models", name))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, m.Weights.Close()) })
	tokens := m.Expected.Tokens()
	plain := open(t, "ref", "", m.Program, m.Weights, len(tokens)).run(t, tokens)
	quantize(m.Program)
	ref := open(t, "ref", "", m.Program, m.Weights, len(tokens)).run(t, tokens)
	moved := distance(plain, ref)
	t.Logf("codes move the logits by %.2g of their size", moved)
	require.Greater(t, moved, effect, "ref took no notice of the codes")
	for _, o := range variants(t, backend) {
		s := openWith(t, o, m.Program, m.Weights, len(tokens))
		whole := s.run(t, tokens)
		off := distance(ref, whole)
		t.Logf("%s %s %s is %.2g away from ref", backend, o.ISA, o.DType, off)
		require.LessOrEqual(t, off, limit, o.ISA)
		s.restart()
		for i := range tokens {
			requireSameBits(t, whole[i], s.run(t, tokens[i:i+1])[0], i)
		}
	}
}

// held is a checkpoint that notes which tensors were in use, and how many at once.
type held struct {
	device.Tensors
	mu         *sync.Mutex
	made       map[string]int
	used, most map[string]bool
}

func hold(w device.Tensors) held {
	return held{w, new(sync.Mutex), map[string]int{}, map[string]bool{}, map[string]bool{}}
}

func (h held) Use(names []string) {
	h.Tensors.Use(names)
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, name := range names {
		h.made[name]++
		h.used[name] = true
	}
	if len(h.used) > len(h.most) {
		clear(h.most)
		maps.Copy(h.most, h.used)
	}
}

func (h held) Forget(names []string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, name := range names {
		delete(h.used, name)
	}
	return h.Tensors.Forget(names)
}

// TestWeightsAreInMemoryWhileTheirOpIsPacked: quantized tensors are made in another form for that, and a model's worth of them might not fit
// beside the packed weights.
func TestWeightsAreInMemoryWhileTheirOpIsPacked(t *testing.T) {
	for _, name := range []string{"awq", "fp8-128", "bnb-nf4"} {
		for _, backend := range backends(t) {
			t.Run(name+"/"+backend, func(t *testing.T) {
				_, p, w := openModel(t, quantized+name)
				if device.IsOptional(backend) {
					require.NoError(t, p.SetWeights(model.WeightPlan{}.WithoutBlocks()))
				}
				linear := p.PackedTensors()
				require.Greater(t, len(linear), 6)
				h := hold(w)
				openWith(t, options(t, backend, ""), p, h, 8)
				require.Equal(t, linear, slices.Sorted(maps.Keys(h.made)))
				for name, times := range h.made {
					require.Equal(t, 1, times, name)
				}
				if backend == "ref" {
					require.Len(t, h.used, len(linear), "ref reads them in each step")
					return
				}
				require.Empty(t, h.used)
				require.LessOrEqual(t, len(h.most), 3, "found %v", h.most) // queries, keys and values
			})
		}
	}
}
