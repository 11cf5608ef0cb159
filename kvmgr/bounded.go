package kvmgr

import "fmt"

// Bounded is the one group of a program whose later tokens take the places of those that a sequence gave up.
type Bounded struct {
	Slabs int // of a sequence at most, however many tokens it has
}

func (g Bounded) String() string { return fmt.Sprintf("tokens in %d slabs at most", g.Slabs) }

func (g Bounded) validate(int) error {
	if g.Slabs < 1 {
		return fmt.Errorf("%w: %d slabs of a sequence at most, expected at least 1", ErrInvalid, g.Slabs)
	}
	return nil
}

// uses returns none: what is in a slab depends on all tokens of the sequence.
func (Bounded) uses() Uses { return Uses{} }

func (Bounded) alone() bool { return true }

func (g Bounded) places(tokens, slabTokens int) int {
	return min(divideUp(tokens, slabTokens), g.Slabs)
}

func (Bounded) head() int { return 0 }

func (Bounded) every() int { return 0 }

func (Bounded) sees(int) int { return 0 }

func (Bounded) trims() (live, kept int) { return 0, 0 }

// need counts it as a window: those who place sequences see a bound.
func (g Bounded) need(n *Need) {
	n.LiveSlabs = g.Slabs
	n.Groups.Windowed++
}
