package kvmgr

import "fmt"

// Window is a group whose layers see a window of the past: a running sequence gives slabs back, see Manager.Trim. All windows of a Spec are
// equal.
type Window struct {
	Tokens int // that a token sees in any layer of the group, itself included; at least 2
	Live   int // slabs that a sequence has at once at most, those of sinks counted: see LiveSlabs
	// leading slabs that a sequence keeps beside its window. With sinks there is one group, and sequences share what the first window sees
	Sinks int
}

// NewWindow returns the Window of some tokens and sinks in a pool of slabs. A sequence has slabs for its window, for the rows of the step
// that runs and for those of the next one. In a small pool, of which full groups need at least half, the steps of its prompt are shorter.
func NewWindow(tokens, sinks, rows, pool int, c Counts, slabTokens int) Window {
	most := (pool - sinks) / max(c.Windowed, 1)
	if c.Full > 0 {
		most /= 2
	}
	live := min(LiveSlabs(tokens, 2*rows, slabTokens), max(most, LiveSlabs(tokens, slabTokens, slabTokens)))
	return Window{Tokens: tokens, Live: sinks + live, Sinks: sinks}
}

func (g Window) String() string {
	if g.Sinks > 0 {
		return fmt.Sprintf("a window of %d tokens and %d slabs of sinks", g.Tokens, g.Sinks)
	}
	return fmt.Sprintf("a window of %d tokens", g.Tokens)
}

func (g Window) validate(slabTokens int) error {
	least := g.Sinks + LiveSlabs(g.Tokens, slabTokens, slabTokens)
	if g.Tokens < 2 || g.Tokens > mostTokens || g.Sinks < 0 || g.Live < least || g.Live > 2*mostTokens {
		return fmt.Errorf("%w: a window of %d tokens and %d slabs of sinks with %d slabs at once, expected at least 2, 0 and %d",
			ErrInvalid,
			g.Tokens, g.Sinks, g.Live, least)
	}
	return nil
}

func (g Window) uses() Uses {
	plain := g.Sinks == 0
	return Uses{Shares: true, Copies: plain, Spills: plain, Beams: true, Rollback: true}
}

func (g Window) alone() bool { return g.Sinks > 0 }

func (Window) places(tokens, slabTokens int) int { return divideUp(tokens, slabTokens) }

func (Window) head() int { return 0 }

func (Window) every() int { return 0 }

func (g Window) sees(position int) int { return max(0, position-g.Tokens+1) }

func (g Window) trims() (live, kept int) { return g.Live, g.Sinks }

func (g Window) need(n *Need) {
	n.LiveSlabs = g.Live
	n.Groups.Windowed++
}

// LiveSlabs returns the most slabs of a windowed group that a sequence has at once, whose tokens see a window: those of its next token's
// window, one more, and those of ahead tokens from that token on.
func LiveSlabs(window, ahead, slabTokens int) int { return divideUp(window-1+ahead, slabTokens) + 2 }
