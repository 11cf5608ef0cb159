package kv

import (
	"errors"
	"slices"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/millrace/millrace/actors/msg"
	"github.com/millrace/millrace/kvmgr"
	"github.com/millrace/millrace/kvmgr/chain"
	"github.com/millrace/millrace/kvmgr/kvdisk"
)

const (
	// leastLoad is the number of slabs from which on it pays to wait for the disk.
	leastLoad = 2
	// loadAhead bounds the slabs of a load that are on their way, storeAhead those to the disk.
	loadAhead, storeAhead = 4, 2
	// loadPatience is how long a load waits for its next slab, and keeps its slabs for its sequence afterward.
	loadPatience = time.Second
)

// Store keeps slabs on a disk: a *kvdisk.Store.
type Store interface {
	Has(key chain.Hash) bool
	HasState(prefix chain.Hash) bool
	Stats() kvdisk.Stats
	Read(b kvdisk.Block, to []byte) error
	Write(b kvdisk.Block, data []byte) error
	Expire()
}

// disk stores slabs that no sequence holds, and loads those that a sequence begins with and the prefix tree does not have.
type disk struct {
	*exchange
	hollow  bool       // slabs of tokens hold nothing
	store   Store      // nil: none
	io      *actor.PID // reads and writes it
	loads   []*load
	probed  probe
	storing int  // slabs on their way to the disk
	late    int  // reads on their way for loads that have ended
	full    bool // a write failed: there are no more
	flushes []*actor.PID
}

// probe is the whole slabs of the last prompt that was looked up: a sequence without room is looked up in each round.
type probe struct {
	seq    msg.SeqID
	hashes []chain.Hash
	ends   []chain.Hash // of its first tokens, whatever their number, where there are states; zero: not needed yet
}

// load fills slabs with those of a prompt that the disk has. Its sequence is parked meanwhile: it waits for the pending nodes, or, where
// there are states, for the load.
type load struct {
	of      msg.SeqID
	waiting []msg.SeqID // with states
	space   string
	tokens  []int32      // to load
	hashes  []chain.Hash // of the prefixes that end with a slab, and with the last one of tokens
	slabs   []int32      // by place; -1: not needed
	next    int          // the first of slabs that was not requested
	flying  int          // slabs on their way
	read    [][]byte     // and not in the pool yet
	got     int          // the first of slabs that is not in the pool
	at      int          // got when the timer was started
	ended   bool         // it keeps its slabs until its sequence has reserved its own
	timer   *time.Timer
}

// seq names the load in the allocator. No sequence of this process has this number.
func (l *load) seq() kvmgr.Seq { return ^kvmgr.Seq(l.of) }

type (
	// readSlab and writeSlab are for the diskActor, and come back when they are done.
	readSlab struct {
		of    *load
		block kvdisk.Block
		data  []byte
		err   error
	}
	writeSlab struct {
		block kvdisk.Block
		data  []byte
		err   error
	}
	// loadTimeout says that the timer of a load ran out.
	loadTimeout struct{ of *load }
	// flushDisk is answered when no slab waits to be stored.
	flushDisk struct{}
	// closeDisk is answered when nothing is read or stored any more.
	closeDisk struct{}
	flushed   struct{}
)

func (d *disk) receive(ctx actor.Context) {
	switch m := ctx.Message().(type) {
	case *readSlab:
		d.arrived(ctx, m)
	case *writeSlab:
		d.written(m)
	case *loadTimeout:
		d.timeout(ctx, m.of)
	case *flushDisk:
		d.flushes = append(d.flushes, ctx.Sender())
	case *closeDisk:
		d.abandon()
		d.store = nil
		ctx.Respond(&flushed{})
	case *msg.KVCopied:
		for _, l := range d.loads {
			d.fill(ctx, l)
		}
	}
}

// begin loads what a sequence begins with, if it pays. The sequence then finds pending nodes, or, where there are states, it waits for the
// load that is returned.
func (d *disk) begin(ctx actor.Context, r *msg.Reserve, length kvmgr.Length) (wait *load) {
	if d.store == nil || d.release(r.Seq) || d.late > 0 {
		return nil
	}
	first := d.probed.seq != r.Seq
	if first {
		d.probed = probe{seq: r.Seq, hashes: chain.Of(r.Space, d.slabTokens, r.Known[:len(r.Known)-1])}
	}
	have, n := d.stored(r)
	if l := d.loading(r, have); l != nil {
		l.waiting = append(l.waiting, r.Seq)
		return l
	}
	if first {
		d.metrics.DiskMissed(len(d.probed.hashes) - max(have, n)/d.slabTokens)
	}
	if n-have < leastLoad*d.slabTokens {
		return nil
	}
	l := &load{of: r.Seq, space: r.Space, tokens: r.Known[:n], hashes: d.probed.hashes[:n/d.slabTokens]}
	if n%d.slabTokens > 0 {
		l.hashes = append(slices.Clip(l.hashes), d.prefix(r, n))
	}
	p := kvmgr.Prompt{Space: r.Space, Tokens: r.Known[:n+1], AtOnce: d.head > 0} // its state comes at the end: nobody else computes that
	if !p.AtOnce && d.kv.Waits(p) {
		return nil
	}
	slabs, computed, err := d.kv.Import(l.seq(), length, p, d.head > 0)
	if err != nil || slabs == nil { // the sequence itself finds out why
		return nil
	}
	l.slabs = slabs
	l.next = d.needed(l, computed)
	l.got, l.at = l.next, l.next
	root, self := ctx.ActorSystem().Root, ctx.Self()
	l.timer = time.AfterFunc(loadPatience, func() { root.Send(self, &loadTimeout{l}) })
	d.loads = append(d.loads, l)
	d.request(ctx, l)
	if d.head == 0 {
		return nil
	}
	l.waiting = append(l.waiting, l.of)
	return l
}

