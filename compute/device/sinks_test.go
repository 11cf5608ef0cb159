package device_test

import (
	"math"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/compute/device"
	"github.com/millrace/millrace/compute/family/fixture"
	"github.com/millrace/millrace/compute/model"
	"github.com/millrace/millrace/compute/weights"
)

// streamed is a Llama in float64 whose cache is that of StreamingLLM's paper: a list of keys before their rotation, of which those stay
// that are sinks or among the last of a window. Keys and queries are rotated by their places in the list, token after token.
type streamed struct {
	m             *fixture.Model
	sinks, window int
	invFreq       []float32
	layers        []streamedLayer
	matrices      map[string][]float64
	// attention is that of a layer for one more token, after it has stored the key and the value: see attend.
	attention func(layer int, q, k, v []float64) []float64
}

type streamedLayer struct{ keys, values [][]float64 } // [places][KV heads x head_dim]

func newStreamed(m *fixture.Model, sinks, window int) *streamed {
	invFreq, _ := m.Config.Rope.Table(m.Config.HeadDim)
	s := &streamed{m: m, sinks: sinks, window: window, invFreq: invFreq, layers: make([]streamedLayer, m.Config.Layers),
		matrices: map[string][]float64{}}
	s.attention = s.attend
	return s
}

// matrix is a tensor's values, row by row.
func (s *streamed) matrix(t *testing.T, name string) (values []float64, columns int) {
	t.Helper()
	found, ok := s.m.Weights.Tensor(name)
	require.True(t, ok, name)
	if values, ok = s.matrices[name]; !ok {
		require.Equal(t, weights.F32, found.DType, name)
		values = numbers(found)
		s.matrices[name] = values
	}
	return values, int(found.Shape[len(found.Shape)-1])
}

func (s *streamed) times(t *testing.T, name string, x []float64) []float64 {
	t.Helper()
	w, columns := s.matrix(t, name)
	require.Len(t, x, columns, name)
	y := make([]float64, len(w)/columns)
	for i := range y {
		for j, v := range x {
			y[i] += w[i*columns+j] * v
		}
	}
	return y
}

func (s *streamed) norm(t *testing.T, name string, x []float64) []float64 {
	t.Helper()
	w, _ := s.matrix(t, name)
	square := 0.0
	for _, v := range x {
		square += v * v
	}
	y := make([]float64, len(x))
	for i, v := range x {
		y[i] = v / math.Sqrt(square/float64(len(x))+float64(s.m.Config.Eps)) * w[i]
	}
	return y
}

func (s *streamed) rotated(head []float64, place int) []float64 {
	y, half := make([]float64, len(head)), len(head)/2
	for i := range half {
		sin, cos := math.Sincos(float64(place) * float64(s.invFreq[i]))
		y[i], y[i+half] = head[i]*cos-head[i+half]*sin, head[i+half]*cos+head[i]*sin
	}
	return y
}

// logits are those after one more token.
func (s *streamed) logits(t *testing.T, token int32) []float64 {
	t.Helper()
	c := s.m.Config
	table, hidden := s.matrix(t, "model.embed_tokens.weight")
	x := table[int(token)*hidden : (int(token)+1)*hidden]
	for i := range s.layers {
		at := "model.layers." + string(rune('0'+i)) + "."
		normed := s.norm(t, at+"input_layernorm.weight", x)
		q, k, v := s.times(t, at+"self_attn.q_proj.weight", normed), s.times(t, at+"self_attn.k_proj.weight", normed),
			s.times(t, at+"self_attn.v_proj.weight", normed)
		x = plus(x, s.times(t, at+"self_attn.o_proj.weight", s.attention(i, q, k, v)))
		normed = s.norm(t, at+"post_attention_layernorm.weight", x)
		gate, up := s.times(t, at+"mlp.gate_proj.weight", normed), s.times(t, at+"mlp.up_proj.weight", normed)
		for j := range gate {
			gate[j] = gate[j] / (1 + math.Exp(-gate[j])) * up[j]
		}
		x = plus(x, s.times(t, at+"mlp.down_proj.weight", gate))
	}
	x = s.norm(t, "model.norm.weight", x)
	require.False(t, c.TieEmbeddings)
	return s.times(t, "lm_head.weight", x)
}

func plus(a, b []float64) []float64 {
	sum := make([]float64, len(a))
	for i := range a {
		sum[i] = a[i] + b[i]
	}
	return sum
}

