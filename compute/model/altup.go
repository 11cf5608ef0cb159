package model

// AltUpStep mirrors mr_altup_step.
type AltUpStep int32

// Steps of alternating updates.
const (
	AltUpPredict AltUpStep = 0
	AltUpCorrect AltUpStep = 1
	AltUpMatch   AltUpStep = 2
)

// AltUp is a step of alternating updates, in the slots from the one on that the op reads: see mr_altup. Coefs and X are slots, of the steps
// that have them.
type AltUp struct {
	Step            AltUpStep
	Streams, Active int
	Coefs, X        int
}

// altUpCost: each stream is read and written once. A value takes two operations for each coefficient.
func (p *Program) altUpCost(op *Op, rows int, s Sizes) Cost {
	a := op.AltUp
	n, streams := p.slotBytes(op.In, rows, s), int64(a.Streams)
	c := Cost{ActivationBytes: 2 * streams * n, Flops: 3 * streams * n / 4}
	switch a.Step {
	case AltUpPredict:
		c.ActivationBytes += p.slotBytes(a.Coefs, rows, s)
		c.Flops = 2 * streams * streams * n / 4
	case AltUpCorrect:
		c.ActivationBytes += p.slotBytes(a.Coefs, rows, s) + p.slotBytes(a.X, rows, s)
	case AltUpMatch: // the squares, and a product
	}
	return c
}
