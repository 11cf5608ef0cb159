package sample

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// toy is a model whose logits depend on every token so far.
type toy struct {
	seed  uint64
	vocab int
}

func (m toy) logits(history []int32) []float32 {
	h := m.seed
	for _, t := range history {
		h = h*6364136223846793005 + uint64(t) + 1442695040888963407
	}
	rng := rand.New(rand.NewPCG(h, 7))
	out := make([]float32, m.vocab)
	for i := range out {
		out[i] = 3 * float32(rng.NormFloat64())
	}
	return out
}

// runBeam drives a search; the rows' pasts are put together from Index alone.
func runBeam(t *testing.T, m toy, p BeamParams, limit int, ends []int32) *Beam {
	t.Helper()
	b, err := NewBeam(p, m.vocab, limit, ends)
	require.NoError(t, err)
	require.NoError(t, b.Advance(func(int) []float32 { return m.logits(nil) }))
	var steps [][]int32
	for !b.Done() {
		steps = append(steps, slices.Clone(b.Tokens()))
		require.Equal(t, len(steps), b.Chosen())
		require.NoError(t, b.Advance(func(row int) []float32 {
			var history []int32
			for step, r := range b.Index()[row] {
				history = append(history, steps[step][r])
			}
			require.Len(t, history, len(steps)-1)
			return m.logits(append(history, steps[len(steps)-1][row]))
		}))
	}
	return b
}

type plainBeam struct {
	tokens []int32
	score  float32
}

func best(list []plainBeam, n int) []plainBeam {
	slices.SortStableFunc(list, func(a, b plainBeam) int {
		switch {
		case a.score > b.score:
			return -1
		case a.score < b.score:
			return 1
		}
		return 0
	})
	return list[:min(n, len(list))]
}

// plainSearch is transformers' _beam_search for one prompt, written down with
// whole sequences and no index: the top 2 * beams (or more) continuations, the
// ended ones among the first beams, the others that continue.
func plainSearch(m toy, p BeamParams, limit int, ends []int32) []plainBeam {
	running := []plainBeam{{}}
	var finished []plainBeam
	for length := 1; ; length++ {
		var all []plainBeam
		for _, r := range running {
			logits := m.logits(r.tokens)
			norm, _ := normOf(logits)
			for id, v := range logits {
				all = append(all, plainBeam{append(slices.Clone(r.tokens), int32(id)), float32(float64(v)-norm) + r.score})
			}
		}
		top := best(all, max(2, 1+len(ends))*p.Width)
		running = nil
		for i, c := range top {
			hit := length == limit || slices.Contains(ends, c.tokens[length-1])
			if hit && i < p.Width {
				finished = append(finished, plainBeam{c.tokens, c.score / float32(math.Pow(float64(length), p.LengthPenalty))})
			}
			if !hit && len(running) < p.Width {
				running = append(running, c)
			}
		}
		finished = best(finished, p.Width)
		if length == limit {
			return finished
		}
		if len(finished) < p.Width {
			continue
		}
		at := length
		if p.Early == StopNever && p.LengthPenalty > 0 {
			at = limit
		}
		if p.Early == StopAtOnce || running[0].score/float32(math.Pow(float64(at), p.LengthPenalty)) <= finished[p.Width-1].score {
			return finished
		}
	}
}

func TestBeamsFollowTheirAncestorsThroughTheIndex(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 5))
	early := 0
	for i := range 600 {
		m := toy{rng.Uint64(), 11 + rng.IntN(20)}
		p := BeamParams{1 + rng.IntN(9), []float64{1, 0, 0.7, -0.5, 2}[i%5], EarlyStopping(i % 3)}
		limit := 1 + rng.IntN(14)
		ends := make([]int32, rng.IntN(3))
		for j := range ends {
			ends[j] = int32(j*3 + rng.IntN(3))
		}
		want := plainSearch(m, p, limit, ends)
		got := runBeam(t, m, p, limit, ends).Results(p.Width)
		name := fmt.Sprintf("%d: %+v limit %d ends %v", i, p, limit, ends)
		require.Len(t, got, len(want), name)
		for n := range want {
			require.Equal(t, want[n].tokens, got[n].Tokens, name)
			require.Equal(t, want[n].score, got[n].Score, name)
			ended := slices.Contains(ends, got[n].Tokens[len(got[n].Tokens)-1])
			require.Equal(t, ended, got[n].Ended, name)
			if len(got[n].Tokens) < limit {
				require.True(t, ended, name)
				early++
			}
		}
	}
	require.Greater(t, early, 100, "hypotheses that ended before their limit")
}

func TestBeamSearchRefusesWhatItCannotRank(t *testing.T) {
	nan := float32(math.NaN())
	inf := float32(math.Inf(1))
	for name, logits := range map[string][]float32{
		"NaN": {0, nan, 1}, "+Inf": {0, inf, 1}, "nothing": {-inf, -inf, -inf}, "length": {0, 1},
	} {
		b, err := NewBeam(BeamParams{Width: 2}, 3, 5, nil)
		require.NoError(t, err)
		require.ErrorIs(t, b.Advance(func(int) []float32 { return logits }), ErrLogits, name)
	}
	_, err := NewBeam(BeamParams{Width: 3}, 4, 5, []int32{0, 1, 1, 9})
	require.ErrorContains(t, err, "num_beams: found 3, expected 1 to 2")
	for _, p := range []BeamParams{{Width: 0}, {Width: 65}, {Width: 2, LengthPenalty: math.NaN()}, {Width: 2, Early: 3}} {
		var e *ParamError
		require.ErrorAs(t, p.Validate(), &e, "%+v", p)
	}
	require.NoError(t, BeamParams{Width: 64, LengthPenalty: -10, Early: StopNever}.Validate())
}

func TestEqualBeamsGoByRowAndToken(t *testing.T) {
	b, err := NewBeam(BeamParams{Width: 3}, 7, 9, nil)
	require.NoError(t, err)
	same := func(int) []float32 { return make([]float32, 7) }
	require.NoError(t, b.Advance(same))
	require.Equal(t, []int32{0, 1, 2}, b.Tokens())
	require.NoError(t, b.Advance(same))
	require.Equal(t, []int32{0, 1, 2}, b.Tokens())
	require.Equal(t, [][]int32{{0}, {0}, {0}}, b.Index())
}

func BenchmarkBeamStep(b *testing.B) {
	const vocab = 32000
	rng := rand.New(rand.NewPCG(1, 2))
	for _, width := range []int{1, 4} {
		b.Run(fmt.Sprintf("beams=%d", width), func(b *testing.B) {
			rows := make([][]float32, width)
			for i := range rows {
				rows[i] = make([]float32, vocab)
				for j := range rows[i] {
					rows[i][j] = 3 * float32(rng.NormFloat64())
				}
			}
			s, err := NewBeam(BeamParams{Width: width, LengthPenalty: 1}, vocab, math.MaxInt32, []int32{2})
			if err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				if len(s.tokens) > 500 { // a new one, so that the index stays short
					s, _ = NewBeam(s.p, vocab, math.MaxInt32, s.ends)
				}
				if err := s.Advance(func(i int) []float32 { return rows[i] }); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
