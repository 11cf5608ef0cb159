package kvmgr

import "math"

// Need is how many slabs a sequence needs, whatever its groups are: HeadSlabs, and for each position one slab of each full group, and of
// each windowed group as many as LiveSlabs allows. It is the part of a Spec that beats have, by these names. The zero value is that of one
// full group.
type Need struct {
	SlabTokens int  `json:"slab_tokens"`
	LiveSlabs  int  `json:"live_slabs,omitempty"` // of a windowed group, that a sequence has at once at most; 0: any number
	HeadSlabs  int  `json:"head_slabs,omitempty"` // before those of the tokens
	NoBeams    bool `json:"no_beams,omitempty"`   // there are no beam searches
	// Groups are the groups of layers. Members of earlier versions have one.
	Groups Counts `json:"groups,omitzero"`
}

// groups are the groups by what they need: without a bound all are full.
func (n Need) groups() Counts {
	switch {
	case n.LiveSlabs == 0:
		return Counts{Full: n.Groups.Count()}
	case n.Groups == Counts{}:
		return Counts{Windowed: 1}
	}
	return n.Groups
}

// AtOnce is the number of slabs that a sequence with tokens in some positions has at once at most.
func (n Need) AtOnce(positions int) int {
	g := n.groups()
	return n.HeadSlabs + g.Full*positions + g.Windowed*min(positions, n.LiveSlabs)
}

// Longest is the number of positions of the longest sequence without beams that fits into a pool of slabs.
func (n Need) Longest(pool int) int {
	g := n.groups()
	pool = max(pool-n.HeadSlabs, 0)
	switch most := pool / g.Count(); {
	case g.Windowed == 0 || most < n.LiveSlabs:
		return most
	case g.Full == 0:
		return math.MaxInt32
	}
	return (pool - g.Windowed*n.LiveSlabs) / g.Full
}

// Positions is the number of positions of a pool in which sequences keep all slabs, as beams do.
func (n Need) Positions(pool int) int { return max(pool-n.HeadSlabs, 0) / n.Groups.Count() }