// loading returns the load that brings more of what a sequence begins with than the tokens that it has, where there are states; nil
// without.
func (d *disk) loading(r *msg.Reserve, have int) *load {
	for _, l := range d.loads {
		n := len(l.tokens)
		if d.head > 0 && !l.ended && l.space == r.Space && n > have && n < len(r.Known) && slices.Equal(l.tokens, r.Known[:n]) {
			return l
		}
	}
	return nil
}

// stored returns how many tokens a sequence finds in memory, and up to where the disk has those that follow. Where there are states these
// are the last tokens after which there is one.
func (d *disk) stored(r *msg.Reserve) (have, n int) {
	p := kvmgr.Prompt{Space: r.Space, Tokens: r.Known[:len(r.Known)-1]}
	_, have = d.kv.Find(p, false)
	there := have / d.slabTokens
	hashes := d.probed.hashes
	for there < len(hashes) && (d.hollow || d.store.Has(hashes[there])) {
		there++
	}
	if d.head == 0 {
		return have / d.slabTokens * d.slabTokens, there * d.slabTokens
	}
	_, have = d.kv.Find(p, true)
	for n = min(len(p.Tokens), (there+1)*d.slabTokens-1); n > have; n-- {
		if d.store.HasState(d.prefix(r, n)) {
			return have, n
		}
	}
	return have, have
}

// prefix returns the hash of the first tokens of the prompt that was looked up, of which there is at least one.
func (d *disk) prefix(r *msg.Reserve, tokens int) chain.Hash {
	p := &d.probed
	whole, rest := tokens/d.slabTokens, tokens%d.slabTokens
	if rest == 0 {
		return p.hashes[whole-1]
	}
	if p.ends == nil {
		p.ends = make([]chain.Hash, len(r.Known))
	}
	h := &p.ends[tokens]
	if *h == (chain.Hash{}) {
		before := chain.Root(r.Space)
		if whole > 0 {
			before = p.hashes[whole-1]
		}
		*h = before.Next(r.Known[whole*d.slabTokens : tokens])
	}
	return *h
}

// needed returns the first place from one on whose slab a load needs.
func (d *disk) needed(l *load, place int) int {
	for place < len(l.slabs) && (l.slabs[place] < 0 || d.hollow && place >= d.head) {
		place++
	}
	return place
}

// release returns what a load has kept for a sequence that begins now. It says whether there is a load for it.
func (d *disk) release(of msg.SeqID) bool {
	for _, l := range d.loads {
		if l.of == of {
			if l.ended {
				d.forget(l)
			}
			return true
		}
	}
	return false
}

// request sends for the next slabs of a load.
func (d *disk) request(ctx actor.Context, l *load) {
	for l.next < len(l.slabs) && l.flying+len(l.read) < loadAhead {
		ctx.Request(d.io, &readSlab{of: l, block: d.block(l, l.next), data: d.buffer()})
		l.next, l.flying = d.needed(l, l.next+1), l.flying+1
	}
}

// block names the slab at a place of a load: those of its state come first.
func (d *disk) block(l *load, place int) kvdisk.Block {
	if place < d.head {
		return kvdisk.StateBlock(l.hashes[len(l.hashes)-1], place)
	}
	i := place - d.head
	b := kvdisk.Block{Key: l.hashes[i], Parent: chain.Root(l.space),
		Tokens: l.tokens[i*d.slabTokens : min((i+1)*d.slabTokens, len(l.tokens))]}
	if i > 0 {
		b.Parent = l.hashes[i-1]
	}
	return b
}

// arrived takes a slab from the disk. A load ends at one that is not there any more.
func (d *disk) arrived(ctx actor.Context, m *readSlab) {
	l := m.of
	if l.ended {
		d.late--
		d.buffers = append(d.buffers, m.data)
		return
	}
	l.flying--
	if m.err != nil {
		d.buffers = append(d.buffers, m.data)
		d.failed(m.err, "a slab on the disk is computed again")
		d.end(l)
		return
	}
	l.read = append(l.read, m.data)
	d.fill(ctx, l)
}

