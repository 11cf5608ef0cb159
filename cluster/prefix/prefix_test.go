package prefix

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/kvmgr"
	"github.com/millrace/millrace/kvmgr/chain"
)

const slabTokens = 4

// world is workers whose events reach a gateway's index late, twice or not at all.
type world struct {
	t       *testing.T
	rng     *rand.Rand
	now     time.Time
	index   *Index
	workers map[string]*testWorker
	made    int
	dropped int
}

// testWorker is a worker and what is on the way from it.
type testWorker struct {
	*Source
	has       map[chain.Hash][]int32 // the tokens of each prefix in its cache
	events    []Event
	snapshots []Snapshot
}

func newWorld(t *testing.T, seed uint64) *world {
	w := &world{t: t, rng: rand.New(rand.NewPCG(seed, 1)), now: time.Unix(0, 0), index: NewIndex(), workers: map[string]*testWorker{}}
	for range 3 {
		w.join()
	}
	return w
}

func (w *world) join() {
	w.made++
	salt := Salt{byte(w.made)}
	w.workers[fmt.Sprint("node", w.made)] = &testWorker{Source: NewSource(salt), has: map[chain.Hash][]int32{}}
	w.follow()
}

func (w *world) follow() {
	slabs := map[string]int{}
	for node := range w.workers {
		slabs[node] = 1000
	}
	w.index.Follow(slabs)
}

// any is one of the workers.
func (w *world) any() (string, *testWorker) {
	nodes := slices.Sorted(maps.Keys(w.workers))
	node := nodes[w.rng.IntN(len(nodes))]
	return node, w.workers[node]
}

// prompt is one of few, so that they share beginnings.
func (w *world) prompt() []int32 {
	ids := make([]int32, w.rng.IntN(6*slabTokens))
	for i := range ids {
		ids[i] = int32(w.rng.IntN(2))
	}
	return ids
}

// change makes a worker compute a prompt, or evict a leaf.
func (w *world) change(x *testWorker) {
	if w.rng.IntN(3) > 0 {
		ids := w.prompt()
		for i, h := range chain.Of("", slabTokens, ids) {
			if x.has[h] == nil {
				x.has[h] = ids[:(i+1)*slabTokens]
				x.Apply([]kvmgr.Change{{Hash: h, Stored: true}})
			}
		}
		return
	}
	for h, ids := range x.has {
		leaf := true
		for _, other := range x.has {
			if len(other) > len(ids) && slices.Equal(other[:len(ids)], ids) {
				leaf = false
			}
		}
		if leaf {
			delete(x.has, h)
			x.Apply([]kvmgr.Change{{Hash: h}})
			return
		}
	}
}

// deliver hands the gateway what is next on the way; lossy: or loses it, or hands it over twice.
func (w *world) deliver(node string, x *testWorker, lossy bool) {
	if len(x.snapshots) > 0 && w.rng.IntN(2) == 0 {
		s := x.snapshots[0]
		x.snapshots = x.snapshots[1:]
		if !lossy || w.rng.IntN(4) > 0 {
			require.NoError(w.t, w.index.Load(node, &s))
		}
		return
	}
	if len(x.events) == 0 {
		return
	}
	e, err := Decode(x.events[0].Encode())
	require.NoError(w.t, err)
	switch n := w.rng.IntN(10); {
	case lossy && n == 0:
		w.dropped++
	case lossy && n == 1:
		w.index.Event(node, e)
		w.index.Event(node, e)
	default:
		w.index.Event(node, e)
	}
	x.events = x.events[1:]
}

func (w *world) ask() {
	w.now = w.now.Add(time.Duration(w.rng.IntN(int(askAgain))))
	for _, node := range w.index.Ask(w.now) {
		x := w.workers[node]
		x.snapshots = append(x.snapshots, x.Snapshot())
	}
}

func (w *world) op() {
	node, x := w.any()
	switch w.rng.IntN(20) {
	case 0:
		delete(w.workers, node) // it died, with its events on the way
		w.join()
	case 1, 2, 3, 4, 5, 6, 7:
		w.change(x)
	case 8, 9, 10:
		x.events = append(x.events, x.Flush()...)
	case 11:
		w.ask()
	default:
		w.deliver(node, x, true)
	}
}

// settle delivers everything. The last event shows each gap.
func (w *world) settle() {
	for _, x := range w.workers {
		w.made++
		ids := []int32{int32(w.made), 0, 0, 0}
		h := chain.Of("", slabTokens, ids)[0]
		x.has[h] = ids
		x.Apply([]kvmgr.Change{{Hash: h, Stored: true}})
		x.events = append(x.events, x.Flush()...)
	}
	for range 3 {
		for node, x := range w.workers {
			for len(x.events)+len(x.snapshots) > 0 {
				w.deliver(node, x, false)
			}
		}
		w.now = w.now.Add(askAgain << mostDoubled)
		w.ask()
	}
}

// check compares the index with the workers' caches, by brute force.
func (w *world) check() {
	w.t.Helper()
	size := 0
	require.Equal(w.t, slices.Sorted(maps.Keys(w.workers)), w.index.Nodes())
	for node, x := range w.workers {
		require.True(w.t, w.index.Fresh(node), node)
		require.Equal(w.t, len(x.has), w.index.Blocks(node), node)
		size += len(x.has)
		for range 50 {
			hashes := chain.Of("", slabTokens, w.prompt())
			want := 0
			for want < len(hashes) && x.has[hashes[want]] != nil {
				want++
			}
			require.Equal(w.t, want, w.index.Overlap(node, hashes), node)
			require.Zero(w.t, w.index.Overlap("nobody", hashes))
		}
	}
	require.Equal(w.t, size, w.index.Size())
}

