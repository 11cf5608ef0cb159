package sample

import "math"

// MaxSigmas is the largest Params.TopNSigma.
const MaxSigmas = 100

// XTC excludes top choices: with the probability Probability, all tokens at least as likely as Threshold but the least likely of them. It
// is the sampler "XTC" of p-e-w (text-generation-webui, pull request 6335), as in llama.cpp: the threshold is one of probabilities without
// temperature.
type XTC struct {
	Probability float32 // 0..1; 0: off
	Threshold   float32 // 0..1; over 0.5: off, since two tokens cannot reach it
}

func (x XTC) applies(seed uint64, position int) bool {
	u := float64(middle(random(seed, position, forExclusion)))
	return x.Probability > 0 && x.Threshold <= 0.5 && u <= float64(x.Probability)*(1<<64)
}

// withoutTop drops the candidates whose probability reaches the threshold, but the one with the smallest. Among equal ones the highest
// id stays. top is the largest logit.
func withoutTop(set []candidate, threshold float32, logits []float32, top float32) []candidate {
	weight := func(c *candidate) uint64 { return weigh(top - logits[c.id]) }
	total := uint64(0)
	for i := range set {
		total += weight(&set[i])
	}
	// What certainly does not reach the threshold needs no weight again; 1% covers rounding.
	least := part(total, fraction(threshold))
	far := impossible()
	if least > 0 {
		far = top - float32(1.01*-math.Log(min(float64(least)/whole, 1))+0.01)
	}
	stays, lowest := int32(-1), top
	for i := range set {
		c := &set[i]
		if v := logits[c.id]; v <= lowest && v >= far && weight(c) >= least {
			stays, lowest = c.id, v
		}
	}
	if stays < 0 {
		return set
	}
	kept := set[:0]
	for _, c := range set {
		if c.id == stays || logits[c.id] < lowest {
			kept = append(kept, c)
		}
	}
	return kept
}

// sigmaBound is the least logit that top-n-sigma keeps: n standard deviations of the possible tokens' logits below the largest (Tang et
// al., "Top-nsigma: not all logits are you need", 2024).
func sigmaBound(logits []float32, n, top float32) float32 {
	sum, count := 0.0, 0
	for _, v := range logits {
		if v > -math.MaxFloat32 { // neither impossible nor with the largest penalty of DRY
			sum += float64(v)
			count++
		}
	}
	mean, squares := sum/float64(max(count, 1)), 0.0
	for _, v := range logits {
		if v > -math.MaxFloat32 {
			d := float64(v) - mean
			squares += float64(d * d)
		}
	}
	return top - float32(float64(n)*math.Sqrt(squares/float64(max(count, 1))))
}
