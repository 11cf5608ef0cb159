package kvmgr

import "fmt"

// Full is a group whose layers see all tokens: a sequence keeps all slabs to its end.
type Full struct {
	// Head is the number of slabs of a sequence before those of its tokens, for what changes while it runs. With a head there is one group,
	// and no other sequence reads the slabs.
	Head int
}

func (g Full) String() string {
	if g.Head > 0 {
		return fmt.Sprintf("all tokens after a head of %d slabs", g.Head)
	}
	return "all tokens"
}

func (g Full) validate(int) error {
	if g.Head < 0 {
		return fmt.Errorf("%w: %d slabs before those of the tokens, expected 0 or more", ErrInvalid, g.Head)
	}
	return nil
}

func (g Full) uses() Uses {
	plain := g.Head == 0
	return Uses{Shares: plain, Copies: plain, Spills: plain, Beams: plain, Rollback: plain}
}

func (g Full) alone() bool { return g.Head > 0 }

func (Full) places(tokens, slabTokens int) int { return divideUp(tokens, slabTokens) }

func (g Full) head() int { return g.Head }

func (Full) every() int { return 0 }

func (Full) sees(int) int { return 0 }

func (Full) trims() (live, kept int) { return 0, 0 }

func (g Full) need(n *Need) {
	n.HeadSlabs += g.Head
	n.Groups.Full++
}
