package sample

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestFilteredDistributionIsTheReferences(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 5))
	var ws Scratch // shared and dirty throughout
	for _, vocab := range []int{1, 2, 7, 97, 1000, 4099} {
		for n := range max(40, 150-vocab/10) {
			p := randomParams(rng, vocab)
			logits := randomLogits(rng, vocab)
			got, err := filtered(New(p, vocab, nil), logits, &ws)
			require.NoError(t, err)
			want := referenceFilter(logits, p)
			requireSameDistribution(t, want, got, 1e-7, fmt.Sprintf("vocab %d, case %d, %+v", vocab, n, p))
		}
	}
}

// TestTokensThatAreNotListedDoNotMatter: a nucleus is what cut keeps of all tokens, and draw is pick of all.
func TestTokensThatAreNotListedDoNotMatter(t *testing.T) {
	rng := rand.New(rand.NewPCG(4, 6))
	var ws, listed Scratch
	for n := range 2000 {
		logits := randomLogits(rng, 1+rng.IntN(1500))
		if n%7 == 0 { // what remains of a grammar's tokens: whole blocks without one
			for i := range logits {
				if i%(drawBlock*2) > 3 {
					logits[i] = impossible()
				}
			}
		}
		best, err := argmax(logits)
		require.NoError(t, err)
		perNat, share := inverse(0.05+1.9*rng.Float32()), fraction(rng.Float32())
		if n%11 == 0 {
			share = fraction(1 - 1.0/(1<<24))
		}
		all := func() []candidate { return listed.collect(logits, impossible(), logits[best], perNat) }
		require.Equal(t, listed.cut(all(), share, false), ws.nucleus(logits, logits[best], perNat, share))
		for _, u := range []uint64{middle(0), rng.Uint64(), rng.Uint64(), middle(math.MaxUint64)} {
			require.Equal(t, pick(all(), u), ws.draw(logits, logits[best], perNat, u))
		}
	}
}

func randomParams(rng *rand.Rand, vocab int) Params {
	maybe := func(v float32) float32 {
		if rng.IntN(2) == 0 {
			return 0
		}
		return v
	}
	return Params{
		Temperature: 0.05 + 1.9*rng.Float32(),
		TopK:        rng.IntN(3) * rng.IntN(vocab+2) / 2,
		TopP:        maybe(rng.Float32()),
		MinP:        maybe(0.3 * rng.Float32()),
		TypicalP:    maybe(rng.Float32()),
		Seed:        rng.Uint64(),
	}
}

// randomLogits has a random spread, now and then many ties, and some -Inf.
func randomLogits(rng *rand.Rand, vocab int) []float32 {
	spread := math.Exp(4*rng.Float64() - 2)
	coarse := rng.IntN(3) == 0
	logits := make([]float32, vocab)
	for i := range logits {
		v := spread * rng.NormFloat64()
		if coarse {
			v = math.Round(v)
		}
		logits[i] = float32(v)
		if i > 0 && rng.IntN(10) == 0 {
			logits[i] = float32(math.Inf(-1))
		}
	}
	return logits
}

func requireSameDistribution(t *testing.T, want, got []float64, tolerance float64, what string) {
	t.Helper()
	for id := range want {
		same := (want[id] > 0) == (got[id] > 0) || got[id] == 0 && want[id] < 1e-13 // 2^-44 of the likeliest is the least weight
		if !same || math.Abs(want[id]-got[id]) > tolerance {
			t.Fatalf("%s: token %d: want %g, got %g", what, id, want[id], got[id])
		}
	}
}

// warpers.json comes from scripts/fixtures/make_sampling.py.
func TestFilteredDistributionIsTransformers(t *testing.T) {
	text, err := os.ReadFile("../../testdata/sampling/warpers.json")
	require.NoError(t, err)
	var fixture struct {
		Logits map[string][]float32
		Cases  []struct {
			Logits            string
			Temperature       float32
			TopK              int     `json:"top_k"`
			TopP              float32 `json:"top_p"`
			MinP              float32 `json:"min_p"`
			TypicalP          float32 `json:"typical_p"`
			RepetitionPenalty float32 `json:"repetition_penalty"`
			Prompt, Output    []int32
			Support           []int
			Probs             []float64
		}
	}
	require.NoError(t, json.Unmarshal(text, &fixture))
	require.Greater(t, len(fixture.Cases), 300)
	var ws Scratch
	for i, c := range fixture.Cases {
		p := Params{
			Temperature: c.Temperature, TopK: c.TopK, TopP: c.TopP, MinP: c.MinP, TypicalP: c.TypicalP,
			RepetitionPenalty: c.RepetitionPenalty,
		}
		require.NoError(t, p.Validate())
		logits := fixture.Logits[c.Logits]
		s := New(p, len(logits), c.Prompt)
		s.Replay(c.Output)
		got, err := filtered(s, logits, &ws)
		require.NoError(t, err)
		want := make([]float64, len(logits))
		for j, id := range c.Support {
			want[id] = c.Probs[j]
		}
		requireSameDistribution(t, want, got, 1e-5, fmt.Sprintf("case %d, %s, %+v", i, c.Logits, p))
	}
}

func TestKthLargestIsTheSortedOne(t *testing.T) {
	rng := rand.New(rand.NewPCG(11, 13))
	shapes := map[string]func(i, n int) float32{
		"random":     func(int, int) float32 { return rng.Float32() },
		"ascending":  func(i, _ int) float32 { return float32(i) },
		"descending": func(i, _ int) float32 { return -float32(i) },
		"equal":      func(int, int) float32 { return 0.25 },
		"few values": func(i, _ int) float32 { return float32(i * 7 % 3) },
		"organ pipe": func(i, n int) float32 { return float32(min(i, n-i)) },
	}
	var ws Scratch
	for name, shape := range shapes {
		for _, n := range []int{1, 2, 3, 61, 257, 5003} {
			v := make([]float32, n)
			for i := range v {
				v[i] = shape(i, n)
			}
			sorted := slices.Sorted(slices.Values(v))
			for _, k := range []int{1, 2, n/2 + 1, n - 1, n} {
				if k < 1 || k > n {
					continue
				}
				require.Zero(t, cmp.Compare(sorted[n-k], ws.kthLargest(v, k)), "%s, %d of %d", name, k, n)
			}
		}
	}
}

func TestTopKKeepsNoImpossibleToken(t *testing.T) {
	inf := float32(math.Inf(-1))
	logits := []float32{inf, 1, inf, 2, inf, inf}
	got, err := filtered(New(Params{Temperature: 1, TopK: 5}, 6, nil), logits, &Scratch{})
	require.NoError(t, err)
	for id, p := range got {
		require.Equal(t, logits[id] != inf, p > 0, "token %d", id)
	}
}
