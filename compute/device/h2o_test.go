package device_test

import (
	"math"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/compute/device"
	"github.com/millrace/millrace/compute/family/fixture"
	"github.com/millrace/millrace/compute/model"
)

// heavyHitters is a Llama in float64 whose cache is that of H2O's paper, but that tokens go after each 64th one only: for each layer and KV
// head a list of tokens with what all rows so far gave them of their attention.
type heavyHitters struct {
	*streamed
	heavy, recent int
	heads         [][]heavyHead // [layers][KV heads]
}

type heavyHead struct {
	tokens int // so far
	kept   []heavyToken
}

type heavyToken struct {
	key, value []float64
	sum        float64
}

func newHeavyHitters(m *fixture.Model, heavy, recent int) *heavyHitters {
	h := &heavyHitters{streamed: newStreamed(m, 0, 0), heavy: heavy, recent: recent}
	for range m.Config.Layers {
		h.heads = append(h.heads, make([]heavyHead, m.Config.KVHeads))
	}
	h.attention = h.attend
	return h
}

func (h *heavyHitters) attend(layer int, q, k, v []float64) (out []float64) {
	d, group := h.m.Config.HeadDim, h.m.Config.Heads/h.m.Config.KVHeads
	for kv := range h.heads[layer] {
		head := &h.heads[layer][kv]
		head.kept = append(head.kept, heavyToken{key: h.rotated(k[kv*d:(kv+1)*d], head.tokens), value: v[kv*d : (kv+1)*d]})
		for i := kv * group; i < (kv+1)*group; i++ {
			out = append(out, head.row(h.rotated(q[i*d:(i+1)*d], head.tokens))...)
		}
		if head.tokens++; head.tokens%64 == 0 {
			head.evict(h.heavy, h.recent)
		}
	}
	return out
}

// row is attention of a query, whose shares are added to the sums.
func (h *heavyHead) row(query []float64) []float64 {
	shares, total := make([]float64, len(h.kept)), 0.0
	for i, t := range h.kept {
		score := 0.0
		for j, k := range t.key {
			score += query[j] * k
		}
		shares[i] = math.Exp(score / math.Sqrt(float64(len(query))))
		total += shares[i]
	}
	out := make([]float64, len(query))
	for i := range h.kept {
		h.kept[i].sum += shares[i] / total
		for j, v := range h.kept[i].value {
			out[j] += shares[i] / total * v
		}
	}
	return out
}

// evict drops the token of the least sum, the last ones left out, until few enough are left.
func (h *heavyHead) evict(heavy, recent int) {
	for len(h.kept) > heavy+recent {
		least := 0
		for i := range len(h.kept) - recent {
			if h.kept[i].sum < h.kept[least].sum {
				least = i
			}
		}
		h.kept = append(h.kept[:least:least], h.kept[least+1:]...)
	}
}

// TestHeavyTokensAreThoseOfThePaper: the oracle has transformers' logits while nothing is evicted (requireOracle), and then ours.
func TestHeavyTokensAreThoseOfThePaper(t *testing.T) {
	all := append(variants(t, "cpu"), variants(t, "ref")...)
	for _, e := range []model.Eviction{{H2O: true, Heavy: 20, Recent: 30}, {H2O: true, Heavy: 1, Recent: 1},
		{H2O: true, Heavy: 90, Recent: 10}} {
		requireOracleOf(t, e, all, func(m *fixture.Model) *streamed { return newHeavyHitters(m, e.Heavy, e.Recent).streamed })
	}
}

func TestABackendWithoutHeavyTokensRefusesThem(t *testing.T) {
	m, err := fixture.Open("../../testdata/models/llama-f32")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, m.Weights.Close()) })
	require.NoError(t, m.Program.SetEviction(model.Eviction{H2O: true, Heavy: 20, Recent: 20}))
	for _, backend := range device.Optional() {
		if !tested(t, backend) {
			continue
		}
		d, err := device.Open(options(t, backend, ""))
		require.NoError(t, err)
		_, err = d.Load(m.Program, m.Weights, device.Limits{MaxRows: 8, MaxOutputs: 8})
		d.Close()
		require.ErrorIs(t, err, device.ErrUnsupported, backend)
	}
}

// TestHeavyTokensNeedNoRotation: OPT adds its positions to the embeddings. Its logits are those of all keys until the first eviction, and
// have the same bits in any steps.
func TestHeavyTokensNeedNoRotation(t *testing.T) {
	logits := func(o device.Options, e model.Eviction, rows int) (all [][]float32) {
		m, err := fixture.Open("../../testdata/models/opt-prenorm")
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, m.Weights.Close()) })
		tokens := m.Expected.Tokens()
		for len(tokens) < m.Program.MaxPositions {
			tokens = append(tokens, tokens[:min(len(tokens), m.Program.MaxPositions-len(tokens))]...)
		}
		require.NoError(t, m.Program.SetEviction(e))
		s := openWith(t, o, m.Program, m.Weights, len(tokens))
		for step := range slices.Chunk(tokens, rows) {
			all = append(all, s.run(t, step)...)
		}
		return all
	}
	for _, backend := range []string{"cpu", "ref"} {
		for _, o := range variants(t, backend) {
			t.Run(filepath.Join(o.Backend, o.ISA), func(t *testing.T) {
				e := model.Eviction{H2O: true, Heavy: 10, Recent: 10}
				at, all := logits(o, e, 200), logits(o, model.Eviction{}, 200)
				require.Equal(t, all[:64], at[:64])
				require.NotEqual(t, all[64:], at[64:])
				require.Equal(t, at, logits(o, e, 17))
			})
		}
	}
}
