package call

import (
	"math"
	"slices"

	"github.com/millrace/millrace/api"
)

// Of returns the vector of a choice as the call wants it: its first dimensions, with length 1. A vector of zeros stays one. The error is
// an *api.Error: the choice has no vector.
func (v *Vectors) Of(ch *Choice) ([]float32, error) {
	if len(ch.Vector) == 0 {
		return nil, errNoVector()
	}
	out := ch.Vector
	if v.Dimensions > 0 && v.Dimensions < len(out) {
		out = out[:v.Dimensions]
	}
	if !v.Normalize {
		return out, nil
	}
	square := 0.0
	for _, x := range out {
		square += float64(x) * float64(x)
	}
	scale := 1.0
	if square > 0 {
		scale = 1 / math.Sqrt(square)
	}
	scaled := make([]float32, len(out))
	for i, x := range out {
		scaled[i] = float32(float64(x) * scale)
	}
	return scaled, nil
}

// Probabilities returns those of the classes of a choice, by their logits. The error is an *api.Error: the choice has no vector of as many.
func (v *Vectors) Probabilities(ch *Choice) ([]float64, error) {
	if len(ch.Vector) != len(v.Classes.Labels) || len(ch.Vector) == 0 {
		return nil, errNoVector()
	}
	p := make([]float64, len(ch.Vector))
	most, sum := float64(slices.Max(ch.Vector)), 0.0
	for i, x := range ch.Vector {
		if v.Classes.Classify == "softmax" {
			p[i] = math.Exp(float64(x) - most)
			sum += p[i]
			continue
		}
		p[i] = activated(v.Classes.Classify, float64(x))
	}
	if sum > 0 {
		for i := range p {
			p[i] /= sum
		}
	}
	return p, nil
}

// activated is the sigmoid of a logit, or, with the identity, the logit.
func activated(by string, x float64) float64 {
	if by == "sigmoid" {
		return 1 / (1 + math.Exp(-x))
	}
	return x
}

// Scores returns the score of each pair: what a cross-encoder makes of it, the probability of "yes" among "no" and "yes" where each pair
// was judged, else the cosine of the two vectors, 0 if one of them is zero. The error is an *api.Error: a choice has no vector.
func (v *Vectors) Scores(choices []Choice) ([]float64, error) {
	scores := make([]float64, len(v.Pairs))
	for i, pair := range v.Pairs {
		a, b := choices[pair[0]].Vector, choices[pair[1]].Vector
		if v.Scored != "" {
			if len(a) != 1 {
				return nil, errNoVector()
			}
			scores[i] = activated(v.Scored, float64(a[0]))
			continue
		}
		if len(a) == 0 || len(a) != len(b) || v.Judged && len(a) != 2 {
			return nil, errNoVector()
		}
		if v.Judged {
			scores[i] = 1 / (1 + math.Exp(float64(a[0])-float64(a[1])))
			continue
		}
		scores[i] = cosine(a, b)
	}
	return scores, nil
}

func cosine(a, b []float32) float64 {
	var product, aa, bb float64
	for i := range a {
		x, y := float64(a[i]), float64(b[i])
		product, aa, bb = product+x*y, aa+x*x, bb+y*y
	}
	if aa == 0 || bb == 0 {
		return 0
	}
	return product / math.Sqrt(aa*bb)
}

func errNoVector() error {
	return &api.Error{Code: api.CodeInternal, Message: "the answer has no vector of the expected size"}
}
