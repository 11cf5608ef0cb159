package kv

import (
	"errors"
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
	Stats() kvdisk.Stats
	Read(b kvdisk.Block, to []byte) error
	Write(b kvdisk.Block, data []byte) error
	Expire()
}

// disk stores slabs that no sequence holds, and loads those that a sequence begins with and the prefix tree does not have.
type disk struct {
	*exchange
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
}

// load fills slabs with those of a prompt that the disk has. Its sequence is parked meanwhile: it waits for the pending nodes.
type load struct {
	of     msg.SeqID
	space  string
	tokens []int32 // of the slabs up to the last one to load
	hashes []chain.Hash
	slabs  []int32
	next   int      // the first of slabs that was not requested
	flying int      // slabs on their way
	read   [][]byte // and not in the pool yet
	got    int      // slabs in the pool
	at     int      // got when the timer was started
	ended  bool     // it keeps its slabs until its sequence has reserved its own
	timer  *time.Timer
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
		d.stored(m)
	case *loadTimeout:
		d.timeout(m.of)
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

// begin loads what a sequence begins with, if it pays. The sequence then finds pending nodes.
func (d *disk) begin(ctx actor.Context, r *msg.Reserve, length kvmgr.Length) {
	if d.store == nil || d.release(r.Seq) || d.late > 0 {
		return
	}
	first := d.probed.seq != r.Seq
	if first {
		d.probed = probe{r.Seq, chain.Of(r.Space, d.slabTokens, r.Known[:len(r.Known)-1])}
	}
	hashes := d.probed.hashes
	_, have := d.kv.Find(kvmgr.Prompt{Space: r.Space, Tokens: r.Known}, false)
	have /= d.slabTokens
	end := have
	for end < len(hashes) && d.store.Has(hashes[end]) {
		end++
	}
	if first {
		d.metrics.DiskMissed(len(hashes) - end)
	}
	if end-have < leastLoad {
		return
	}
	l := &load{of: r.Seq, space: r.Space, tokens: r.Known[:end*d.slabTokens], hashes: hashes[:end]}
	p := kvmgr.Prompt{Space: r.Space, Tokens: r.Known[:len(l.tokens)+1]}
	if d.kv.Waits(p) {
		return
	}
	slabs, computed, err := d.kv.Import(l.seq(), length, p, false)
	if err != nil || slabs == nil { // the sequence itself finds out why
		return
	}
	l.slabs, l.next, l.got, l.at = slabs, computed, computed, computed
	root, self := ctx.ActorSystem().Root, ctx.Self()
	l.timer = time.AfterFunc(loadPatience, func() { root.Send(self, &loadTimeout{l}) })
	d.loads = append(d.loads, l)
	d.request(ctx, l)
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
	for l.next < len(l.slabs) && l.next-l.got < loadAhead {
		at := l.next * d.slabTokens
		b := kvdisk.Block{Key: l.hashes[l.next], Parent: chain.Root(l.space), Tokens: l.tokens[at : at+d.slabTokens]}
		if l.next > 0 {
			b.Parent = l.hashes[l.next-1]
		}
		ctx.Request(d.io, &readSlab{of: l, block: b, data: d.buffer()})
		l.next, l.flying = l.next+1, l.flying+1
	}
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
			l.got++
			err = d.kv.Commit(l.seq(), l.tokens[:l.got*d.slabTokens], false)
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

// end makes the sequences of a load continue with what is here.
func (d *disk) end(l *load) {
	if l.ended {
		return
	}
	l.ended = true
	d.metrics.DiskMissed(len(l.slabs) - l.got)
	d.late += l.flying
	d.buffers, l.read = append(d.buffers, l.read...), nil
	d.kv.Settle(l.seq())
	l.timer.Reset(loadPatience)
}

// timeout ends a load whose disk is too slow, or returns what is kept for a sequence that did not come.
func (d *disk) timeout(l *load) {
	switch {
	case l.ended:
		d.forget(l)
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
		if d.full || d.store.Has(c.Hash) {
			continue
		}
		data := d.buffer()
		if err := d.memory.ReadSlab(c.Slab, data); err != nil {
			d.buffers = append(d.buffers, data)
			d.failed(err, "a slab cannot be stored on the disk")
			continue
		}
		d.storing++
		ctx.Request(d.io, &writeSlab{block: kvdisk.Block{Key: c.Hash, Parent: c.Parent, Tokens: c.Tokens}, data: data})
	}
	if d.storing == 0 {
		for _, to := range d.flushes {
			ctx.Send(to, &flushed{})
		}
		d.flushes = nil
	}
}

// stored notes a slab that the disk has, or cannot store. A disk that is full stays so: what it has is still read.
func (d *disk) stored(m *writeSlab) {
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
