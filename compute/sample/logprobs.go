package sample

import (
	"fmt"
	"math"
)

// logprobs returns the log probability of the token under softmax(logits) and
// the n likeliest tokens.
func logprobs(logits []float32, token int32, n int) (float32, []Alternative) {
	norm, _ := normOf(logits) // NaN if a token that a mask excludes is
	alternatives := likeliest(logits, n)
	for i := range alternatives {
		alternatives[i].Logprob = float32(float64(alternatives[i].Logprob) - norm)
	}
	return float32(float64(logits[token]) - norm), alternatives
}

// Scored is a token of a prompt as the model predicted it from the tokens before it.
type Scored struct {
	Token   int32
	Logprob float32 // as in Choice
	Rank    int     // 1 for the likeliest token; equal logits share the best rank
	Top     []Alternative
}

// Score returns the log probability of a token under softmax(logits), its rank, and the n likeliest tokens. The error is ErrLogits.
func Score(logits []float32, token int32, n int) (Scored, error) {
	if token < 0 || int(token) >= len(logits) {
		return Scored{}, fmt.Errorf("%w: found %d, of which token %d is wanted", ErrLogits, len(logits), token)
	}
	if _, err := normOf(logits); err != nil {
		return Scored{}, err
	}
	s := Scored{Token: token, Rank: 1}
	for _, v := range logits {
		if v > logits[token] {
			s.Rank++
		}
	}
	s.Logprob, s.Top = logprobs(logits, token, n)
	return s, nil
}

// Logprobs returns the log probabilities of tokens under softmax(logits), in the order of tokens. The error is ErrLogits.
func Logprobs(logits []float32, tokens []int32) ([]float32, error) {
	norm, err := normOf(logits)
	if err != nil {
		return nil, err
	}
	out := make([]float32, len(tokens))
	for i, token := range tokens {
		if token < 0 || int(token) >= len(logits) {
			return nil, fmt.Errorf("%w: found %d, of which token %d is wanted", ErrLogits, len(logits), token)
		}
		out[i] = float32(float64(logits[token]) - norm)
	}
	return out, nil
}

// normOf returns log(sum(exp(logits))). Where one of them is NaN or +Inf, or all are -Inf, it is NaN, and the error is ErrLogits.
func normOf(logits []float32) (float64, error) {
	best, err := argmax(logits)
	if err != nil {
		return math.NaN(), err
	}
	top := logits[best]
	return float64(top) + math.Log(float64(weightSums(instructions, logits, top, 1, nil, nil))/whole), nil
}

// likeliest returns the n largest logits, the lower id first among equal ones,
// by insertion: n is at most MaxTopLogprobs.
func likeliest(logits []float32, n int) []Alternative {
	n = min(n, len(logits))
	if n == 0 {
		return []Alternative{} // not nil, which means no log probabilities
	}
	best := make([]Alternative, 0, n)
	for from := 0; from < len(logits); from += block {
		some := logits[from:min(from+block, len(logits))]
		if len(best) == n && len(some) == block && allBelow((*[block]float32)(some), best[n-1].Logprob) {
			continue
		}
		for i, v := range some {
			if len(best) == n {
				if v <= best[n-1].Logprob {
					continue
				}
				best = best[:n-1]
			}
			at := len(best)
			best = append(best, Alternative{})
			for ; at > 0 && best[at-1].Logprob < v; at-- {
				best[at] = best[at-1]
			}
			best[at] = Alternative{int32(from + i), v}
		}
	}
	return best
}
