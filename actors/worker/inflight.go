package worker

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"go.opentelemetry.io/otel/trace"

	"github.com/millrace/millrace/actors/msg"
	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/internal/idle"
)

// inFlight is what a worker has in hand, from the moment that a message brings it.
// The loop keeps it; reports are made of it beside the loop, which may be inside a
// long step.
type inFlight struct {
	tracer    trace.Tracer
	mu        sync.Mutex
	seqs      map[msg.SeqID]*entry
	ended     []*ended    // in the order of their ends
	tokens    int         // of ended
	idle      *idle.State // used when a sequence begins
	cancelled time.Time   // when a sequence was last
}

// entry is one sequence of the table.
type entry struct {
	request   string // with its tenant
	tenant    string
	text      string // digest of what made prompt
	prompt    []int32
	first     int // choice of the request
	choices   []msg.SeqID
	watch     *actor.PID // of the sequence's owner
	generated atomic.Int64
	computed  atomic.Int64  // tokens whose keys and values are there
	dead      time.Time     // since when its owner is; zero: it lives
	spans     sequenceSpans // of the loop, once it has the sequence
	adopted   bool          // keys and values came from the pool of a dead worker; as spans
}

func newInFlight(t trace.Tracer) *inFlight {
	return &inFlight{tracer: t, seqs: make(map[msg.SeqID]*entry), idle: idle.New()}
}

// ended is a sequence that has ended here. Its gateway may be dead and not have the end, so another one
// can have the answer for msg.OrphansAfter, as it could if the sequence still ran.
type ended struct {
	*entry
	*answered

	at time.Time
}

// Bounds of what is kept of ended sequences, in tokens: 4 MiB in all. Entries and log probabilities count as tokens, too.
const (
	mostEnded   = 1 << 20
	entryTokens = 256
	scoreTokens = 16
)

// open notes a sequence; false if it is there already.
func (l *inFlight) open(g *msg.Generate) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.seqs[g.Seq] != nil {
		return false
	}
	a := &entry{request: g.RequestID, tenant: g.Tenant, text: g.Text, prompt: g.Prompt, first: g.First, choices: g.Choices, watch: g.Watch,
		spans: newSequenceSpans(l.tracer, g)}
	a.generated.Store(int64(len(g.Generated)))
	l.seqs[g.Seq] = a
	l.idle.Use(time.Now())
	return true
}

// rest reports that there was no sequence for the time quiet, until idle wakes.
func (l *inFlight) rest(quiet time.Duration) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.seqs) == 0 && l.idle.Rest(time.Now(), quiet)
}

func (l *inFlight) get(seq msg.SeqID) *entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.seqs[seq]
}

func (l *inFlight) close(seq msg.SeqID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.seqs, seq)
}

// keep keeps the answer of a sequence that has ended.
func (l *inFlight) keep(e *ended) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = append(l.ended, e)
	l.tokens += e.size()
	l.forget(e.at)
}

func (e *ended) size() int {
	// two copies of the prompt: the answer's tokens follow one
	return entryTokens + 2*len(e.prompt) + len(e.tokens) + scoreTokens*len(e.scores)
}

// forget removes the oldest ended sequences, those above mostEnded and those whose time is over.
func (l *inFlight) forget(now time.Time) {
	n := 0
	for ; n < len(l.ended) && (l.tokens > mostEnded || now.Sub(l.ended[n].at) >= msg.OrphansAfter); n++ {
		l.tokens -= l.ended[n].size()
	}
	l.ended = slices.Delete(l.ended, 0, n)
}

// end returns a sequence that has ended, or nil.
func (l *inFlight) end(seq msg.SeqID) *ended {
	l.mu.Lock()
	defer l.mu.Unlock()
	if i := slices.IndexFunc(l.ended, func(e *ended) bool { return e.choices[0] == seq }); i >= 0 {
		return l.ended[i]
	}
	return nil
}

// find lists the sequences of a request at a worker of a numerics digest, those that run and those that have ended.
func (l *inFlight) find(request, numerics string) (list []*msg.Found) {
	l.mu.Lock()
	defer l.mu.Unlock()
	add := func(a *entry) {
		if a.request == request {
			list = append(list, &msg.Found{Seqs: a.choices, First: a.first,
				Pin: api.Pin{Numerics: numerics, Text: a.text, Prompt: api.HashPrompt(a.prompt)}})
		}
	}
	for _, a := range l.seqs {
		add(a)
	}
	for _, e := range l.ended {
		add(e.entry)
	}
	return list
}

// own gives a sequence to another owner.
func (l *inFlight) own(seq msg.SeqID, watch *actor.PID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if a := l.seqs[seq]; a != nil {
		a.watch, a.dead = watch, time.Time{}
	}
}

// cancels says whether a node may end a sequence here, "" any: not if another one has taken it over. It notes when it did.
func (l *inFlight) cancels(seq msg.SeqID, node string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.seqs[seq]
	if a == nil { // it may have ended
		return true
	}
	if node != "" && a.watch.Address != node {
		return false
	}
	l.cancelled = time.Now()
	return true
}

// cancelledAt is when a sequence was cancelled last.
func (l *inFlight) cancelledAt() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cancelled
}

// owners counts the sequences of each node.
func (l *inFlight) owners() map[string]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	byNode := make(map[string]int)
	for _, a := range l.seqs {
		byNode[a.watch.Address]++
	}
	return byNode
}

func (l *inFlight) len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.seqs)
}

// report is a Progress for each owner.
func (l *inFlight) report(node string, inStep time.Duration) map[string]*report {
	l.mu.Lock()
	defer l.mu.Unlock()
	byOwner := make(map[string]*report)
	for seq, a := range l.seqs {
		r := byOwner[a.watch.Address]
		if r == nil {
			r = &report{to: a.watch, progress: &msg.Progress{Node: node, InStep: inStep}}
			byOwner[a.watch.Address] = r
		}
		r.progress.Seqs = append(r.progress.Seqs, seq)
		r.progress.Generated = append(r.progress.Generated, int(a.generated.Load()))
	}
	return byOwner
}

// Sequence is one that is in flight.
type Sequence struct {
	Seq       msg.SeqID
	Owner     string // node
	Tenant    string
	Prompt    int // tokens
	Computed  int // tokens whose keys and values are there; of a beam search, the positions
	Generated int // tokens
}

// list is what is in flight, by number.
func (l *inFlight) list() []Sequence {
	l.mu.Lock()
	defer l.mu.Unlock()
	list := make([]Sequence, 0, len(l.seqs))
	for seq, a := range l.seqs {
		list = append(list, Sequence{seq, a.watch.Address, a.tenant, len(a.prompt), int(a.computed.Load()), int(a.generated.Load())})
	}
	slices.SortFunc(list, func(a, b Sequence) int { return cmp.Compare(a.Seq, b.Seq) })
	return list
}

type report struct {
	to       *actor.PID
	progress *msg.Progress
}

// orphans lists the sequences of nodes that have been dead for msg.OrphansAfter: nobody
// will come back for them.
func (l *inFlight) orphans(now time.Time, alive func(node string) bool) (list []msg.SeqID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.forget(now)
	for seq, a := range l.seqs {
		switch {
		case alive(a.watch.Address):
			a.dead = time.Time{}
		case a.dead.IsZero():
			a.dead = now
		case now.Sub(a.dead) >= msg.OrphansAfter:
			list = append(list, seq)
		}
	}
	return list
}
