package kvmgr

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"

	"github.com/millrace/millrace/kvmgr/chain"
)

// inTree are the hashes of the full slabs of a manager's tree, made anew from their tokens; with a window those too that were evicted and
// whose nodes are there.
func inTree(m *Manager) map[chain.Hash]bool {
	set := map[chain.Hash]bool{}
	var walk func(n *node, h chain.Hash)
	walk = func(n *node, h chain.Hash) {
		for _, c := range n.children {
			if len(c.tokens) == m.slabTokens {
				next := h.Next(c.tokens)
				if c.slab >= 0 || c.known {
					set[next] = true
				}
				walk(c, next)
			}
		}
	}
	for space, n := range m.trees[0].spaces {
		walk(n, chain.Root(space))
	}
	return set
}

func TestChangesAddUpToTheTree(t *testing.T) {
	stored, removed := 0, 0
	for seed := range uint64(30) {
		rng := rand.New(rand.NewPCG(seed, 3))
		cfg := layout{Slabs: 8 + int(seed), SlabTokens: 1 + int(seed%5)}
		if seed%2 == 1 {
			cfg.Window, cfg.Live = 2+int(seed%7), LiveSlabs(2+int(seed%7), 2*cfg.SlabTokens, cfg.SlabTokens)
		}
		p := newWorld(t, fmt.Sprintf("seed %d", seed), cfg, rng.IntN)
		var set map[chain.Hash]bool
		begin := int(seed) * 10
		for i := range 700 {
			p.op()
			if i == 500 && seed%4 == 0 {
				p.forget()
			}
			list := p.m.Changes()
			if i < begin {
				if len(list) > 0 {
					t.Fatalf("nobody wants changes, found %d", len(list))
				}
				continue
			}
			if i == begin {
				set = map[chain.Hash]bool{}
				p.m.Record()
				list = p.m.Changes()
			}
			for _, c := range list {
				if set[c.Hash] == c.Stored {
					t.Fatalf("seed %d, operation %d: %+v, in the tree before: %t", seed, i, c, set[c.Hash])
				}
				if c.Stored {
					set[c.Hash], stored = true, stored+1
				} else {
					delete(set, c.Hash)
					removed++
				}
			}
			if want := inTree(p.m); !maps.Equal(set, want) {
				t.Fatalf("seed %d, operation %d: the changes add up to %d slabs, the tree has %d", seed, i, len(set), len(want))
			}
		}
	}
	if stored == 0 || removed == 0 {
		t.Fatalf("%d slabs were stored, %d removed", stored, removed)
	}
}
