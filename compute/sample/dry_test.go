package sample

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// referenceDRY is the definition of DRY: of each token the longest end of the sequence that it followed before.
func referenceDRY(logits []float32, sequence []int32, d DRY, breaks [][]int32) []float32 {
	out := slices.Clone(logits)
	if d.Last >= 0 {
		sequence = sequence[max(0, len(sequence)-d.Last):]
	}
	n := len(sequence)
	if n <= d.Allowed {
		return out
	}
	unbroken := n
	for at := n - 1; at >= 0 && unbroken == n; at-- { // the last place at which a breaker begins
		for _, b := range breaks {
			if at+len(b) <= n && slices.Equal(sequence[at:at+len(b)], b) {
				unbroken = min(unbroken, n-at-len(b))
			}
		}
	}
	for token := range logits {
		longest := -1
		for at := 1; at < n; at++ {
			if sequence[at] != int32(token) {
				continue
			}
			length := 0
			for length < at && length < unbroken && sequence[at-1-length] == sequence[n-1-length] {
				length++
			}
			longest = max(longest, length)
		}
		if longest >= d.Allowed && unbroken >= d.Allowed {
			out[token] -= float32(math.Min(float64(d.Multiplier)*math.Pow(float64(d.Base), float64(longest-d.Allowed)), math.MaxFloat32))
		}
	}
	return out
}

func TestDRYIsItsDefinition(t *testing.T) {
	rng := rand.New(rand.NewPCG(61, 67))
	var ws Scratch
	for n := range 2000 {
		vocab := 2 + rng.IntN(5)
		sequence := make([]int32, rng.IntN(40))
		for i := range sequence {
			sequence[i] = int32(rng.IntN(vocab))
		}
		d := DRY{Multiplier: 0.1 + rng.Float32(), Base: 1 + rng.Float32(), Allowed: rng.IntN(4), Last: rng.IntN(45) - 1}
		tokens, breaks := TextTokens{}, [][]int32(nil)
		if rng.IntN(2) == 0 {
			tokens.Breaks = []int32{int32(rng.IntN(vocab))}
			tokens.LongBreaks = [][]int32{{int32(rng.IntN(vocab)), int32(rng.IntN(vocab))}, {int32(rng.IntN(vocab)), 0, 1}}
			breaks = append(slices.Clone(tokens.LongBreaks), tokens.Breaks)
		}
		prompt := rng.IntN(len(sequence) + 1)
		s := New(Params{DRY: &d, Tokens: &tokens}, vocab, sequence[:prompt])
		s.Replay(sequence[prompt:])
		logits := randomLogits(rng, vocab)
		want := referenceDRY(logits, sequence, d, breaks)
		if s.dry != nil { // Last is 0
			s.dry.edit(logits, s.sequence, &ws)
		}
		for id := range want {
			if want[id] != logits[id] {
				require.InEpsilon(t, want[id], logits[id], 1e-5, "case %d: token %d, sequence %v, %+v, breaks %v", n, id, sequence, d,
					breaks)
			}
		}
	}
}

func TestDRYPenalizesWhatWouldContinueARepetition(t *testing.T) {
	d := DefaultDRY()
	d.Multiplier = 0.5
	edited := func(sequence ...int32) []float32 {
		logits := make([]float32, 10)
		s := New(Params{DRY: &d, Tokens: &TextTokens{Breaks: []int32{9}, LongBreaks: [][]int32{{7, 8}}}}, 10, sequence)
		s.dry.edit(logits, s.sequence, &Scratch{})
		return logits
	}
	penalty := func(token int, v float32) []float32 {
		logits := make([]float32, 10)
		logits[token] = -v
		return logits
	}
	require.Equal(t, penalty(0, 0), edited(1, 2, 3, 1), "one token is no repetition")
	require.Equal(t, penalty(3, 0.5), edited(1, 2, 3, 1, 2), "0.5 * 1.75^(2-2)")
	require.Equal(t, penalty(4, 0.5*1.75), edited(1, 2, 3, 4, 1, 2, 3), "0.5 * 1.75^(3-2)")
	require.Equal(t, penalty(4, 0), edited(1, 2, 3, 4, 1, 9, 3), "a breaker")
	require.Equal(t, penalty(4, 0.5), edited(1, 9, 2, 3, 4, 1, 9, 2, 3), "the repetition begins after the breaker: 2, not 4 tokens")
	require.Equal(t, penalty(4, 0.5), edited(7, 8, 2, 3, 4, 7, 8, 2, 3), "a breaker of two tokens")
	require.Equal(t, penalty(4, 0.5*1.75), edited(7, 2, 3, 4, 7, 2, 3), "its first token alone is none")
	d.Last = 4
	require.Equal(t, penalty(3, 0), edited(1, 2, 3, 1, 2), "the repetition is not in the last 4 tokens")
}