// fill writes what a load has read to the pool, and offers it to sequences.
func (d *disk) fill(ctx actor.Context, l *load) {
	for !l.ended && d.copies == 0 && len(l.read) > 0 {
		data := l.read[0]
		l.read = l.read[1:]
		d.buffers = append(d.buffers, data)
		err := d.memory.WriteSlab(l.slabs[l.got], data)
		if err == nil {
			l.got = d.needed(l, l.got+1)
			err = d.offer(l)
		}
		if err != nil {
			d.failed(err, "a slab from the disk is computed again")
			d.end(l)
			return
		}
		d.metrics.DiskRead(len(data))
	}
	if l.got == len(l.slabs) {
		d.end(l)
	} else if !l.ended {
		d.request(ctx, l)
	}
}

// offer gives others what a load has brought: slabs of tokens one by one, or all of them with the state that they are of use with.
func (d *disk) offer(l *load) error {
	switch {
	case d.head == 0:
		return d.kv.Commit(l.seq(), l.tokens[:l.got*d.slabTokens], false)
	case l.got == len(l.slabs):
		return d.kv.Retire(l.seq(), l.tokens)
	}
	return nil
}

// end makes the sequences of a load continue with what is here.
func (d *disk) end(l *load) {
	if l.ended {
		return
	}
	l.ended = true
	for place := l.got; place < len(l.slabs); place = d.needed(l, place+1) {
		d.metrics.DiskMissed(1)
	}
	d.late += l.flying
	d.buffers, l.read = append(d.buffers, l.read...), nil
	d.kv.Settle(l.seq())
	d.woken, l.waiting = append(d.woken, l.waiting...), nil
	l.timer.Reset(loadPatience)
}

// timeout ends a load whose disk is too slow, or returns what is kept for a sequence that did not come.
func (d *disk) timeout(ctx actor.Context, l *load) {
	switch {
	case l.ended:
		d.forget(l)
		d.announceRoom(ctx)
	case l.got == l.at:
		d.failed(errors.New("kv: no slab came from the disk"), "keys and values are computed again")
		d.end(l)
	default:
		l.at = l.got
		l.timer.Reset(loadPatience)
	}
}

// forget returns the slabs of a load that has ended.
func (d *disk) forget(l *load) {
	for i, o := range d.loads {
		if o == l {
			d.loads = append(d.loads[:i], d.loads[i+1:]...)
			l.timer.Stop()
			if _, err := d.kv.Release(l.seq()); err != nil {
				d.broken(err)
			}
			return
		}
	}
}

// abandon ends all loads: the memory has lost its contents.
func (d *disk) abandon() {
	for _, l := range d.loads {
		d.end(l)
	}
}

// keep sends slabs that no sequence holds to the disk, a few at a time. Their bytes are copied here and now, so they may be evicted.
func (d *disk) keep(ctx actor.Context) {
	for d.store != nil && d.storing < storeAhead {
		c, ok := d.kv.Cold()
		if !ok {
			break
		}
		b := kvdisk.Block{Key: c.Hash, Parent: c.Parent, Tokens: c.Tokens}
		if c.State >= 0 {
			b = kvdisk.StateBlock(c.Hash, c.State)
		}
		if d.full || c.State < 0 && d.store.Has(c.Hash) || c.State >= 0 && d.store.HasState(c.Hash) {
			continue
		}
		data := d.buffer()
		if err := d.memory.ReadSlab(c.Slab, data); err != nil {
			d.buffers = append(d.buffers, data)
			d.failed(err, "a slab cannot be stored on the disk")
			continue
		}
		d.storing++
		ctx.Request(d.io, &writeSlab{block: b, data: data})
	}
	if d.storing == 0 {
		for _, to := range d.flushes {
			ctx.Send(to, &flushed{})
		}
		d.flushes = nil
	}
}

// written notes a slab that the disk has, or cannot store. A disk that is full stays so: what it has is still read.
func (d *disk) written(m *writeSlab) {
	d.storing--
	d.buffers = append(d.buffers, m.data)
	switch {
	case m.err == nil:
		d.metrics.DiskWritten(len(m.data))
	case errors.Is(m.err, kvdisk.ErrNoRoom): // the prefix is longer than the file
	case !d.full:
		d.full = true
		d.failed(m.err, "no more slabs are stored on the disk")
	}
}

func (d *disk) failed(err error, consequence string) {
	d.metrics.DiskFailed()
	d.log.Warn().Err(err).Msg(consequence)
}

// Disk is the state of the store.
type Disk struct {
	kvdisk.Stats
	Full    bool `json:"full"`    // nothing more is stored
	Reading int  `json:"reading"` // slabs on their way to the pool
	Writing int  `json:"writing"` // and to the disk
}

// state returns nil without a store.
func (d *disk) state() *Disk {
	if d.store == nil {
		return nil
	}
	s := &Disk{Stats: d.store.Stats(), Full: d.full, Reading: d.late, Writing: d.storing}
	for _, l := range d.loads {
		if !l.ended {
			s.Reading += l.flying
		}
	}
	return s
}
