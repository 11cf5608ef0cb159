package msg

import (
	"slices"
	"sync"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/millrace/millrace/api"
)

// KVActor is the name of the KV manager's actor, in every process that computes.
const KVActor = "kv"

// Source is where the keys and values of a sequence are that continues elsewhere.
type Source struct {
	KV  *actor.PID // KV manager of the worker that had it
	Seq SeqID      // its number there
	// Dead says that the worker is gone: its slabs may be in a file.
	Dead bool
	// Complete says that a token which the dead worker sampled is known: a step ends before its tokens are sent, so the keys and
	// values of all known tokens but the last are complete.
	Complete bool
}

// Prefetch makes a KV manager copy the keys and values of a sequence, which still runs, from the worker that it is
// about to leave. The answer is a Prefetched to Reply.
type Prefetch struct {
	Reply  *actor.PID
	Source Source
	Space  string  // as Reserve.Space
	Tokens []int32 // known so far
	End    int     // tokens at its declared end; 0 from an earlier version
}

// Prefetched answers Prefetch. Tokens are there, as many as could be copied. The worker keeps room for the sequence for a while.
type Prefetched struct {
	Seq    SeqID // at the source
	Tokens int
	Full   bool // there is no room for the sequence, or its keys and values could not be copied: it stays where it runs
}

// Fetch requests slabs with the first tokens of a sequence from another KV manager. The answer is Count Slab
// messages to Reply, or fewer with an empty one at the end. A Fetch of no slabs has no answer: it keeps a draining worker,
// and what the sequence had, or with Last it says that no other one follows. Where layers keep a state, its slabs are the first ones. They
// come with Last only.
type Fetch struct {
	Reply        *actor.PID
	Seq          SeqID  // the source's
	SlabsOf      string // numerics digest and layout, which both sides need to have in common
	Space        string
	Tokens       []int32
	First, Count int  // slabs
	Last         bool // the sequence ends at the source: the answer waits for its end
}

// Slab answers Fetch.
type Slab struct {
	Seq   SeqID
	Index int
	Have  int    // tokens of the prompt that the source has, with Fetch.Last those after which it has the state
	Data  []byte // empty: there are no more
	Sum   uint32 // CRC-32C of Data
}

// Import makes the KV manager copy the keys and values of a sequence's known tokens before the sequence is computed: from its
// Source, or of a prefix that a dead worker left.
// The answer is an Imported to Reply.
type Import struct {
	Reply    *actor.PID
	Generate *Generate
}

// Imported answers Import, whether or not anything could be copied.
type Imported struct {
	Generate *Generate
	Adopted  bool // keys and values came from the pool of a dead worker
}

// KVReady says that parked sequences may reserve again, see KVRound.
type KVReady struct {
	Seqs  []SeqID
	Freed bool // slabs were given back that no KVRound released: denied requests may be repeated
}

// KVCopied answers a KVRound with Granted.CopyTokens, or with Lent.Slabs: the slabs are copied, or will not be. Copies counts both.
type KVCopied struct{ Copies int }

var slabs = sync.Pool{New: func() any { return new(Slab) }}

// NewSlab returns a Slab with room for size bytes of data. Their contents are undefined.
func NewSlab(size int) *Slab {
	s := slabs.Get().(*Slab) //nolint:forcetypeassert // see slabs
	if cap(s.Data) < size {
		s.Data = make([]byte, size)
	}
	s.Data = s.Data[:size]
	return s
}

// Space names what keys and values of the sequence depend on besides tokens, and who may share them.
func (g *Generate) Space() string { return api.CacheSpace(g.Tenant, g.CacheSalt) }

// Known are the tokens before the first step. Nobody writes to them.
func (g *Generate) Known() []int32 {
	if len(g.Generated) == 0 {
		return g.Prompt
	}
	return slices.Concat(g.Prompt, g.Generated)
}