func TestAnIndexIsWhatTheWorkersHave(t *testing.T) {
	dropped, gaps := 0, 0
	for seed := range uint64(60) {
		w := newWorld(t, seed)
		for range 10 {
			for range 200 {
				w.op()
			}
			w.settle()
			w.check()
		}
		dropped, gaps = dropped+w.dropped, gaps+w.index.Gaps()
	}
	require.NotZero(t, dropped)
	require.NotZero(t, gaps)
}

func TestAWorkerThatIsGoneHasNothing(t *testing.T) {
	x := NewIndex()
	x.Follow(map[string]int{"a": 10, "b": 10})
	prompt := chain.Of("", slabTokens, make([]int32, 12))
	for _, node := range []string{"a", "b"} {
		s := NewSource(Salt{1})
		for _, h := range prompt {
			s.Apply([]kvmgr.Change{{Hash: h, Stored: true}})
		}
		require.Empty(t, s.Snapshot().Blocks, "no event has them")
		s.Flush()
		snap := s.Snapshot()
		require.NoError(t, x.Load(node, &snap))
		require.Equal(t, 3, x.Overlap(node, prompt))
	}
	require.Equal(t, 6, x.Size())
	x.Follow(map[string]int{"b": 10, "c": 10})
	require.Zero(t, x.Overlap("a", prompt))
	require.Equal(t, 3, x.Overlap("b", prompt))
	require.Equal(t, 3, x.Size())
	x.Event("a", Event{Number: 1, Stored: []ID{1}})
	require.Equal(t, []string{"c"}, x.Ask(time.Unix(1, 0)))
}

func TestSaltsAndSpacesDivideIDs(t *testing.T) {
	tokens := make([]int32, slabTokens)
	seen := map[ID]bool{}
	for _, space := range []string{"a", "b"} {
		for _, salt := range []Salt{{1}, {2}} {
			id := salt.ID(chain.Of(space, slabTokens, tokens)[0])
			require.False(t, seen[id])
			seen[id] = true
		}
	}
}

func TestWhatExceedsAPoolIsNotKept(t *testing.T) {
	x := NewIndex()
	x.Follow(map[string]int{"a": 3})
	require.ErrorIs(t, x.Load("a", &Snapshot{Blocks: make([]ID, 4)}), ErrTooLarge)
	require.False(t, x.Fresh("a"))
	require.NoError(t, x.Load("a", &Snapshot{Blocks: []ID{1, 2}}))
	x.Event("a", Event{Number: 1, Stored: []ID{3, 4}})
	require.False(t, x.Fresh("a"))
	require.Equal(t, []string{"a"}, x.Ask(time.Unix(1, 0)))
}

func TestLargeChangesBecomeSeveralEvents(t *testing.T) {
	s := NewSource(Salt{})
	var list []kvmgr.Change
	for i := range 3 * mostIDs / 2 {
		list = append(list, kvmgr.Change{Hash: chain.Hash{byte(i), byte(i >> 8)}, Stored: true})
	}
	s.Apply(list)
	s.Apply([]kvmgr.Change{{Hash: list[0].Hash}})
	events := s.Flush()
	require.Len(t, events, 2)
	require.Equal(t, []uint64{1, 2}, []uint64{events[0].Number, events[1].Number})
	require.Equal(t, 3*mostIDs/2-1, len(events[0].Stored)+len(events[1].Stored), "a slab that came and went is no change")
	require.Empty(t, s.Flush())
}

func TestBrokenEventsAreRefused(t *testing.T) {
	e := Event{Number: 300, Stored: []ID{1, 2}, Removed: []ID{3}}
	b := e.Encode()
	got, err := Decode(b)
	require.NoError(t, err)
	require.Equal(t, e, got)
	for n := range b {
		if _, err := Decode(b[:n]); err != nil {
			require.ErrorIs(t, err, ErrEvent)
		} else {
			require.Zero(t, (len(b)-n)%idBytes)
		}
	}
	b[0] = 9
	_, err = Decode(b)
	require.ErrorIs(t, err, ErrEvent)
	_, err = Decode([]byte{version, 1, 200, 1, 0, 0, 0, 0, 0, 0, 0, 0})
	require.ErrorIs(t, err, ErrEvent, "more ids than bytes")
}

// BenchmarkLoad takes a snapshot of 100,000 slabs at a worker and loads it into an index.
func BenchmarkLoad(b *testing.B) {
	s := NewSource(Salt{1})
	for i := range 100_000 {
		s.Apply([]kvmgr.Change{{Hash: chain.Hash{byte(i), byte(i >> 8), byte(i >> 16)}, Stored: true}})
	}
	s.Flush()
	b.ReportAllocs()
	for b.Loop() {
		x := NewIndex()
		x.Follow(map[string]int{"a": 100_000})
		snap := s.Snapshot()
		if err := x.Load("a", &snap); err != nil || x.Size() != 100_000 {
			b.Fatal(x.Size(), err)
		}
	}
}

// BenchmarkOverlap finds a prompt of 100,000 tokens.
func BenchmarkOverlap(b *testing.B) {
	prompt := chain.Of("", 16, make([]int32, 100_000))
	s := NewSource(Salt{1})
	for _, h := range prompt {
		s.Apply([]kvmgr.Change{{Hash: h, Stored: true}})
	}
	s.Flush()
	snap := s.Snapshot()
	x := NewIndex()
	x.Follow(map[string]int{"a": len(prompt)})
	if err := x.Load("a", &snap); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		x.Overlap("a", prompt)
	}
}
