package route_test

import (
	"cmp"
	"container/heap"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/cluster/prefix"
	"github.com/millrace/millrace/cluster/route"
	"github.com/millrace/millrace/kvmgr"
	"github.com/millrace/millrace/kvmgr/chain"
)

const (
	slabTokens    = 16
	conversations = 200
	turns         = 8
	totalSlabs    = 10_000
	totalCapacity = 64 // sequences of a step
	eventsTake    = 50 * time.Millisecond
)

// cluster is workers with a prefix cache each, and a gateway that knows them by events that take their time. It has no clock:
// a heap has what happens next.
type cluster struct {
	t        *testing.T
	rng      *rand.Rand
	now      time.Duration
	todo     happenings
	n        int
	workers  []*worker
	index    *prefix.Index
	router   *route.Router
	prompted int // tokens of all prompts
	hits     int // that needed no step
}

type worker struct {
	node     string
	kv       *kvmgr.Manager
	source   *prefix.Source
	sent     map[kvmgr.Seq][]chain.Hash
	queue    []*sequence
	running  int
	capacity int
	served   int // sequences
	work     int // tokens that needed a step
}

type sequence struct {
	id     kvmgr.Seq
	prompt []int32
	answer int
	done   func(tokens []int32)
}

type happening struct {
	at time.Duration
	n  int // in the order in which they were planned
	do func()
}

type happenings []happening

func (h *happenings) Len() int { return len(*h) }
func (h *happenings) Less(i, j int) bool {
	a, b := (*h)[i], (*h)[j]
	return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.n, b.n)) < 0
}
func (h *happenings) Swap(i, j int) { (*h)[i], (*h)[j] = (*h)[j], (*h)[i] }
func (h *happenings) Push(x any)    { *h = append(*h, x.(happening)) }
func (h *happenings) Pop() any {
	old := *h
	x := old[len(old)-1]
	*h = old[:len(old)-1]
	return x
}

func (c *cluster) after(d time.Duration, do func()) {
	c.n++
	heap.Push(&c.todo, happening{c.now + d, c.n, do})
}

func newCluster(t *testing.T, seed uint64, workers int) *cluster {
	c := &cluster{t: t, rng: rand.New(rand.NewPCG(seed, 1)), index: prefix.NewIndex()}
	c.router = route.New(route.Default(), rand.New(rand.NewPCG(seed, 2)))
	follow := map[string]int{}
	for i := range workers {
		kv, err := kvmgr.New(kvmgr.Config{Slabs: totalSlabs / workers, Spec: kvmgr.NewSpec(slabTokens, kvmgr.Full{})})
		require.NoError(t, err)
		kv.Record()
		w := &worker{
			node: string(rune('a' + i)), kv: kv, source: prefix.NewSource(prefix.Salt{byte(i)}), sent: map[kvmgr.Seq][]chain.Hash{},
			capacity: totalCapacity / workers,
		}
		c.workers = append(c.workers, w)
		follow[w.node] = totalSlabs / workers
	}
	c.index.Follow(follow)
	for _, w := range c.workers {
		s := w.source.Snapshot()
		require.NoError(t, c.index.Load(w.node, &s))
	}
	return c
}

// place chooses a worker as a gateway does.
func (c *cluster) place(s *sequence) {
	hashes := chain.Of("tenant", slabTokens, s.prompt)
	list := make([]route.Worker, len(c.workers))
	for i, w := range c.workers {
		overlap := c.index.Overlap(w.node, hashes)
		for _, sent := range w.sent {
			overlap = max(overlap, chain.Common(sent, hashes))
		}
		list[i] = route.Worker{
			Node: w.node, Model: "m", Running: w.running, Waiting: len(w.queue), Capacity: w.capacity,
			FreeSlabs: w.kv.Stats().Free, Overlap: overlap, Blocks: c.index.Blocks(w.node),
		}
	}
	q := route.Query{Model: "m", Slabs: (len(s.prompt) + s.answer) / slabTokens, Blocks: len(hashes), ByOverlap: true}
	w := c.workers[c.router.Compute(c.now, q, list)]
	w.sent[s.id] = hashes
	w.served++
	w.queue = append(w.queue, s)
	c.begin(w)
}

// begin starts what waits at a worker, as far as there is room.
func (c *cluster) begin(w *worker) {
	for w.running < w.capacity {
		i := slices.IndexFunc(w.queue, func(s *sequence) bool { return c.start(w, s) })
		if i < 0 {
			return
		}
		w.queue = slices.Delete(w.queue, i, i+1)
	}
}