func TestDRYOfALongRepetitionStaysFinite(t *testing.T) {
	d := DRY{Multiplier: 100, Base: 100, Last: -1}
	s := New(Params{DRY: &d}, 3, make([]int32, 5000))
	c := mustSample(t, s, []float32{9, 1, 0}, 0, &Scratch{})
	require.EqualValues(t, 1, c.Token)
	logits := []float32{9, float32(math.Inf(-1)), float32(math.Inf(-1))}
	require.EqualValues(t, 0, mustSample(t, s, logits, 0, &Scratch{}).Token, "the only possible token stays possible")
}

func TestBadWordsAreNotCompleted(t *testing.T) {
	p := Params{Tokens: &TextTokens{Words: [][]int32{{1}, {2, 3}, {}, {2, 77}}}}
	logits := []float32{0, 9, 5, 7, 1}
	greedy := func(mask []uint32, prompt []int32, output ...int32) int32 {
		s := New(p, 5, prompt)
		s.Replay(output)
		c, err := s.SampleMasked(slices.Clone(logits), mask, len(prompt)+len(output), &Scratch{})
		require.NoError(t, err)
		return c.Token
	}
	require.EqualValues(t, 3, greedy(nil, nil), "a word of one token, never; the end of another word, yes")
	require.EqualValues(t, 2, greedy(nil, nil, 2), "its beginning was there")
	require.EqualValues(t, 3, greedy(nil, nil, 2, 0), "it was not the last token")
	require.EqualValues(t, 3, greedy(nil, []int32{2}), "the word is not in the output")
	require.EqualValues(t, 1, greedy([]uint32{1 << 1}, nil), "a grammar that leaves nothing else goes before it")
	s := New(Params{Tokens: p.Tokens, Logprobs: true}, 5, nil)
	with, err := s.Sample(slices.Clone(logits), 0, &Scratch{})
	require.NoError(t, err)
	without, err := New(Params{Logprobs: true, LogitBias: map[int32]float32{1: -100}}, 5, nil).Sample(slices.Clone(logits), 0, &Scratch{})
	require.NoError(t, err)
	require.Equal(t, without, with, "log probabilities are the model's own")
}

func TestTextsAreThoseOfParametersThatAreOn(t *testing.T) {
	d := DefaultDRY()
	p := Params{DRY: &d}
	require.Nil(t, p.Texts(), "a multiplier of 0")
	d.Multiplier = 1
	require.Equal(t, &Texts{Breakers: []string{"\n", ":", "\"", "*"}}, p.Texts())
	d.Last = 0
	require.Nil(t, p.Texts())
	p.BadWords = []string{"a"}
	require.Equal(t, &Texts{Words: []string{"a"}}, p.Texts())
}

func BenchmarkDRY(b *testing.B) {
	rng := rand.New(rand.NewPCG(71, 73))
	for _, n := range []int{1 << 10, 1 << 15} {
		sequence := make([]int32, n)
		for i := range sequence {
			sequence[i] = int32(rng.IntN(500))
		}
		d := DRY{Multiplier: 0.8, Base: 1.75, Allowed: 2, Last: -1}
		s := New(Params{DRY: &d}, 32000, sequence)
		logits, ws := make([]float32, 32000), &Scratch{}
		b.Run(fmt.Sprintf("%d tokens", n), func(b *testing.B) {
			for b.Loop() {
				s.dry.edit(logits, s.sequence, ws)
			}
		})
	}
}
