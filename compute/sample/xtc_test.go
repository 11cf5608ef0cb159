package sample

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// referenceXTC cuts a distribution that has no temperature: the candidates in the order of their probability, and all that reach the
// threshold are dropped but the last of them.
func referenceXTC(probs []float64, threshold float32) []float64 {
	order := sortedBy(probs, func(i int) float64 { return -probs[i] })
	reached := 0
	for reached < len(order) && probs[order[reached]] >= float64(threshold) && probs[order[reached]] > 0 {
		reached++
	}
	out := slices.Clone(probs)
	for _, id := range order[:max(reached-1, 0)] {
		out[id] = 0
	}
	total := sumOf(out)
	for id := range out {
		out[id] /= total
	}
	return out
}

func TestXTCDropsTheTopChoicesButTheLeastOfThem(t *testing.T) {
	rng := rand.New(rand.NewPCG(41, 43))
	var ws Scratch
	for n := range 500 {
		vocab := 1 + rng.IntN(60)
		p := randomParams(rng, vocab)
		p.Temperature, p.XTC = 1, XTC{Probability: 1, Threshold: 0.5 * rng.Float32()}
		logits := randomLogits(rng, vocab)
		want := referenceXTC(referenceFilter(logits, p), p.XTC.Threshold)
		s := New(p, vocab, nil)
		best, err := argmax(logits)
		require.NoError(t, err)
		got, total := make([]float64, vocab), 0.0
		set := withoutTop(s.filter(logits, logits[best], &ws), p.XTC.Threshold, logits, logits[best])
		for _, c := range set {
			total += float64(c.weight)
		}
		for _, c := range set {
			got[c.id] = float64(c.weight) / total
		}
		requireSameDistribution(t, want, got, 1e-7, fmt.Sprintf("case %d, %+v", n, p))
	}
}

func TestXTCsThresholdIsOneWithoutTemperature(t *testing.T) {
	logits := []float32{float32(math.Log(0.6)), float32(math.Log(0.3)), float32(math.Log(0.1))}
	for _, temperature := range []float32{0.2, 1, 2} {
		p := Params{Temperature: temperature, XTC: XTC{Probability: 1, Threshold: 0.25}}
		for position := range 50 {
			require.NotEqualValues(t, 0, mustSample(t, New(p, 3, nil), logits, position, &Scratch{}).Token, "0.3 reaches it, 0.1 does not")
		}
		p.XTC.Threshold = 0.35
		drawn := map[int32]bool{}
		for position := range 300 {
			drawn[mustSample(t, New(p, 3, nil), logits, position, &Scratch{}).Token] = true
		}
		require.True(t, drawn[0], "one token alone is not dropped")
	}
}

func TestXTCIsDrawnForItself(t *testing.T) {
	x := XTC{Probability: 0.3, Threshold: 0.1}
	applied, both := 0, 0
	const n = 20000
	for position := range n {
		if x.applies(7, position) {
			applied++
			if float64(uniform(7, position)) < 0.3*(1<<64) {
				both++
			}
		}
	}
	require.InDelta(t, 0.3*n, applied, 4*math.Sqrt(0.3*0.7*n))
	require.InDelta(t, 0.3*float64(applied), both, 4*math.Sqrt(0.3*0.7*float64(applied)), "independent of the token's number")
	require.False(t, XTC{Probability: 1, Threshold: 0.51}.applies(1, 1), "two tokens cannot reach it")
	require.False(t, XTC{Threshold: 0.1}.applies(1, 1))
	require.True(t, XTC{Probability: 1}.applies(1, 1))
}

// A stream may be resumed by another build: its tokens must not change.
func TestTokensOfASeedStayTheSameWithAllSamplers(t *testing.T) {
	logits := make([]float32, 1009)
	for i := range logits {
		logits[i] = float32(i*7919%1009) / 200
	}
	d := DRY{Multiplier: 2, Base: 1.75, Allowed: 1, Last: -1}
	p := Params{
		Temperature: 0.9, TopK: 12, Seed: 20250611, DRY: &d, TopNSigma: 2, XTC: XTC{Probability: 0.5, Threshold: 0.08},
		Tokens: &TextTokens{Words: [][]int32{{897}}, Breaks: []int32{3}},
	}
	var numbers []float64
	for position := range 3 {
		numbers = append(numbers, math.Floor(1e6*float64(middle(random(20250611, position, forExclusion)))/(1<<64)))
	}
	require.Equal(t, []float64{857249, 302734, 574988}, numbers)
	s := New(p, len(logits), []int32{14, 41})
	var ws Scratch
	var got []int32
	for position := range 16 {
		got = append(got, mustSample(t, s, logits, position+2, &ws).Token)
		s.Accept(got[position])
	}
	require.Equal(t, []int32{33, 99, 99, 864, 33, 864, 587, 66, 765, 554, 310, 99, 277, 99, 376, 798}, got)
}

func TestTopNSigmaKeepsWhatIsNearTheLargest(t *testing.T) {
	rng := rand.New(rand.NewPCG(47, 53))
	var ws Scratch
	for n := range 500 {
		vocab := 1 + rng.IntN(300)
		logits, sigmas := randomLogits(rng, vocab), 3*rng.Float32()+0.01
		mean, top, count := 0.0, math.Inf(-1), 0.0
		for _, v := range logits {
			if !math.IsInf(float64(v), -1) {
				mean, top, count = mean+float64(v), math.Max(top, float64(v)), count+1
			}
		}
		mean /= count
		variance := 0.0
		for _, v := range logits {
			if !math.IsInf(float64(v), -1) {
				variance += (float64(v) - mean) * (float64(v) - mean) / count
			}
		}
		bound := top - float64(sigmas)*math.Sqrt(variance)
		for _, temperature := range []float32{0.5, 1, 1.7} {
			got, err := filtered(New(Params{Temperature: temperature, TopNSigma: sigmas}, vocab, nil), logits, &ws)
			require.NoError(t, err)
			for id, v := range logits {
				if math.Abs(float64(v)-bound) > 1e-4 && (top-float64(v))/float64(temperature) < 30 { // farther ones have no weight
					require.Equal(t, float64(v) > bound, got[id] > 0, "case %d: token %d, logit %g, bound %g", n, id, v, bound)
				}
			}
		}
	}
}