// start starts a sequence; false if it has to wait for memory, or for a prefix that another one computes.
func (c *cluster) start(w *worker, s *sequence) bool {
	limit := len(s.prompt) + s.answer
	hit, err := w.kv.ReservePrompt(s.id, kvmgr.Declared(limit), kvmgr.Prompt{Space: "tenant", Tokens: s.prompt})
	if errors.Is(err, kvmgr.ErrNoSlabs) || errors.Is(err, kvmgr.ErrComputing) {
		return false
	}
	require.NoError(c.t, err)
	_, err = w.kv.Lease(s.id, limit)
	require.NoError(c.t, err)
	w.running++
	c.prompted, c.hits = c.prompted+len(s.prompt), c.hits+hit.Tokens
	w.work += limit - hit.Tokens
	prefill := time.Duration(len(s.prompt)-hit.Tokens) * time.Millisecond
	decode := time.Duration(s.answer) * 20 * time.Millisecond
	tokens := slices.Clone(s.prompt)
	for range s.answer {
		tokens = append(tokens, c.token())
	}
	c.after(prefill, func() {
		require.NoError(c.t, w.kv.Commit(s.id, s.prompt, true))
		c.publish(w)
	})
	c.after(prefill+decode, func() {
		require.NoError(c.t, w.kv.Commit(s.id, tokens[:len(tokens)-1], true))
		_, err := w.kv.Release(s.id)
		require.NoError(c.t, err)
		delete(w.sent, s.id)
		w.running--
		c.publish(w)
		s.done(tokens)
	})
	return true
}

// publish sends the events of a worker to the gateway, and starts what waited.
func (c *cluster) publish(w *worker) {
	w.kv.Ready()
	w.source.Apply(w.kv.Changes())
	for _, e := range w.source.Flush() {
		c.after(eventsTake, func() { c.index.Event(w.node, e) })
	}
	c.begin(w)
}

func (c *cluster) token() int32 { return c.rng.Int32N(32000) }

// converse has a conversation: each turn is all that was said before, and a message.
func (c *cluster) converse(number int, tokens []int32) {
	left := turns
	var say func(before []int32)
	say = func(before []int32) {
		if left--; left < 0 {
			return
		}
		prompt := slices.Clone(before)
		for range 20 + c.rng.IntN(100) {
			prompt = append(prompt, c.token())
		}
		s := &sequence{id: kvmgr.Seq(number*turns + left), prompt: prompt, answer: 30 + c.rng.IntN(170), done: func(tokens []int32) {
			c.after(time.Duration(1+c.rng.IntN(10))*time.Second, func() { say(tokens) })
		}}
		c.place(s)
	}
	say(tokens)
}

func (c *cluster) run() {
	var systems [5][]int32
	for i := range systems {
		for range 100 + 50*i {
			systems[i] = append(systems[i], c.token())
		}
	}
	for i := range conversations {
		c.after(time.Duration(c.rng.IntN(60_000))*time.Millisecond, func() { c.converse(i, systems[i%len(systems)]) })
	}
	for len(c.todo) > 0 {
		h := heap.Pop(&c.todo).(happening)
		c.now = h.at
		h.do()
	}
}

// TestConversationsFindTheirPrefixes: four workers find nearly as many tokens as one with the memory of all, and share the
// work evenly.
func TestConversationsFindTheirPrefixes(t *testing.T) {
	for seed := range uint64(5) {
		one, four := newCluster(t, seed, 1), newCluster(t, seed, 4)
		one.run()
		four.run()
		ratio := (float64(four.hits) / float64(four.prompted)) / (float64(one.hits) / float64(one.prompted))
		served, work := 0, 0
		for _, w := range four.workers {
			require.NoError(t, w.kv.Check())
			served, work = served+w.served, work+w.work
		}
		require.Equal(t, conversations*turns, served)
		t.Logf("seed %d: one worker %.3f of prompt tokens, four %.3f (%.3f of it), in %s and %s", seed,
			float64(one.hits)/float64(one.prompted), float64(four.hits)/float64(four.prompted), ratio, one.now, four.now)
		for _, w := range four.workers {
			s, x := float64(w.served)/float64(served)*4, float64(w.work)/float64(work)*4
			t.Logf("  worker %s: %.3f of an even share of sequences, %.3f of tokens", w.node, s, x)
			require.InDelta(t, 1, s, 0.15, "sequences of worker %s, seed %d", w.node, seed)
			require.InDelta(t, 1, x, 0.15, "tokens of worker %s, seed %d", w.node, seed)
		}
		require.GreaterOrEqual(t, ratio, 0.9, "seed %d", seed)
		require.Less(t, one.hits, one.prompted*9/10, "the memory holds everything: nothing is evicted")
	}
}
