package sample

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

func mustSample(t *testing.T, s *Sampler, logits []float32, position int, ws *Scratch) Choice {
	t.Helper()
	c, err := s.Sample(slices.Clone(logits), position, ws)
	require.NoError(t, err)
	return c
}

func TestGreedyTakesTheLowestOfEqualTokens(t *testing.T) {
	s := New(Params{}, 5, nil)
	require.EqualValues(t, 1, mustSample(t, s, []float32{-3, 7, 2, 7, 7}, 0, &Scratch{}).Token)
}

func TestTokenIsDrawnByInvertingTheDistribution(t *testing.T) {
	rng := rand.New(rand.NewPCG(17, 19))
	var ws Scratch
	for range 400 {
		vocab := 1 + rng.IntN(300)
		p, logits, position := randomParams(rng, vocab), randomLogits(rng, vocab), rng.IntN(1<<20)
		probs, u, sum, want := referenceFilter(logits, p), float64(uniform(p.Seed, position))/(1<<64), 0.0, -1
		for id, prob := range probs {
			if sum += prob; sum > u {
				want = id
				break
			}
		}
		require.EqualValues(t, want, mustSample(t, New(p, vocab, nil), logits, position, &ws).Token, "%+v", p)
	}
}

// Every promise of resuming elsewhere rests on this.
func TestTokenDependsOnlyOnLogitsParamsTokensSeedAndPosition(t *testing.T) {
	const vocab, length = 503, 60
	rng := rand.New(rand.NewPCG(23, 29))
	p := Params{
		Temperature: 1.2, TopK: 200, TopP: 0.97, RepetitionPenalty: 1.1, PresencePenalty: 0.3,
		FrequencyPenalty: 0.2, LogitBias: map[int32]float32{7: 2, 11: -5}, Seed: 42, Logprobs: true, TopLogprobs: 3,
		DRY: &DRY{Multiplier: 0.8, Base: 1.75, Allowed: 1, Last: -1}, TopNSigma: 4, XTC: XTC{Probability: 0.5, Threshold: 0.02},
		Tokens: &TextTokens{Words: [][]int32{{9}, {4, 8}}, Breaks: []int32{5}, LongBreaks: [][]int32{{1, 3}}},
	}
	prompt := []int32{3, 1, 4, 1, 5}
	logits := make([][]float32, length)
	for i := range logits {
		logits[i] = randomLogits(rng, vocab)
	}
	alone := New(p, vocab, prompt)
	var tokens []int32
	var choices []Choice
	for i := range logits {
		c := mustSample(t, alone, logits[i], len(prompt)+i, &Scratch{})
		alone.Accept(c.Token)
		tokens, choices = append(tokens, c.Token), append(choices, c)
	}
	var shared Scratch
	other := New(Params{Temperature: 2, TopP: 0.999, Seed: 7}, 2*vocab, nil)
	for _, i := range rng.Perm(length) {
		mustSample(t, other, randomLogits(rng, 2*vocab), i, &shared)
		resumed := New(p, vocab, prompt)
		resumed.Replay(tokens[:i])
		require.Equal(t, choices[i], mustSample(t, resumed, logits[i], len(prompt)+i, &shared), "position %d", i)
		require.Equal(t, choices[i], mustSample(t, resumed, logits[i], len(prompt)+i, &shared), "again, position %d", i)
	}
}

// A stream may be resumed by another build: its tokens must not change.
func TestTokensOfASeedStayTheSame(t *testing.T) {
	logits := make([]float32, 1009)
	for i := range logits {
		logits[i] = float32(i*7919%1009) / 100
	}
	p := Params{Temperature: 0.9, TopP: 0.95, Seed: 20250611}
	s := New(p, len(logits), nil)
	var ws Scratch
	var got []int32
	for position := range 12 {
		got = append(got, mustSample(t, s, logits, position, &ws).Token)
	}
	require.Equal(t, []int32{897, 14, 41, 996, 805, 963, 14, 496, 653, 106, 818, 641}, got)
}

func TestPenaltiesAreThoseOfOpenAIAndTransformers(t *testing.T) {
	p := Params{
		RepetitionPenalty: 2, FrequencyPenalty: 0.5, PresencePenalty: 0.25,
		LogitBias: map[int32]float32{1: 3, 4: -2},
	}
	s := New(p, 7, []int32{0, 0, 1, -1, 99})
	s.Replay([]int32{1, 2, 2, 2, 99, -5})
	logits := []float32{4, 1, -1, 8, 5, 0, -3}
	s.edit(logits)
	require.Equal(t, []float32{
		4.0 / 2,               // in the prompt only, twice: once
		(1+3)/2.0 - 0.5 - .25, // bias, then in both, once in the output
		-1*2 - 3*0.5 - .25,    // negative: away from zero; three times in the output
		8,
		5 - 2,
		0,
		-3,
	}, logits)
}

