package device_test

import (
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/compute/device"
	"github.com/millrace/millrace/compute/family/fixture"
	"github.com/millrace/millrace/compute/model"
	"github.com/millrace/millrace/compute/weights"
)

// tolerance is how far a logit may be from transformers' in float32.
func tolerance(o device.Options, m *fixture.Model) float64 {
	switch {
	case o.Backend == "ref":
		return 1e-3 // float32 throughout
	case o.DType == "f16" || device.IsOptional(o.Backend) && !hasBF16(m):
		return 0.03 // f16 inputs to products
	}
	return 0.02 * m.Expected.LargestLogit // bf16 inputs to products
}

func hasBF16(m *fixture.Model) bool {
	return slices.ContainsFunc(m.Program.Tensors, func(t model.Tensor) bool {
		w, ok := m.Weights.Tensor(t.Name)
		return ok && w.DType == weights.BF16
	})
}

// mayChooseOthers says whether a row may choose another expert than in transformers by a rounding, and then differs, with the rows that see
// it. The fixtures were chosen to bear the roundings of cpu (scripts/fixtures/make_models.py). In f16 they bear those of devices too.
func mayChooseOthers(o device.Options, m *fixture.Model) bool {
	return device.IsOptional(o.Backend) && o.DType != "f16" && hasBF16(m) && m.Program.HasExperts()
}

// sequence is a model on a device with one sequence in its KV cache.
type sequence struct {
	engine *device.Engine
	region *device.Region
	length int
}

// open loads a program and maps a region for n tokens. Everything is closed
// with the test.
func open(t *testing.T, backend, isa string, p *model.Program, w device.Tensors, n int) *sequence {
	t.Helper()
	return openWith(t, options(t, backend, isa), p, w, n)
}

func openWith(t *testing.T, o device.Options, p *model.Program, w device.Tensors, n int) *sequence {
	t.Helper()
	d, err := device.Open(o)
	require.NoError(t, err)
	t.Cleanup(d.Close)
	e, err := d.Load(p, w, device.Limits{MaxRows: n, MaxOutputs: n})
	require.NoError(t, err)
	t.Cleanup(e.Close)
	slabs := make([]int32, e.Slabs(n))
	for i := range slabs {
		slabs[i] = int32(len(slabs) - 1 - i) // out of order: addresses are virtual
	}
	require.NoError(t, e.ReserveKV(len(slabs)))
	r, err := e.NewRegion(n)
	require.NoError(t, err)
	t.Cleanup(r.Close)
	require.NoError(t, r.Append(slabs))
	return &sequence{engine: e, region: r}
}

// run appends tokens and returns the logits of each of them.
func (s *sequence) run(t *testing.T, tokens []int32) [][]float32 {
	t.Helper()
	out, err := s.engine.Run([]device.Rows{{Region: s.region, Tokens: tokens, Position: s.length}})
	require.NoError(t, err)
	s.length += len(tokens)
	logits := make([][]float32, out.Rows())
	for i := range logits {
		logits[i] = append([]float32(nil), out.Row(i)...)
	}
	return logits
}

// restart begins the sequence again; what is in the region is written over.
func (s *sequence) restart() { s.length = 0 }

// isas are the instruction sets of a backend that this machine can run.
func isas(t *testing.T, backend string) []string {
	t.Helper()
	if backend == "ref" {
		return []string{""}
	}
	d, err := device.Open(options(t, backend, ""))
	require.NoError(t, err)
	defer d.Close()
	info, err := d.Info()
	require.NoError(t, err)
	return info.ISAs
}

// variants are a backend's instruction sets, and the types of its products.
func variants(t *testing.T, backend string) []device.Options {
	t.Helper()
	var all []device.Options
	for _, isa := range isas(t, backend) {
		all = append(all, options(t, backend, isa))
	}
	if device.IsOptional(backend) { // with the type of the checkpoint so far
		o := options(t, backend, map[string]string{"sycl": "simd"}[backend])
		o.DType = "f16"
		all = append(all, o)
	}
	return all
}

// everyFixture lists the fixtures.
func everyFixture(t *testing.T) []string {
	t.Helper()
	dirs, err := fixture.Dirs("../../testdata/models")
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(dirs), 28)
	return dirs
}

// distinctFixtures are all fixtures. In short mode they are those that together have every form of an op.
func distinctFixtures(t *testing.T) []string {
	t.Helper()
	if !testing.Short() {
		return everyFixture(t)
	}
	dirs, err := fixture.Distinct(everyFixture(t))
	require.NoError(t, err)
	return dirs
}

