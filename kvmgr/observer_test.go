package kvmgr

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/millrace/millrace/kvmgr/chain"
)

// claims are the hashes under which others would find slabs if the process died now.
type claims map[int32]chain.Hash

// Void is of Observer.
func (c claims) Void(slabs []int32) {
	for _, id := range slabs {
		delete(c, id)
	}
}

// Leased is of Observer.
func (c claims) Leased(Seq, int, []int32) {}

// Stored is of Observer.
func (c claims) Stored(slab int32, prefix chain.Hash) { c[slab] = prefix }

// meaning is what the slab with a hash holds: the last of some tokens, or a part of the state after them.
func (w *world) meaning(all map[chain.Hash][]uint64, q *tracked) {
	prefix := chain.Root(spaceName(q.space))
	for n := 1; n <= len(q.ids); n++ {
		from := (n - 1) / w.cfg.SlabTokens * w.cfg.SlabTokens
		hash := prefix.Next(q.ids[from:n])
		if n%w.cfg.SlabTokens == 0 {
			prefix = hash
		}
		var tokens []uint64
		for _, h := range q.hashes[from:n] {
			tokens = append(tokens, content(h, 0))
		}
		all[hash] = tokens
		for i := range w.cfg.Head {
			all[StateHash(hash, i)] = []uint64{stateOf(q.hashes[n-1], i)}
		}
	}
}

// TestSlabsHoldWhatIsSaidOfThem at any moment, also those of states: a slab that another sequence may write to is no longer one of them.
func TestSlabsHoldWhatIsSaidOfThem(t *testing.T) {
	happened := map[string]int{}
	for seed := range uint64(100) {
		rng := rand.New(rand.NewPCG(seed, 17))
		cfg := layout{Slabs: 8 + rng.IntN(40), SlabTokens: 2 + rng.IntN(4), Head: 1 + rng.IntN(3)}
		cfg.Every = cfg.SlabTokens * (1 + rng.IntN(4))
		w := newWorld(t, fmt.Sprintf("seed %d", seed), cfg, rng.IntN)
		said, all, known := claims{}, map[chain.Hash][]uint64{}, map[*tracked]bool{}
		w.m.Observe(said)
		for range 400 {
			w.op()
			for _, q := range w.seqs {
				if q != nil && !known[q] {
					known[q] = true
					w.meaning(all, q)
				}
			}
			for slab, hash := range said {
				want, ok := all[hash]
				if !ok {
					w.fail("slab %d has a hash of no tokens", slab)
				}
				for i, value := range want {
					if w.contents[slab][i] != value {
						w.fail("slab %d does not hold what is said of it, at %d of %d", slab, i, len(want))
					}
				}
			}
		}
		for what, n := range w.happened {
			happened[what] += n
		}
	}
	for _, what := range []string{"snapshot", "state of an answer", "hit of a state inside a slab", "import of a state"} {
		if happened[what] == 0 {
			t.Errorf("no operation had a %s", what)
		}
	}
}
