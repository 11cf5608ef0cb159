// Package route chooses where a request is served. It is pure: no clock, no
// goroutine, no I/O; with the same random numbers, the same queries get the same
// answers, so that a simulation runs what a cluster runs.
//
// A compute worker is the better of two drawn at random (Mitzenmacher: The Power
// of Two Choices in Randomized Load Balancing, 2001): close to the least loaded
// one, without every gateway choosing the same worker on the same old news. Two
// workers are preferred to the draw while their load is not much higher: the worker
// of the same conversation, whose caches know it, and the worker in this process,
// which costs no message.
//
// A sequence that has begun continues at equal workers only, see Bond. A new one
// begins where it would find an equal worker, see Router.prefer.
//
// It must not know NATS, actors or where the state of a worker comes from.
package route

import (
	"hash/fnv"
	"math/rand/v2"
	"time"

	"github.com/millrace/millrace/kvmgr"
)

// Time is a duration since any fixed start.
type Time = time.Duration

// Worker is the known state of a compute worker.
type Worker struct {
	Node      string
	Model     string
	Numerics  string     // digest of its bits, see api.Pin
	Text      string     // digest of the tokenizer of its checkpoint, see api.Pin
	Local     bool       // in this process
	Duty      Duty       // the sequences that it should have
	Draining  bool       // takes nothing new
	Suspected bool       // no beat lately
	Busy      bool       // has sequences
	LastStep  Time       // the last progress while Busy
	Running   int        // sequences in steps
	Waiting   int        // sequences in the queue
	Capacity  int        // sequences of a step, at least 1
	FreeSlabs int        // of the KV pool, neither used nor promised
	KV        kvmgr.Need // of a sequence
	Overlap   int        // first slabs of the query's prompt that it has or computes, see Query.ByOverlap
	Blocks    int        // slabs in its prefix cache, as Overlap
}

// Load returns the number of sequences per sequence of a step. Above 1, some wait.
func (w *Worker) Load() float64 {
	return float64(w.Running+w.Waiting) / float64(max(w.Capacity, 1))
}

// fits says that a sequence of some slabs of each group has room.
func (w *Worker) fits(slabs int) bool { return w.FreeSlabs >= w.KV.AtOnce(slabs) }

// Query is a sequence to place.
type Query struct {
	Model        string
	Numerics     Bond   // of a sequence that has begun: only an equal worker continues it
	Text         Bond   // of the prompt's ids: with another checkpoint they are other words
	Begun        bool   // it leaves a worker with its keys and values: it needs no prefill
	Slabs        int    // of KV that it needs at first, of each group of layers
	Conversation uint64 // see Conversation; 0: none
	Blocks       int    // full slabs of its prompt
	ByOverlap    bool   // Worker.Overlap and Worker.Blocks are known
	Avoid        string // a node that has just failed it, "" for none: the last resort
}

// Config weighs preferences against load. Slacks are differences of Load.
type Config struct {
	StallAfter        time.Duration // a busy worker without a step for longer than this is not used
	ConversationSlack float64
	LocalSlack        float64
	// Prefill is what computing a whole prompt costs, as a difference of Load, and LongPrefill is the number of slabs that cost
	// another 1. ShortPrompt is the number of slabs below which a prompt costs its share of Prefill only.
	Prefill                  float64
	LongPrefill, ShortPrompt int
}

// Default returns the configuration of a server.
func Default() Config {
	return Config{
		StallAfter: 30 * time.Second, ConversationSlack: 0.25, LocalSlack: 0.25,
		Prefill: 0.75, LongPrefill: 1024, ShortPrompt: 16,
	}
}

// Router chooses workers and stages. It is for one goroutine.
type Router struct {
	cfg    Config
	random *rand.Rand
	usable []int // reused, as the next
	kinds  []kind
}

// New returns a router that draws from random.
func New(cfg Config, random *rand.Rand) *Router { return &Router{cfg: cfg, random: random} }

// Usable says whether a worker may get a sequence.
func (c Config) Usable(now Time, q *Query, w *Worker) bool {
	return !w.Draining && c.could(now, q, w)
}

// could is Usable for draining workers too.
func (c Config) could(now Time, q *Query, w *Worker) bool {
	return w.Model == q.Model && q.Numerics.Holds(w.Numerics) && q.Text.Holds(w.Text) &&
		!w.Suspected && (!w.Busy || now-w.LastStep <= c.StallAfter)
}