// eachFixture runs the test for every fixture, backend and variant of it. In short mode that is every fixture on ref and on the best
// instruction set of the CPU, and on the other variants the distinct ones.
func eachFixture(t *testing.T, test func(t *testing.T, m *fixture.Model, o device.Options, s *sequence)) {
	every, distinct := everyFixture(t), distinctFixtures(t)
	for _, backend := range backends(t) {
		for i, o := range variants(t, backend) {
			dirs := distinct
			if i == 0 && !device.IsOptional(backend) {
				dirs = every
			}
			for _, dir := range dirs {
				t.Run(filepath.Join(backend, o.ISA, o.DType, filepath.Base(dir)), func(t *testing.T) {
					m, err := fixture.Open(dir)
					require.NoError(t, err)
					t.Cleanup(func() { require.NoError(t, m.Weights.Close()) })
					require.NoError(t, m.Program.SetWeights(model.WeightPlan{}.WithoutBlocks())) // rows that meet blocks lose more
					test(t, m, o, openWith(t, o, m.Program, m.Weights, len(m.Expected.Tokens())))
				})
			}
		}
	}
}

func TestLogitsEqualThoseOfTransformers(t *testing.T) {
	worst := map[string]float64{}
	eachFixture(t, func(t *testing.T, m *fixture.Model, o device.Options, s *sequence) {
		logits := s.run(t, m.Expected.Tokens())
		require.Len(t, logits, len(m.Expected.Logits))
		limit := tolerance(o, m)
		off := make([]float64, len(logits)) // the largest error of each row
		for row, want := range m.Expected.Logits {
			require.Len(t, logits[row], len(want))
			for i := range want {
				diff := math.Abs(float64(logits[row][i]) - float64(want[i]))
				if !(diff <= limit) && !mayChooseOthers(o, m) { // a NaN too
					t.Fatalf("row %d, token %d: %g, transformers %g: off by %g, at most %g",
						row, i, logits[row][i], want[i], diff, limit)
				}
				off[row] = max(off[row], diff) // NaN if one is
			}
		}
		largest := slices.Max(off)
		if mayChooseOthers(o, m) {
			require.False(t, math.IsNaN(largest))
			slices.Sort(off)
			largest = off[len(off)/2]
			require.LessOrEqual(t, largest, limit, "the median row")
		}
		variant := filepath.Join(o.Backend, o.DType)
		worst[variant] = max(worst[variant], largest/limit)
		t.Logf("largest error %.3g, %.1f%% of the allowed", largest, 100*largest/limit)
	})
	t.Logf("worst error over what is allowed: %v", worst)
}

// TestGreedyTokensEqualThoseOfTransformers generates 40 tokens, prompt in one
// step, then one by one. Where the two best logits are closer than twice the
// tolerance the other one may win; it is listed, and generation continues with
// the token of transformers.
func TestGreedyTokensEqualThoseOfTransformers(t *testing.T) {
	ties := 0
	eachFixture(t, func(t *testing.T, m *fixture.Model, o device.Options, s *sequence) {
		e := &m.Expected
		limit := 2 * tolerance(o, m)
		logits := s.run(t, e.Prompt)
		require.Len(t, e.Greedy, 40)
		others := 0
		for i, want := range e.Greedy {
			got := argmax(logits[len(logits)-1])
			switch {
			case got == want:
			case e.Margins[i] >= limit && mayChooseOthers(o, m):
				others++
				require.LessOrEqual(t, others, len(e.Greedy)/4, "tokens of other experts")
			default:
				require.Less(t, e.Margins[i], limit, "token %d is %d, transformers' %d", i, got, want)
				ties++
				t.Logf("near-tie: token %d is %d, transformers' %d by %.3g", i, got, want, e.Margins[i])
			}
			if i+1 < len(e.Greedy) {
				logits = s.run(t, []int32{want})
			}
		}
	})
	t.Logf("%d near-ties", ties)
}

func argmax(logits []float32) int32 {
	best := 0
	for i, v := range logits {
		if v > logits[best] {
			best = i
		}
	}
	return int32(best)
}

func TestChunkingChangesNoBit(t *testing.T) {
	eachFixture(t, func(t *testing.T, m *fixture.Model, _ device.Options, s *sequence) {
		tokens := m.Expected.Tokens()
		whole := s.run(t, tokens)
		rng := rand.New(rand.NewPCG(7, uint64(len(tokens))))
		for _, longest := range []int{1, 3, 19} {
			s.restart()
			for at := 0; at < len(tokens); {
				n := min(1+rng.IntN(longest), len(tokens)-at)
				for i, row := range s.run(t, tokens[at:at+n]) {
					requireSameBits(t, whole[at+i], row, at+i)
				}
				at += n
			}
		}
	})
}

func requireSameBits(t *testing.T, want, got []float32, row int) {
	t.Helper()
	require.Len(t, got, len(want))
	for i := range want {
		if math.Float32bits(want[i]) != math.Float32bits(got[i]) {
			t.Fatalf("row %d, token %d: %g in a chunk, %g in one step", row, i, got[i], want[i])
		}
	}
}
