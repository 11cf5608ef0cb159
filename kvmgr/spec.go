package kvmgr

import (
	"fmt"
	"math"
)

// Spec is what a sequence of a program keeps of its keys and values, and what may be done with it. It is made once, when the program and
// its pool are known, and carried whole from there.
type Spec struct {
	SlabTokens int     // of a slab of any group
	Groups     []Group // of layers, each with slabs of its own of one size, in one pool: those that keep all slabs first; at least one
	Uses
}

// Uses is what may be done with the slabs of sequences, beside computing their next tokens.
type Uses struct {
	Shares   bool // sequences share the slabs of the tokens that they begin with
	Copies   bool // slabs may be copied out of the pool and back: to the disk, to another worker
	Spills   bool // all slabs of a sequence may be, while it is paused: to the tier
	Beams    bool // beams share the slabs of their prompt
	Rollback bool // the last tokens may be taken back, as rejected draft tokens are
}

func (u Uses) and(o Uses) Uses {
	return Uses{u.Shares && o.Shares, u.Copies && o.Copies, u.Spills && o.Spills, u.Beams && o.Beams, u.Rollback && o.Rollback}
}

// Wants are the options of a process that not every Spec allows.
type Wants struct {
	Disk bool // slabs outlive the process
	Tier bool // slabs of paused sequences wait outside the pool
	// Drafts are tokens that a step computes and may reject.
	Drafts bool
}

// Group is what a sequence keeps for one group of layers: Full, Window, Bounded or State. Each has a file, with the same functions.
type Group interface {
	fmt.Stringer // for messages
	// validate returns an ErrInvalid for numbers that cannot be, in slabs of some tokens.
	validate(slabTokens int) error
	// uses returns what may be done with the slabs.
	uses() Uses
	// alone says that there can be no other group beside it.
	alone() bool
	// places is the number of slabs up to the end of a sequence's first tokens, those that it gave back counted. It is that of all groups
	// of a Spec that have slabs of tokens.
	places(tokens, slabTokens int) int
	// head is the number of slabs before those of the tokens.
	head() int
	// every is the distance of snapshots in tokens. 0: the group has slabs of tokens, and no snapshots.
	every() int
	// sees returns the first token that a token at a position sees: a hit in the prefix tree needs the slabs from there on.
	sees(position int) int
	// trims returns how many slabs a sequence has at once at most, since it gives back those that it sees no more, and how many of these,
	// the first ones, it keeps all the same. 0: it keeps all slabs to its end.
	trims() (live, kept int)
	// need adds the slabs of the group to those that a sequence needs.
	need(n *Need)
}

// NewSpec returns the Spec of some groups, with all uses that they allow.
func NewSpec(slabTokens int, groups ...Group) Spec {
	s := Spec{SlabTokens: slabTokens, Groups: groups}
	s.Uses = s.allowed()
	return s
}

// allowed are the uses that all groups allow.
func (s Spec) allowed() Uses {
	u := Uses{Shares: true, Copies: true, Spills: true, Beams: true, Rollback: true}
	for _, g := range s.Groups {
		u = u.and(g.uses())
	}
	return u
}

// mostTokens keeps sums of tokens inside 32 bits.
const mostTokens = 1 << 30