// Compute returns the index of the worker for a sequence, -1 if none may have it. A draining worker
// gets only a sequence that is bound to its digest and has no other worker.
func (r *Router) Compute(now Time, q Query, workers []Worker) int {
	r.usable = r.usable[:0]
	avoided, draining := -1, -1
	for i := range workers {
		w := &workers[i]
		switch {
		case !r.cfg.could(now, &q, w):
		case w.Draining:
			if q.Numerics.Bound {
				draining = i
			}
		case w.Node == q.Avoid && q.Avoid != "":
			avoided = i
		default:
			r.usable = append(r.usable, i)
		}
	}
	switch {
	case len(r.usable) > 0:
	case avoided >= 0:
		return avoided
	default:
		return draining
	}
	r.usable = belongs(&q, r.usable, workers)
	r.prefer(&q, workers)
	if q.ByOverlap {
		return r.cheapest(&q, workers)
	}
	best := r.two(q, workers)
	at := &workers[best]
	if i := r.home(q.Conversation, workers); i >= 0 && within(&workers[i], at, q, r.cfg.ConversationSlack) {
		return i
	}
	for _, i := range r.usable {
		if workers[i].Local && within(&workers[i], at, q, r.cfg.LocalSlack) {
			return i
		}
	}
	return best
}

// two draws two workers and returns the better one.
func (r *Router) two(q Query, workers []Worker) int {
	n := len(r.usable)
	if n == 1 {
		return r.usable[0]
	}
	first, second := r.random.IntN(n), r.random.IntN(n-1)
	if second >= first {
		second++
	}
	a, b := r.usable[first], r.usable[second]
	if better(&workers[b], &workers[a], q) {
		return b
	}
	return a
}

// better says that a sequence of q's size is served sooner by a than by b.
func better(a, b *Worker, q Query) bool {
	if fa, fb := a.fits(q.Slabs), b.fits(q.Slabs); fa != fb {
		return fa
	}
	return a.Load() < b.Load()
}

// within says that the load of a, which is preferred, is at most slack above that of b.
func within(a, b *Worker, q Query, slack float64) bool {
	return a.Load() <= b.Load()+slack && (a.fits(q.Slabs) || !b.fits(q.Slabs))
}

// home is the worker of a conversation: the one with the highest hash of both
// (rendezvous hashing), so that a worker that joins or leaves moves only its own.
func (r *Router) home(conversation uint64, workers []Worker) int {
	best, top := -1, uint64(0)
	if conversation == 0 {
		return best
	}
	for _, i := range r.usable {
		if h := mix(conversation, workers[i].Node); best < 0 || h > top {
			best, top = i, h
		}
	}
	return best
}

func mix(conversation uint64, node string) uint64 {
	h := fnv.New64a()
	var b [8]byte
	for i := range b {
		b[i] = byte(conversation >> (8 * i))
	}
	_, _ = h.Write(b[:]) // a hash never fails
	_, _ = h.Write([]byte(node))
	// FNV's last bytes move its high bits little (murmur3's finalizer does).
	x := h.Sum64()
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	return x ^ x>>33
}

// Conversation returns the key of a conversation: a hash of the tenant and of the first texts, which
// later turns repeat.
func Conversation(tenant string, beginning ...string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(tenant))
	for _, text := range beginning {
		_, _ = h.Write([]byte{0xff}) // in no UTF-8 text
		_, _ = h.Write([]byte(text))
	}
	return max(h.Sum64(), 1)
}

// Stage is a process with tokenizers or detokenizers.
type Stage struct {
	Text  string // digest, see api.Pin
	Local bool
	Load  int // messages or sequences in hand
}

// Stage returns the index of the pool to use, -1 if there is none: the one in this
// process, else the less loaded of two.
func (r *Router) Stage(pools []Stage) int {
	for i := range pools {
		if pools[i].Local {
			return i
		}
	}
	n := len(pools)
	if n < 2 {
		return n - 1
	}
	a, b := r.random.IntN(n), r.random.IntN(n-1)
	if b >= a {
		b++
	}
	if pools[b].Load < pools[a].Load {
		return b
	}
	return a
}
