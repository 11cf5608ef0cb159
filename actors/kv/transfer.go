package kv

import (
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
	"sync/atomic"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"github.com/rs/zerolog"

	"github.com/millrace/millrace/actors/msg"
	"github.com/millrace/millrace/kvmgr"
	"github.com/millrace/millrace/kvmgr/kvfile"
	"github.com/millrace/millrace/metrics"
)

const (
	// fetchBytes bounds the slabs of a Fetch, which are at least one. Twice as much is on its way to a worker: less than
	// NATS keeps for a connection, and enough to keep both sides busy.
	fetchBytes = 2 << 20
	// fetchPatience is how long a transfer waits for the next slab from a source that may be dead. A sequence that has left a source
	// that lives requests the slabs again after it.
	fetchPatience = 800 * time.Millisecond
	// fetchLimit is how long a transfer waits for the next slab from a source that lives: it may be busy, or its answers lost.
	fetchLimit = 10 * time.Second
	// fetchCheck is the time between two checks of a transfer. With each one its source learns that it is still needed.
	fetchCheck = fetchPatience / 4
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Memory is the bytes of the pool's slabs.
type Memory interface {
	SlabBytes() int
	ReadSlab(slab int32, to []byte) error
	WriteSlab(slab int32, from []byte) error
}

// exchange copies slabs from and to the KV managers of other workers. What is copied here enters the prefix tree slab by
// slab, and a state with its last slab. An error of a transfer ends it: its sequence computes what is missing.
type exchange struct {
	kv         *kvmgr.Manager
	groups     int // slabs of a position
	head       int // places of a state, before those of tokens; 0: there are none
	memory     Memory
	slabTokens int
	tier       Tier   // nil: there is none
	slabsOf    string // see msg.Fetch; "": slabs are not copied
	metrics    *metrics.Model
	log        zerolog.Logger
	broken     func(error)
	alive      func(node string) bool // see Config
	limit      time.Duration          // fetchLimit; tests set others

	predicted bool        // sequences reserve a predicted answer, not the declared one
	batchSize int         // decode rows of a step; 0: no bound
	rows      int         // decode rows of the worker's sequences, of its last KVRound
	transfers []*transfer // to this worker, in the order of service
	kept      []*transfer // that have ended, and keep their slabs for their sequences
	buffers   [][]byte    // of slabs, for copies to the disk or a tier and back
	worker    *actor.PID  // the compute actor, once it has sent a KVRound
	copies    int         // copies that the worker is to make inside the pool: a transfer might overwrite their slabs
	adopting  bool        // an adopt is in the mailbox
	woken     []msg.SeqID // whose wait for a load from the disk has ended
	pools     *kvfile.Dir // of this host, where dead workers may have left theirs; nil: there are none
	leaving   map[msg.SeqID][]*msg.Fetch
	departing map[msg.SeqID]*departure
	served    atomic.Int64 // UnixNano of the last Fetch
}

// buffer returns memory for a slab.
func (x *exchange) buffer() []byte {
	if n := len(x.buffers); n > 0 {
		b := x.buffers[n-1]
		x.buffers = x.buffers[:n-1]
		return b
	}
	return make([]byte, x.memory.SlabBytes())
}

// bytes is the memory of some slabs.
func (x *exchange) bytes(slabs int) uint64 { return uint64(slabs) * uint64(x.memory.SlabBytes()) }

// transfer copies the slabs of a sequence's known tokens to this worker. The sequence waits for it, or still runs at the source.
type transfer struct {
	source   msg.Source
	dead     *estate       // nil: the source lives, and sends slabs
	prompt   kvmgr.Prompt  // all but the last token are copied
	length   kvmgr.Length  // of the sequence
	waiting  *msg.Import   // nil: it runs
	running  *msg.Prefetch // nil: it waits
	slabs    []int32       // by place; -1: not needed. nil: not reserved yet
	have     int           // tokens that come; with a state, those that it is of
	next     int           // the first of slabs that was not requested
	got      int           // the first of slabs that is not here
	lastSeen int           // got at the last check
	since    time.Time     // it waits for the slab that it had then, or for its turn
	again    time.Time     // its slabs were requested, the last time
	reserved bool          // slabs are set aside, or all tokens are here
	full     bool          // there is no room, or nothing comes
	timer    *time.Timer
}

func (t *transfer) seq() kvmgr.Seq { return kvmgr.Seq(t.source.Seq) }

// needed returns the first place from one on that needs a slab.
func (t *transfer) needed(place int) int {
	for place < len(t.slabs) && t.slabs[place] < 0 {
		place++
	}
	return place
}

// flying is the number of slabs that were requested and are not here.
func (t *transfer) flying() (n int) {
	for place := t.got; place < t.next; place = t.needed(place + 1) {
		n++
	}
	return n
}

// here is the number of positions that are here.
func (x *exchange) here(t *transfer) int { return max(t.got-x.head, 0) / x.groups }

// stateful says that the state of a transfer's sequence comes too. It changes with each step, so it comes once the sequence has left.
func (x *exchange) stateful(t *transfer) bool { return x.head > 0 && t.waiting != nil }

// places is the number of places up to the end of the tokens that come.
func (x *exchange) places(t *transfer) int {
	return x.head + (t.have+x.slabTokens-1)/x.slabTokens*x.groups
}

// begins says that the sequence begins at this worker, with a prefix that dead workers may have left.
func (t *transfer) begins() bool { return t.waiting != nil && t.waiting.Generate.Source == nil }

// expired says that the timer of a transfer ran out.
type expired struct{ of *transfer }

func (x *exchange) receive(ctx actor.Context) {
	switch m := ctx.Message().(type) {
	case *msg.Prefetch:
		x.begin(ctx, &transfer{source: m.Source, prompt: kvmgr.Prompt{Space: m.Space, Tokens: m.Tokens},
			length:  x.length(len(m.Tokens), m.End),
			running: m})
	case *msg.Import:
		g, known := m.Generate, m.Generate.Known()
		source := msg.Source{KV: ctx.Self(), Seq: g.Seq, Dead: true} // any
		if g.Source != nil {
			source = *g.Source
		}
		x.begin(ctx, &transfer{source: source, prompt: kvmgr.Prompt{Space: g.Space(), Tokens: known},
			length: x.length(len(known), len(g.Prompt)+g.MaxTokens), waiting: m})
	case *msg.Slab:
		x.take(ctx, m)
	case *expired:
		x.expire(ctx, m.of)
	case *msg.KVCopied:
		if x.copies -= m.Copies; x.copies == 0 {
			x.reserveAll(ctx)
		}
	case *adopt:
		x.adopt(ctx, m)
	case *msg.Fetch:
		x.fetch(ctx, m)
	case *departed:
		x.depart(ctx, m.seq)
	}
}

// announce notifies the worker which sequences no longer wait for a prefix.
func (x *exchange) announce(ctx actor.Context) {
	if ready := x.ready(ctx); len(ready) > 0 && x.worker != nil {
		ctx.Send(x.worker, &msg.KVReady{Seqs: ready})
	}
}

// after does what a round makes possible.
func (x *exchange) after(ctx actor.Context, m *msg.KVRound) {
	x.worker, x.rows = m.Reply, m.Rows
	if m.Forget {
		x.abandon(ctx)
	}
	for i := range m.Granted {
		if m.Granted[i].CopyTokens > 0 {
			x.copies++
		}
	}
	for i := range m.Lent {
		if m.Lent[i].Slabs != nil {
			x.copies++
		}
	}
	x.released(ctx, m.Release)
	if len(m.Release) > 0 && len(x.transfers) > 0 {
		x.reserveAll(ctx)
	}
	m.Ready = append(m.Ready, x.ready(ctx)...)
}

func (x *exchange) transfer(seq msg.SeqID) *transfer {
	i := slices.IndexFunc(x.transfers, func(t *transfer) bool { return t.source.Seq == seq })
	if i < 0 {
		return nil
	}
	return x.transfers[i]
}

// begin adds a transfer. Those that a sequence waits for go first.
func (x *exchange) begin(ctx actor.Context, t *transfer) {
	if old := x.transfer(t.source.Seq); old != nil {
		x.end(ctx, old)
	}
	at := len(x.transfers)
	if t.waiting != nil {
		if i := slices.IndexFunc(x.transfers, func(o *transfer) bool { return o.waiting == nil }); i >= 0 {
			at = i
		}
	}
	x.transfers = slices.Insert(x.transfers, at, t)
	root, self := ctx.ActorSystem().Root, ctx.Self()
	t.since = time.Now()
	t.timer = time.AfterFunc(fetchCheck, func() { root.Send(self, &expired{t}) })
	if x.slabsOf == "" || len(t.prompt.Tokens) == 0 || t.source.Dead && !x.estate(t) {
		x.end(ctx, t)
		return
	}
	x.reserve(ctx, t)
	x.request(ctx)
}

// reserveAll sets slabs aside for the transfers that have none yet.
func (x *exchange) reserveAll(ctx actor.Context) {
	for _, t := range slices.Clone(x.transfers) {
		x.reserve(ctx, t)
	}
	x.request(ctx)
}

// reserve sets slabs aside for a transfer and its sequence. It does nothing while others compute or copy the tokens, and while
// there is no room for a sequence that is here: it waits for others to end.
func (x *exchange) reserve(ctx actor.Context, t *transfer) {
	if x.copies > 0 || t.slabs != nil {
		return
	}
	freed := x.free(func(old *transfer) bool { return old.seq() == t.seq() })
	if !x.setAside(ctx, t) && freed {
		x.announceRoom(ctx)
	}
}

// setAside reserves slabs for a transfer, or ends it. It returns false if there are none for it yet.
func (x *exchange) setAside(ctx actor.Context, t *transfer) bool {
	if t.running != nil && x.crowded(t) {
		t.full = true
		x.end(ctx, t)
		return false
	}
	slabs, computed, err := x.kv.Import(t.seq(), t.length, t.prompt, x.stateful(t))
	switch _, short := errors.AsType[*kvmgr.ShortageError](err); {
	case errors.Is(err, kvmgr.ErrComputing):
	case short && t.running != nil: // it runs on where it is
		t.full = true
		x.end(ctx, t)
	case short && t.begins(): // it waits for its turn first
		x.end(ctx, t)
	case errors.Is(err, kvmgr.ErrNoSlabs):
	case err != nil:
		x.fail(ctx, t, err)
	default:
		t.reserved, t.slabs, t.since = true, slabs, time.Now()
		t.got = t.needed(computed)
		t.next, t.lastSeen = t.got, t.got
		if slabs == nil {
			x.end(ctx, t)
		}
	}
	return err == nil
}

// request sends Fetch messages for up to two of them on their way.
func (x *exchange) request(ctx actor.Context) {
	run, flying := max(1, fetchBytes/max(1, x.memory.SlabBytes())), 0
	for _, t := range x.transfers {
		flying += t.flying()
	}
	for _, t := range x.transfers {
		if t.dead != nil {
			x.ask(ctx, t)
			continue
		}
		for t.next < len(t.slabs) && flying <= run {
			n := min(run, len(t.slabs)-t.next)
			if t.next < x.head { // the first tokens may be here
				n = min(n, x.head-t.next)
			}
			if t.next == t.got {
				t.again = time.Now()
			}
			ctx.Send(t.source.KV, &msg.Fetch{
				Reply: ctx.Self(), Seq: t.source.Seq, SlabsOf: x.slabsOf, Space: t.prompt.Space, Tokens: t.prompt.Tokens,
				First: t.next, Count: n, Last: t.waiting != nil,
			})
			t.next, flying = t.needed(t.next+n), flying+n
		}
	}
}

// take writes a slab to the pool and offers it to sequences.
func (x *exchange) take(ctx actor.Context, m *msg.Slab) {
	t := x.transfer(m.Seq)
	if t == nil || m.Index != t.got || t.got == t.next { // of a transfer that has ended
		return
	}
	if len(m.Data) == 0 {
		x.end(ctx, t)
		return
	}
	tokens, last, err := x.write(t, m)
	if err != nil {
		x.fail(ctx, t, err)
		return
	}
	x.metrics.HandedOver(tokens, len(m.Data))
	if last {
		x.end(ctx, t)
		return
	}
	x.request(ctx)
}

// write takes the next slab of a transfer, and returns the number of tokens that came with it, and whether the source has no more.
func (x *exchange) write(t *transfer, m *msg.Slab) (tokens int, last bool, err error) {
	if sum := crc32.Checksum(m.Data, castagnoli); sum != m.Sum {
		return 0, false, fmt.Errorf("kv: slab %d of sequence %d from %s: checksum %08x, expected %08x", m.Index, m.Seq, t.source.KV.Address,
			sum,
			m.Sum)
	}
	before, have := x.here(t)*x.slabTokens, min(m.Have, len(t.prompt.Tokens)-1)
	if x.stateful(t) && have < m.Have { // earlier tokens can be read from later slabs, not from a later state
		return 0, false, fmt.Errorf("kv: sequence %d from %s: the state is of %d tokens, expected at most %d", m.Seq, t.source.KV.Address,
			m.Have, have)
	}
	if !x.stateful(t) || t.got == 0 {
		t.have = have
	}
	if upTo := min(before+x.slabTokens, t.have); upTo <= before || have < upTo || t.got < x.head && have != t.have {
		return 0, false, fmt.Errorf("kv: slab %d of sequence %d from %s: the source has %d tokens, expected %d", m.Index, m.Seq,
			t.source.KV.Address, m.Have, max(t.have, before+1))
	}
	return x.put(t, m.Data)
}

// put writes the next slab of a transfer. With the last one of a position it offers the tokens up to there, and returns how many came. last
// says that nothing else comes: then the state is there too.
func (x *exchange) put(t *transfer, data []byte) (tokens int, last bool, err error) {
	at, position := t.got, x.here(t)
	if err := x.memory.WriteSlab(t.slabs[at], data); err != nil {
		return 0, false, err
	}
	t.got = t.needed(at + 1)
	upTo := min((position+1)*x.slabTokens, t.have)
	if at >= x.head && x.here(t) > position { // else other groups follow
		tokens = upTo - position*x.slabTokens
	}
	last = t.got == len(t.slabs) || tokens > 0 && upTo < (position+1)*x.slabTokens
	switch {
	case x.stateful(t) && t.got >= x.places(t):
		last, err = true, x.kv.Retire(t.seq(), t.prompt.Tokens[:t.have])
	case tokens > 0:
		err = x.kv.Commit(t.seq(), t.prompt.Tokens[:upTo], last)
	}
	return tokens, last, err
}

// expire checks a transfer. It fails one that waited in vain, or returns what is kept for a sequence that did not come.
func (x *exchange) expire(ctx actor.Context, t *transfer) {
	if !slices.Contains(x.transfers, t) {
		x.giveUp(ctx, t)
		return
	}
	if x.orphaned(ctx, t) {
		return
	}
	if t.got != t.lastSeen || x.queued(t) {
		t.lastSeen, t.since = t.got, time.Now()
	}
	waited := time.Since(t.since)
	switch {
	case waited < fetchPatience:
	case t.begins():
		x.end(ctx, t)
		return
	case t.running != nil && t.next == t.got: // it runs on where it is while others compute the tokens
	case !x.lives(t) || waited >= x.limit:
		x.fail(ctx, t, fmt.Errorf("kv: no slab of sequence %d came from %s for %s", t.source.Seq, t.source.KV.Address,
			waited.Round(fetchCheck)))
		return
	case t.waiting != nil && time.Since(t.again) >= fetchPatience: // the answer to a copy that still runs might come to the next one
		t.next = t.got
		x.request(ctx)
	}
	if x.lives(t) {
		ctx.Send(t.source.KV, &msg.Fetch{Reply: ctx.Self(), Seq: t.source.Seq, First: t.got}) // of no slab
	}
	t.timer.Reset(fetchCheck)
}

// lives says whether the source of a transfer lives, and may only be busy.
func (x *exchange) lives(t *transfer) bool {
	return t.dead == nil && !t.begins() && x.alive != nil && x.alive(t.source.KV.Address)
}

// queued says whether a transfer has slabs and waits for others, whose slabs come first.
func (x *exchange) queued(t *transfer) bool {
	if t.slabs == nil || t.begins() {
		return false
	}
	return t.dead != nil || t.next == t.got && slices.ContainsFunc(x.transfers, func(o *transfer) bool { return o.next > o.got })
}

func (x *exchange) fail(ctx actor.Context, t *transfer, err error) {
	x.metrics.HandoverFailed()
	x.log.Warn().Err(err).Uint64("seq", uint64(t.source.Seq)).Bool("runs", t.running != nil).
		Msg("keys and values were not copied from another worker")
	t.full = t.running != nil // a sequence that still runs elsewhere keeps its slabs there, and its gateway tries again
	x.end(ctx, t)
}

// end forgets a transfer: what is here stays in the prefix tree, and its sequence continues.
func (x *exchange) end(ctx actor.Context, t *transfer) {
	x.transfers = slices.DeleteFunc(x.transfers, func(o *transfer) bool { return o == t })
	x.keep(t)
	if !t.source.Dead && (t.waiting != nil || t.full) {
		ctx.Send(t.source.KV, &msg.Fetch{Reply: ctx.Self(), Seq: t.source.Seq, Last: true}) // of no slab, and none follows
	}
	if t.waiting != nil {
		ctx.Send(t.waiting.Reply, &msg.Imported{Generate: t.waiting.Generate, Adopted: t.dead != nil && t.dead.copied})
	} else {
		ctx.Send(t.running.Reply, &msg.Prefetched{Seq: t.source.Seq, Tokens: min(x.here(t)*x.slabTokens, len(t.prompt.Tokens)-1),
			Full: t.full})
	}
	x.request(ctx)
}

// abandon ends all transfers: the memory has lost its contents.
func (x *exchange) abandon(ctx actor.Context) {
	for len(x.transfers) > 0 {
		x.end(ctx, x.transfers[0])
	}
	x.free(func(*transfer) bool { return true })
}

// ready lists the sequences whose wait for a prefix has ended. Transfers among them are reserved.
func (x *exchange) ready(ctx actor.Context) (seqs []msg.SeqID) {
	seqs, x.woken = x.woken, nil
	for {
		list := x.kv.Ready()
		if len(list) == 0 {
			return seqs
		}
		for _, seq := range list {
			if t := x.transfer(msg.SeqID(seq)); t != nil {
				x.reserve(ctx, t)
				x.request(ctx)
			} else {
				seqs = append(seqs, msg.SeqID(seq))
			}
		}
	}
}

// Transfer is a transfer of slabs to this worker.
type Transfer struct {
	Seq    msg.SeqID `json:"sequence,string"`
	Source string    `json:"source"` // node
	Slabs  int       `json:"slabs"`  // that are here
	Total  int       `json:"total"`  // 0: none is reserved yet
}

func (x *exchange) list() (list []Transfer) {
	for _, t := range x.transfers {
		list = append(list, Transfer{t.source.Seq, t.source.KV.Address, t.got, len(t.slabs)})
	}
	return list
}
