package sample

import "math"

// Draw says how a token is drawn from a row of logits. A device that keeps the row draws the same token as Token does.
type Draw struct {
	Row    int      // of a step's logits
	Mask   []uint32 // as in SampleMasked; nil: all tokens
	TopK   int      // only the TopK tokens of the largest logits, and tokens equal to the last of them; 0: all
	PerNat float32  // 1/temperature; 0: the token of the largest logit, of equal ones the lowest
	TopP   uint64   // only the likeliest tokens that together have this fraction of the weights, of 2^64; 0: all
	Least  uint64   // only tokens of at least this weight, see weigh
	Random uint64   // the fraction, of 2^64, of the weights that are left at which the token is, in the order of tokens
}

// newDraw is what a sequence's draws have alike.
func newDraw(p *Params, vocab int) Draw {
	if p.Temperature <= 0 {
		return Draw{}
	}
	d := Draw{PerNat: inverse(p.Temperature), Least: uint64(math.Ceil(float64(p.MinP) * whole))}
	if p.TopK > 0 && p.TopK < vocab {
		d.TopK = p.TopK
	}
	if p.TopP > 0 && p.TopP < 1 {
		d.TopP = fraction(p.TopP)
	}
	return d
}

// Draw returns how Sample draws the token at position, but for the row and the mask. False: log probabilities are wanted, or more than
// a Draw says is done to the logits.
func (s *Sampler) Draw(position int) (Draw, bool) {
	if s.p.Logprobs || len(s.biases) > 0 || len(s.seen) > 0 || s.keeps() || position < s.free || s.thinks.spent() {
		return Draw{}, false
	}
	if s.draw.PerNat == 0 {
		return Draw{}, true
	}
	if s.p.TopNSigma > 0 || s.cutsTypical() || s.p.XTC.applies(s.p.Seed, position) {
		return Draw{}, false
	}
	d := s.draw
	d.Random = uniform(s.p.Seed, position)
	return d, true
}

// DrawAhead is Draw at a position whose token before is not known yet. False also where that token may change the draw.
func (s *Sampler) DrawAhead(position int) (Draw, bool) {
	if s.index != nil || s.thinks.bounded() {
		return Draw{}, false
	}
	return s.Draw(position)
}

// Token draws the token from logits, one per token of the vocabulary, which may be overwritten. The error is ErrLogits.
func (d *Draw) Token(logits []float32, ws *Scratch) (int32, error) {
	if d.Mask != nil {
		exclude(logits, d.Mask)
	}
	best, err := argmax(logits)
	if err != nil || d.PerNat == 0 {
		return best, err
	}
	if !d.filters() {
		return ws.draw(logits, logits[best], d.PerNat, d.Random), nil
	}
	return pick(d.filter(logits, logits[best], impossible(), ws), d.Random), nil
}

// filters reports whether some tokens may not be drawn.
func (d *Draw) filters() bool { return d.TopK > 0 || d.TopP > 0 || d.Least > 0 }

// filter lists the tokens that may be drawn, by id, with their weights: none with a logit below least. top is the largest logit.
func (d *Draw) filter(logits []float32, top, least float32, ws *Scratch) []candidate {
	if d.TopK > 0 {
		least = max(least, ws.kthLargest(logits, d.TopK))
	}
	if d.Least > 0 && d.TopP == 0 {
		// What atLeast will certainly drop needs no weight; 1% covers rounding.
		nats := 1.01*float32(-math.Log(float64(d.Least)/whole)) + 0.01
		least = max(least, top-nats/d.PerNat)
	}
	var set []candidate
	switch {
	case d.TopP > 0 && least < -math.MaxFloat32:
		set = ws.nucleus(logits, top, d.PerNat, d.TopP)
	case d.TopP > 0:
		set = ws.cut(ws.collect(logits, least, top, d.PerNat), d.TopP, false)
	default:
		set = ws.collect(logits, least, top, d.PerNat)
	}
	if d.Least > 0 {
		set = atLeast(set, d.Least)
	}
	return set
}

// Greedy reports that the token is the one of the largest logit of all.
func (d *Draw) Greedy() bool { return d.PerNat == 0 && d.Mask == nil }
