package prefix

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sort"
	"time"

	"github.com/millrace/millrace/kvmgr/chain"
)

// askAgain is how long a snapshot may take to arrive. Each further time is twice as long, up to 2^mostDoubled times: a worker
// of an earlier version never answers.
const (
	askAgain    = 2 * time.Second
	mostDoubled = 5
)

// mostWaiting bounds the events of a worker that wait for its snapshot.
const mostWaiting = 256

// ErrTooLarge is a snapshot with more slabs than its worker's pool has.
var ErrTooLarge = errors.New("prefix: more slabs than the pool has")

// Index is what a gateway knows of the workers' caches. A worker that the index does not follow has nothing there.
type Index struct {
	workers map[string]*cache // by node
	gaps    int
	blocks  int
}

// cache is what is known of a worker's cache. Without its snapshot, or after a gap, it is old until the next snapshot.
type cache struct {
	slabs   int // of the pool: the cache cannot have more
	salt    Salt
	number  uint64 // of the last event
	blocks  map[ID]struct{}
	fresh   bool      // no event is missing
	waiting []Event   // while it is not fresh
	last    time.Time // request
	times   int       // requests for this snapshot
}

// NewIndex returns an index that follows nobody.
func NewIndex() *Index { return &Index{workers: make(map[string]*cache)} }

// Follow sets the workers to follow, and the slabs of their pools. What is known of others is forgotten.
func (x *Index) Follow(workers map[string]int) {
	for node, c := range x.workers {
		if _, there := workers[node]; !there {
			x.blocks -= len(c.blocks)
			delete(x.workers, node)
		}
	}
	for node, slabs := range workers {
		if x.workers[node] == nil {
			x.workers[node] = &cache{slabs: slabs}
		}
	}
}

// Ask returns the workers whose snapshots to request now.
func (x *Index) Ask(now time.Time) (nodes []string) {
	for node, c := range x.workers {
		if !c.fresh && (c.times == 0 || now.Sub(c.last) >= askAgain<<min(c.times-1, mostDoubled)) {
			c.last, c.times = now, c.times+1
			nodes = append(nodes, node)
		}
	}
	slices.Sort(nodes)
	return nodes
}

// Event takes an event of a worker. An old one changes nothing. After a gap the worker's snapshot is missing.
func (x *Index) Event(node string, e Event) {
	c := x.workers[node]
	switch {
	case c == nil || e.Number <= c.number:
		return
	case c.fresh && e.Number == c.number+1:
		x.apply(c, e)
		return
	case c.fresh:
		x.gaps++
		c.stale()
	}
	if len(c.waiting) == mostWaiting {
		c.waiting = nil // the snapshot will be older than the ones that follow, and another one is needed
	}
	c.waiting = append(c.waiting, e)
}

// stale makes a cache wait for a snapshot.
func (c *cache) stale() { c.fresh, c.times, c.waiting = false, 0, nil }

func (x *Index) apply(c *cache, e Event) {
	x.blocks -= len(c.blocks)
	for _, id := range e.Stored {
		c.blocks[id] = struct{}{}
	}
	for _, id := range e.Removed {
		delete(c.blocks, id)
	}
	c.number = e.Number
	x.blocks += len(c.blocks)
	if len(c.blocks) > c.slabs {
		c.stale()
	}
}

// Load takes the snapshot of a worker, and the events that arrived after it. Error: ErrTooLarge; what is known stays then.
func (x *Index) Load(node string, s *Snapshot) error {
	c := x.workers[node]
	if c == nil || c.fresh || s.Number < c.number {
		return nil // a late answer
	}
	if len(s.Blocks) > c.slabs {
		return fmt.Errorf("%w: %d in the snapshot of %s, expected at most %d", ErrTooLarge, len(s.Blocks), node, c.slabs)
	}
	x.blocks -= len(c.blocks)
	c.blocks = make(map[ID]struct{}, len(s.Blocks))
	for _, id := range s.Blocks {
		c.blocks[id] = struct{}{}
	}
	x.blocks += len(c.blocks)
	waiting := c.waiting
	c.salt, c.number, c.fresh, c.waiting = s.Salt, s.Number, true, nil
	for _, e := range waiting {
		x.Event(node, e)
	}
	return nil
}

// Overlap returns how many of the first slabs of a prompt a worker has. Its cost is O(log n) hashes: a worker that has a slab
// also has those before it.
func (x *Index) Overlap(node string, prompt []chain.Hash) int {
	c := x.workers[node]
	if c == nil || len(c.blocks) == 0 {
		return 0
	}
	return sort.Search(len(prompt), func(i int) bool {
		_, has := c.blocks[c.salt.ID(prompt[i])]
		return !has
	})
}

// Blocks returns how many slabs a worker has.
func (x *Index) Blocks(node string) int {
	if c := x.workers[node]; c != nil {
		return len(c.blocks)
	}
	return 0
}

// Fresh says whether the snapshot of a worker is there and no event is missing since.
func (x *Index) Fresh(node string) bool {
	c := x.workers[node]
	return c != nil && c.fresh
}

// Nodes returns the workers that the index follows, sorted.
func (x *Index) Nodes() []string { return slices.Sorted(maps.Keys(x.workers)) }

// Size returns how many slabs all workers have together.
func (x *Index) Size() int { return x.blocks }

// Gaps returns how many times events were missing.
func (x *Index) Gaps() int { return x.gaps }