func (s *streamed) attend(layer int, q, k, v []float64) (out []float64) {
	l := &s.layers[layer]
	l.keys, l.values = append(l.keys, k), append(l.values, v)
	if len(l.keys) > s.sinks+s.window {
		l.keys = append(l.keys[:s.sinks:s.sinks], l.keys[s.sinks+1:]...)
		l.values = append(l.values[:s.sinks:s.sinks], l.values[s.sinks+1:]...)
	}
	d, group := s.m.Config.HeadDim, s.m.Config.Heads/s.m.Config.KVHeads
	for h := range s.m.Config.Heads {
		query, kv := s.rotated(q[h*d:(h+1)*d], len(l.keys)-1), h/group*d
		shares, total := make([]float64, len(l.keys)), 0.0
		for place, key := range l.keys {
			score := 0.0
			for i, k := range s.rotated(key[kv:kv+d], place) {
				score += query[i] * k
			}
			shares[place] = math.Exp(score / math.Sqrt(float64(d)))
			total += shares[place]
		}
		head := make([]float64, d)
		for place, value := range l.values {
			for i := range head {
				head[i] += shares[place] / total * value[kv+i]
			}
		}
		out = append(out, head...)
	}
	return out
}

// TestStreamingIsThatOfThePaper: the oracle has transformers' logits while nothing is evicted, and then ours.
func TestStreamingIsThatOfThePaper(t *testing.T) {
	var all []device.Options
	for _, backend := range backends(t) {
		all = append(all, variants(t, backend)...)
	}
	for _, e := range []model.Eviction{{Sinks: 4, Window: 21, Context: 512}, {Sinks: 1, Window: 2, Context: 512},
		{Sinks: 16, Window: 100, Context: 512}} {
		requireOracleOf(t, e, all, func(m *fixture.Model) *streamed { return newStreamed(m, e.Sinks, e.Window) })
	}
}

// requireOracleOf compares an oracle's logits of 300 tokens with those of a program with an eviction, on each variant.
func requireOracleOf(t *testing.T, e model.Eviction, all []device.Options, oracle func(*fixture.Model) *streamed) {
	t.Helper()
	m, err := fixture.Open("../../testdata/models/llama-f32")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, m.Weights.Close()) })
	tokens := m.Expected.Tokens()
	requireOracle(t, m, tokens)
	for len(tokens) < 300 { // longer than the model's 128 positions
		tokens = append(tokens, tokens[:50]...)
	}
	if e.H2O {
		m.Program.MaxPositions = len(tokens) // it keeps their positions
	}
	require.NoError(t, m.Program.SetEviction(e))
	o := oracle(m)
	want := make([][]float64, len(tokens))
	for row, token := range tokens {
		want[row] = o.logits(t, token)
	}
	for _, o := range all {
		t.Run(filepath.Join(o.Backend, o.ISA, o.DType, e.Label()), func(t *testing.T) {
			limit := tolerance(o, m)
			s := openWith(t, o, m.Program, m.Weights, len(tokens))
			if e.H2O {
				require.Equal(t, (e.Heavy+e.Recent+64+15)/16, s.engine.Slabs(1<<20))
			}
			for row, got := range s.run(t, tokens) {
				for i, v := range got {
					require.InDelta(t, want[row][i], v, limit, "row %d, token %d", row, i)
				}
			}
		})
	}
}

// requireOracle checks the oracle against transformers.
func requireOracle(t *testing.T, m *fixture.Model, tokens []int32) {
	t.Helper()
	oracle := newStreamed(m, 0, len(tokens))
	for row, want := range m.Expected.Logits {
		for i, got := range oracle.logits(t, tokens[row]) {
			require.InDelta(t, want[i], got, 1e-4, "row %d, token %d", row, i)
		}
	}
}

// TestARegionKeepsItsSinks, and can be closed when the slabs after them are gone.
func TestARegionKeepsItsSinks(t *testing.T) {
	m, err := fixture.Open("../../testdata/models/llama-f32")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, m.Weights.Close()) })
	require.NoError(t, m.Program.SetEviction(model.Eviction{Sinks: 4, Window: 16, Context: 1024}))
	for _, backend := range backends(t) {
		s := open(t, backend, "", m.Program, m.Weights, 160)
		tokens := m.Expected.Tokens()[:64]
		want := append(s.run(t, tokens), s.run(t, tokens)...)
		s.restart()
		got := s.run(t, tokens)
		require.NoError(t, s.region.Advance(2))
		got = append(got, s.run(t, tokens)...)
		for i := range want {
			requireSameBits(t, want[i], got[i], i)
		}
		n, err := s.region.Unmap(100)
		require.NoError(t, err)
		require.Equal(t, 8, n)
		_, err = s.engine.Run([]device.Rows{{Region: s.region, Tokens: tokens[:1], Position: 20}})
		require.ErrorIs(t, err, device.ErrInvalid)
	}
}