func TestPromptDoesNotCountForPresenceAndFrequency(t *testing.T) {
	s := New(Params{FrequencyPenalty: 2, PresencePenalty: 2}, 3, []int32{1, 1, 1})
	logits := []float32{1, 2, 3}
	s.edit(logits)
	require.Equal(t, []float32{1, 2, 3}, logits)
}

func TestLogprobsAreOfTheModelsOwnDistribution(t *testing.T) {
	rng := rand.New(rand.NewPCG(31, 37))
	var ws Scratch
	for range 200 {
		vocab := 1 + rng.IntN(90)
		p := randomParams(rng, vocab)
		p.RepetitionPenalty, p.LogitBias = 1.7, map[int32]float32{0: 4}
		p.Logprobs, p.TopLogprobs = true, rng.IntN(MaxTopLogprobs+1)
		logits := randomLogits(rng, vocab)
		c := mustSample(t, New(p, vocab, []int32{0, 1, 2}), logits, 5, &ws)

		sum := 0.0
		for _, v := range logits {
			sum += math.Exp(float64(v))
		}
		logprob := func(id int) float64 { return float64(logits[id]) - math.Log(sum) }
		require.InDelta(t, logprob(int(c.Token)), c.Logprob, 1e-5)
		order := sortedBy(logits, func(i int) float64 { return -float64(logits[i]) })
		require.Len(t, c.Top, min(p.TopLogprobs, vocab))
		require.NotNil(t, c.Top, "nil means no log probabilities")
		for n, a := range c.Top {
			require.EqualValues(t, order[n], a.Token, "place %d", n)
			if logits[a.Token] == float32(math.Inf(-1)) {
				require.True(t, math.IsInf(float64(a.Logprob), -1))
			} else {
				require.InDelta(t, logprob(order[n]), a.Logprob, 1e-5)
			}
		}
	}
}

// TestAMaskComesBeforeEveryProcessor: the draw is one from logits without the other tokens, and log probabilities are the model's.
func TestAMaskComesBeforeEveryProcessor(t *testing.T) {
	rng := rand.New(rand.NewPCG(31, 41))
	var ws Scratch
	for range 300 {
		vocab := 1 + rng.IntN(150)
		p := randomParams(rng, vocab)
		p.RepetitionPenalty, p.PresencePenalty, p.LogitBias = 1.7, 0.5, map[int32]float32{0: 4}
		logits, mask := randomLogits(rng, vocab), make([]uint32, (vocab+31)/32)
		masked := slices.Clone(logits)
		for id := range masked {
			if rng.IntN(3) == 0 {
				mask[id/32] |= 1 << (id % 32)
			} else {
				masked[id] = float32(math.Inf(-1))
			}
		}
		s := New(p, vocab, []int32{0, 1, 2})
		want, err := s.Sample(masked, 7, &ws)
		got, maskedErr := s.SampleMasked(slices.Clone(logits), mask, 7, &ws)
		if err != nil {
			require.ErrorIs(t, maskedErr, ErrLogits)
			continue
		}
		require.NoError(t, maskedErr)
		require.Equal(t, want.Token, got.Token)
		require.NotZero(t, mask[got.Token/32]&(1<<(got.Token%32)))

		p.Logprobs, p.TopLogprobs = true, 3
		with, err := New(p, vocab, []int32{0, 1, 2}).SampleMasked(slices.Clone(logits), mask, 7, &ws)
		require.NoError(t, err)
		require.Equal(t, got.Token, with.Token)
		logprob, top := logprobs(logits, got.Token, 3)
		require.Equal(t, logprob, with.Logprob)
		require.Equal(t, top, with.Top)
	}
	_, err := New(Params{}, 40, nil).SampleMasked(make([]float32, 40), make([]uint32, 1), 0, &ws)
	require.ErrorIs(t, err, ErrLogits, "a mask that allows nothing, and is too short")
}

// Pearson's chi-square with 15 degrees of freedom exceeds 37.7 once in 1,000
// fair draws; the seeds are fixed, so this passes always or never.
func TestDrawsFollowTheDistribution(t *testing.T) {
	const vocab, draws, critical = 16, 40_000, 37.7
	logits := make([]float32, vocab)
	for i := range logits {
		logits[i] = float32(i%5) * 0.6
	}
	p := Params{Temperature: 1.3}
	want := referenceFilter(logits, p)
	var ws Scratch
	for name, at := range map[string]func(int) (uint64, int){
		"positions of a seed": func(i int) (uint64, int) { return 99, i },
		"seeds at a position": func(i int) (uint64, int) { return uint64(i), 99 },
	} {
		var counts [vocab]float64
		for i := range draws {
			var position int
			p.Seed, position = at(i)
			counts[mustSample(t, New(p, vocab, nil), logits, position, &ws).Token]++
		}
		chi := 0.0
		for id, n := range counts {
			expected := want[id] * draws
			chi += (n - expected) * (n - expected) / expected
		}
		require.Less(t, chi, critical, name)
	}
}

