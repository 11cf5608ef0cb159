package sample

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

func BenchmarkSample(b *testing.B) {
	cases := []struct {
		name string
		p    Params
	}{
		{"greedy", Params{}},
		{"temperature", Params{Temperature: 0.8}},
		{"top_k=50", Params{Temperature: 0.8, TopK: 50}},
		{"top_k=1000", Params{Temperature: 0.8, TopK: 1000}},
		{"top_p=0.95", Params{Temperature: 0.8, TopP: 0.95}},
		{"top_k=50,top_p=0.95", Params{Temperature: 0.8, TopK: 50, TopP: 0.95}},
		{"min_p=0.05", Params{Temperature: 0.8, MinP: 0.05}},
		{"typical_p=0.9", Params{Temperature: 0.8, TypicalP: 0.9}},
		{"penalties", Params{RepetitionPenalty: 1.1, FrequencyPenalty: 0.1}},
		{"top_logprobs=20", Params{Logprobs: true, TopLogprobs: 20}},
	}
	for _, c := range cases {
		for _, vocab := range []int{4_000, 32_000, 128_000} {
			b.Run(fmt.Sprintf("%s/vocab=%d", c.name, vocab), func(b *testing.B) {
				benchmarkSample(b, c.p, vocab)
			})
		}
	}
}

func benchmarkSample(b *testing.B, p Params, vocab int) {
	rng := rand.New(rand.NewPCG(1, uint64(vocab)))
	base := make([]float32, vocab)
	for i := range base {
		base[i] = float32(3 * rng.NormFloat64()) // about the spread of a language model's logits
	}
	base[vocab/3] += 8
	prompt := make([]int32, 500)
	for i := range prompt {
		prompt[i] = rng.Int32N(int32(vocab))
	}
	s := New(p, vocab, prompt)
	logits := make([]float32, vocab)
	var ws Scratch
	b.ReportAllocs()
	b.SetBytes(int64(4 * vocab))
	for i := 0; b.Loop(); i++ {
		copy(logits, base)
		if _, err := s.Sample(logits, i, &ws); err != nil {
			b.Fatal(err)
		}
	}
}
