package device_test

import (
	"encoding/binary"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/compute/device"
	"github.com/millrace/millrace/compute/family/fixture"
	"github.com/millrace/millrace/compute/model"
	"github.com/millrace/millrace/compute/weights"
)

// farthest is how far a cosine between a vector and transformers' may be from 1.
const farthest = 1e-3

// TestPooledHiddenStatesEqualThoseOfTransformers compares the mean and the last of the hidden states with transformers'. The fixtures have
// its logits, W h + b, of a head W with more rows than columns: the hidden states h are their least-squares solution.
func TestPooledHiddenStatesEqualThoseOfTransformers(t *testing.T) {
	worst := 0.0
	solved := map[string][][]float64{} // of each fixture, for all variants
	eachFixture(t, func(t *testing.T, m *fixture.Model, o device.Options, _ *sequence) {
		tokens := m.Expected.Tokens()
		got := hiddenStates(t, m, o, tokens)
		want := solved[m.Name]
		if want == nil {
			head := headOf(t, m)
			want = make([][]float64, len(tokens))
			for i, logits := range m.Expected.Logits {
				want[i] = head.solve(logits)
			}
			solved[m.Name] = want
		}
		for _, n := range []int{1, 17, len(tokens)} {
			for name, pair := range map[string][2][]float64{
				"last": {got[n-1], want[n-1]}, "mean": {mean(got[:n]), mean(want[:n])},
			} {
				distance := 1 - cosine(pair[0], pair[1])
				require.LessOrEqual(t, distance, farthest, "%s of %d tokens", name, n)
				worst = max(worst, distance)
			}
		}
	})
	t.Logf("the farthest cosine is %.2g from 1", worst)
}

// hiddenStates are those of all tokens, in two steps.
func hiddenStates(t *testing.T, m *fixture.Model, o device.Options, tokens []int32) [][]float64 {
	t.Helper()
	d, err := device.Open(o)
	require.NoError(t, err)
	t.Cleanup(d.Close)
	n := len(tokens)
	e, err := d.Load(m.Program, m.Weights, device.Limits{MaxRows: n, MaxOutputs: 1, MaxHidden: n})
	require.NoError(t, err)
	t.Cleanup(e.Close)
	slabs := make([]int32, e.Slabs(n))
	for i := range slabs {
		slabs[i] = int32(i)
	}
	require.NoError(t, e.ReserveKV(len(slabs)))
	r, err := e.NewRegion(n)
	require.NoError(t, err)
	t.Cleanup(r.Close)
	require.NoError(t, r.Append(slabs))
	var all [][]float64
	for first, end := 0, 11; first < n; first, end = end, n {
		out, err := e.Run([]device.Rows{{Region: r, Tokens: tokens[first:end], Position: first, Hidden: true}})
		require.NoError(t, err)
		require.Zero(t, out.Rows(), "no logits")
		for i := range end - first {
			require.Len(t, out.Hidden(i), m.Program.HiddenWidth())
			row := make([]float64, len(out.Hidden(i)))
			for k, v := range out.Hidden(i) {
				row[k] = float64(v)
			}
			all = append(all, row)
		}
	}
	_, err = e.Run([]device.Rows{
		{Region: r, Tokens: tokens[:1], Hidden: true}, {Region: r, Tokens: tokens[:1]},
	})
	require.ErrorIs(t, err, device.ErrInvalid, "logits after hidden states")
	return all
}

// head is the last op of a model: logits = w h + b.
type head struct {
	w      [][]float64
	b      []float64   // nil: none
	cap    float64     // logits are cap tanh(. / cap) of these; 0: they are not
	normal [][]float64 // w^T w
}

func headOf(t *testing.T, m *fixture.Model) *head {
	t.Helper()
	last := m.Program.Ops[len(m.Program.Ops)-1]
	part := last.Parts[0]
	values := func(index int) []float64 {
		w, ok := m.Weights.Tensor(m.Program.Tensors[index].Name)
		require.True(t, ok)
		return numbers(w)
	}
	width, flat := m.Program.HiddenWidth(), values(part.Weight)
	require.Greater(t, m.Program.Vocab, width, "the solution is the only one")
	h := &head{normal: make([][]float64, width)}
	for row := range m.Program.Vocab {
		h.w = append(h.w, flat[row*width:(row+1)*width])
	}
	if last.Activation == model.ActSoftcap {
		h.cap = float64(last.ActA)
	}
	if part.Bias != model.None {
		h.b = values(part.Bias)
	}
	for i := range h.normal {
		h.normal[i] = make([]float64, width)
		for k := range h.normal[i] {
			for _, row := range h.w {
				h.normal[i][k] += row[i] * row[k]
			}
		}
	}
	return h
}

// numbers are the elements of a tensor.
func numbers(t weights.Tensor) []float64 {
	out := make([]float64, 0, len(t.Data)/int(t.DType.Bytes(1)))
	for at := 0; at < len(t.Data); at += int(t.DType.Bytes(1)) {
		switch t.DType {
		case weights.F32:
			out = append(out, float64(math.Float32frombits(binary.LittleEndian.Uint32(t.Data[at:]))))
		case weights.BF16:
			out = append(out, float64(math.Float32frombits(uint32(binary.LittleEndian.Uint16(t.Data[at:]))<<16)))
		case weights.F16:
			out = append(out, half(binary.LittleEndian.Uint16(t.Data[at:])))
		case weights.Other:
		}
	}
	return out
}

// half is a binary16.
func half(bits uint16) float64 {
	const fraction, bias = 10, 15
	sign, exponent, rest := 1-2*float64(bits>>15), int(bits>>fraction&0x1f), float64(bits&0x3ff)
	if exponent == 0 {
		return sign * math.Ldexp(rest, 1-bias-fraction)
	}
	return sign * math.Ldexp(1024+rest, exponent-bias-fraction)
}

// solve returns the h whose logits are nearest, by the normal equations and Gaussian elimination with pivots.
func (h *head) solve(logits []float32) []float64 {
	n := len(h.normal)
	a := make([][]float64, n)
	for i := range a {
		a[i] = append([]float64(nil), h.normal[i]...)
		sum := 0.0
		for row, w := range h.w {
			v := float64(logits[row])
			if h.cap > 0 {
				v = h.cap * math.Atanh(v/h.cap)
			}
			if h.b != nil {
				v -= h.b[row]
			}
			sum += w[i] * v
		}
		a[i] = append(a[i], sum)
	}
	for i := range n {
		best := i
		for k := i + 1; k < n; k++ {
			if math.Abs(a[k][i]) > math.Abs(a[best][i]) {
				best = k
			}
		}
		a[i], a[best] = a[best], a[i]
		for k := i + 1; k < n; k++ {
			f := a[k][i] / a[i][i]
			for j := i; j <= n; j++ {
				a[k][j] -= f * a[i][j]
			}
		}
	}
	x := make([]float64, n)
	for i := n - 1; i >= 0; i-- {
		x[i] = a[i][n]
		for k := i + 1; k < n; k++ {
			x[i] -= a[i][k] * x[k]
		}
		x[i] /= a[i][i]
	}
	return x
}

func mean(rows [][]float64) []float64 {
	out := make([]float64, len(rows[0]))
	for _, row := range rows {
		for i, v := range row {
			out[i] += v / float64(len(rows))
		}
	}
	return out
}

func cosine(a, b []float64) float64 {
	var ab, aa, bb float64
	for i := range a {
		ab, aa, bb = ab+a[i]*b[i], aa+a[i]*a[i], bb+b[i]*b[i]
	}
	return ab / math.Sqrt(aa*bb)
}
