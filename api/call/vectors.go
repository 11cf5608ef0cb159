package call

import (
	"math"

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

// Scores returns the score of each pair: the probability of "yes" among "no" and "yes" where each pair was judged, else the cosine
// of the two vectors, 0 if one of them is zero. The error is an *api.Error: a choice has no vector.
func (v *Vectors) Scores(choices []Choice) ([]float64, error) {
	scores := make([]float64, len(v.Pairs))
	for i, pair := range v.Pairs {
		a, b := choices[pair[0]].Vector, choices[pair[1]].Vector
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