// Validate returns an ErrInvalid for a Spec that cannot be, and for one that does not allow what a process wants. What excludes what is
// here.
func (s Spec) Validate(w Wants) error {
	if s.SlabTokens < 1 || s.SlabTokens > mostTokens {
		return fmt.Errorf("%w: tokens per slab %d, expected 1 to %d", ErrInvalid, s.SlabTokens, mostTokens)
	}
	if len(s.Groups) == 0 {
		return fmt.Errorf("%w: no groups of layers, expected at least one", ErrInvalid)
	}
	for i, g := range s.Groups {
		if err := g.validate(s.SlabTokens); err != nil {
			return err
		}
		if g.alone() && len(s.Groups) > 1 {
			return fmt.Errorf("%w: %d groups of layers of which one keeps %v, expected it alone", ErrInvalid, len(s.Groups), g)
		}
		if g.every() > 0 && (i != 1 || len(s.Groups) != 2 || s.Groups[0] != Group(Full{})) {
			return fmt.Errorf("%w: groups of layers keep %v, expected %v after one full group", ErrInvalid, s.Groups, g)
		}
		if i > 0 && trims(s.Groups[i-1]) && g != s.Groups[i-1] {
			return fmt.Errorf("%w: a group of layers keeps %v after one that keeps %v, expected full groups first and equal windows",
				ErrInvalid, g,
				s.Groups[i-1])
		}
	}
	if s.and(s.allowed()) != s.Uses {
		return fmt.Errorf("%w: uses %+v of groups that keep %v, expected at most %+v", ErrInvalid, s.Uses, s.Groups, s.allowed())
	}
	return s.validateWants(w)
}

func (s Spec) validateWants(w Wants) error {
	switch n := s.Counts().Count(); {
	case w.Disk && !s.Copies:
		return fmt.Errorf("%w: the slabs of a sequence that keeps %v cannot be stored on a disk", ErrInvalid, s.last())
	case w.Disk && n > 1:
		return fmt.Errorf("%w: the slabs of %d groups of layers cannot be stored on a disk, expected one group", ErrInvalid, n)
	case w.Tier && !s.Spills:
		return fmt.Errorf("%w: the slabs of a sequence that keeps %v cannot be spilled", ErrInvalid, s.last())
	case w.Drafts && !s.Rollback:
		return fmt.Errorf("%w: a sequence that keeps %v takes no draft tokens back", ErrInvalid, s.last())
	}
	return nil
}

// Counts counts the groups that have slabs of tokens.
func (s Spec) Counts() (c Counts) {
	for _, g := range s.Groups {
		switch {
		case g.every() > 0:
		case trims(g):
			c.Windowed++
		default:
			c.Full++
		}
	}
	return c
}

// Need is what a sequence needs, for those who place sequences.
func (s Spec) Need() Need {
	n := Need{SlabTokens: s.SlabTokens, NoBeams: !s.Beams}
	for _, g := range s.Groups {
		g.need(&n)
	}
	return n
}

// places is the number of positions up to the end of a sequence's first tokens, without the head.
func (s Spec) places(tokens int) int { return s.Groups[0].places(tokens, s.SlabTokens) }

// Head is the number of slabs of a sequence before those of its tokens.
func (s Spec) Head() (slabs int) {
	for _, g := range s.Groups {
		slabs += g.head()
	}
	return slabs
}

// every is the distance of snapshots in tokens; 0: there are none.
func (s Spec) every() int { return s.last().every() }

// Hollow says that the slabs of tokens hold nothing: no layer has keys and values.
func (s Spec) Hollow() bool {
	g, ok := s.last().(State)
	return ok && g.Sole
}

// Tokens is the number of tokens that some leading slabs of each group hold, those of the head counted.
func (s Spec) Tokens(positions int) int { return max(positions-s.Head(), 0) * s.SlabTokens }

// last is the group that gives back the most.
func (s Spec) last() Group { return s.Groups[len(s.Groups)-1] }

func trims(g Group) bool {
	live, _ := g.trims()
	return live > 0
}

// Trims says whether a running sequence without beams gives slabs back: see FirstKept.
func (s Spec) Trims() bool { return trims(s.last()) }

// FirstKept returns the first token whose slab a sequence needs in all groups when its next token is at a position: the first one that this
// token sees, less a slab. So what the last whole slab before the position sees is complete too, for others to continue there.
func (s Spec) FirstKept(position int) int { return max(0, s.last().sees(position)-s.SlabTokens) }

// Limit returns the tokens up to which a sequence without beams may have slabs once it gave back those before a token.
func (s Spec) Limit(from int) int {
	live, kept := s.last().trims()
	if live == 0 {
		return math.MaxInt32
	}
	return (from/s.SlabTokens + live - kept) * s.SlabTokens
}