func TestLogitsWithoutATokenAreAnError(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	for name, c := range map[string]struct {
		logits []float32
		says   string
	}{
		"NaN":       {[]float32{1, nan, 2}, "found NaN for token 1 of 3"},
		"NaN first": {[]float32{nan, 1, 2}, "found NaN for token 0 of 3"},
		"+Inf":      {[]float32{1, 2, inf}, "found +Inf for token 2 of 3"},
		"all -Inf":  {[]float32{-inf, -inf, -inf}, "all 3 are -Inf"},
		"too few":   {[]float32{1, 2}, "found 2, expected 3"},
		"too many":  {[]float32{1, 2, 3, 4}, "found 4, expected 3"},
	} {
		for _, p := range []Params{{}, Default(), {Temperature: 1, TopK: 2, TopP: 0.5, Logprobs: true, TopLogprobs: 2}} {
			_, err := New(p, 3, nil).Sample(slices.Clone(c.logits), 0, &Scratch{})
			require.ErrorIs(t, err, ErrLogits, name)
			require.ErrorContains(t, err, c.says, name)
		}
	}
}

func TestSteadyStateDoesNotAllocate(t *testing.T) {
	const vocab = 1511
	rng := rand.New(rand.NewPCG(41, 43))
	logits := make([]float32, vocab)
	base := randomLogits(rng, vocab)
	var ws Scratch
	for _, p := range []Params{
		{},
		{Temperature: 1},
		{Temperature: 1, TopK: 40, TopP: 0.9, MinP: 0.01, TypicalP: 0.9},
		{Temperature: 1, TopP: 0.9, RepetitionPenalty: 1.2, Logprobs: true, LogitBias: map[int32]float32{4: 1}},
	} {
		s := New(p, vocab, []int32{1, 2, 3})
		position := 0
		step := func() {
			copy(logits, base)
			if _, err := s.Sample(logits, position, &ws); err != nil {
				t.Fatal(err)
			}
			s.Accept(int32(position % 3))
			position++
		}
		step()
		require.Zero(t, testing.AllocsPerRun(50, step), "%+v", p)
	}
}

func FuzzSampleNeverPanics(f *testing.F) {
	f.Add([]byte{0, 0, 128, 63, 0, 0, 192, 127, 0, 0, 128, 127}, float32(1), 3, float32(0.5), float32(0.1), float32(0.5), float32(1.1))
	f.Add([]byte{1, 0, 0, 0, 255, 255, 127, 127, 255, 255, 127, 255}, float32(1e-45), 1, float32(1e-9), float32(1), float32(1e-9),
		float32(100))
	f.Fuzz(func(t *testing.T, raw []byte, temperature float32, k int, topP, minP, typicalP, repetition float32) {
		logits := make([]float32, len(raw)/4)
		for i := range logits {
			logits[i] = math.Float32frombits(uint32(raw[4*i]) | uint32(raw[4*i+1])<<8 | uint32(raw[4*i+2])<<16 | uint32(raw[4*i+3])<<24)
		}
		p := Params{
			Temperature: temperature, TopK: k, TopP: topP, MinP: minP, TypicalP: typicalP,
			RepetitionPenalty: repetition, Logprobs: true, TopLogprobs: 3,
		}
		if p.Validate() != nil {
			return
		}
		c, err := New(p, len(logits), []int32{0, 2}).Sample(slices.Clone(logits), 9, &Scratch{})
		if err != nil {
			require.ErrorIs(t, err, ErrLogits)
			return
		}
		require.NotEqual(t, math.Inf(-1), float64(logits[c.Token]), "an impossible token was drawn")
	})
}

// The place is in a block or after the last one.
func TestTheLargestLogitIsFoundAtEveryPlaceAndABadOneToo(t *testing.T) {
	for n := 1; n <= 20; n++ {
		for at := range n {
			logits := make([]float32, n)
			for i := at; i < n; i++ {
				logits[i] = 2 // equal ones after it: the lowest id wins
			}
			best, err := argmax(logits)
			if err != nil || int(best) != at {
				t.Fatalf("largest of %d at %d: found %d, %v", n, at, best, err)
			}
			logits[at] = float32(math.NaN())
			if _, err := argmax(logits); !errors.Is(err, ErrLogits) {
				t.Fatalf("NaN at %d of %d: error %v", at, n, err)
			}
		}
	}
}
