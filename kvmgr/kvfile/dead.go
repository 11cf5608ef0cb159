package kvfile

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/kvmgr"
	"github.com/millrace/millrace/kvmgr/chain"
)

// Dead is the pool that a process left when it died. Nobody writes to it.
type Dead struct {
	file    *os.File
	path    string
	shape   shape
	Node    string // whose it was
	SlabsOf string // see File.Serve
	contents
	since time.Time // of the last lease: its owner died later
}

// errOwned is the error of a file whose owner lives.
var errOwned = errors.New("kvfile: its owner lives")

// openDead opens a pool without an owner.
func openDead(path string) (*Dead, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	d := &Dead{file: f, path: path}
	if err := d.open(); err != nil {
		_ = f.Close() // nothing was written
		return nil, err
	}
	return d, nil
}

func (d *Dead) open() error {
	var s unix.Stat_t
	if err := unix.Fstat(int(d.file.Fd()), &s); err != nil {
		return err
	}
	if err := owned(&s, unix.S_IFREG); err != nil {
		return err
	}
	if err := lock(d.file, unix.LOCK_SH); err != nil {
		return errOwned
	}
	d.since = time.Unix(s.Mtim.Unix())
	d.read(s.Size) // what cannot be read holds nothing, and is removed in time
	return nil
}

func (d *Dead) read(size int64) {
	header := make([]byte, pageBytes)
	if _, err := d.file.ReadAt(header, 0); err != nil {
		return
	}
	shape, node, slabsOf, err := decodeHeader(header)
	if err != nil || shape.bytes() > size {
		return
	}
	table := make([]byte, shape.tableBytes())
	if _, err := d.file.ReadAt(table, pageBytes); err != nil {
		return
	}
	d.shape, d.Node, d.SlabsOf, d.contents = shape, node, slabsOf, decode(table)
}

// Leased returns the slab of a place in a sequence.
func (d *Dead) Leased(seq kvmgr.Seq, index int) (slab int32, ok bool) {
	slab, ok = d.leased[place{seq, index}]
	return slab, ok
}

// Stored returns the slab that ends a prefix.
func (d *Dead) Stored(prefix chain.Hash) (slab int32, ok bool) {
	slab, ok = d.stored[prefix]
	return slab, ok
}

// run is the number of leading prefixes that end with a slab here.
func (d *Dead) run(prefixes []chain.Hash) (n int) {
	for n < len(prefixes) {
		if _, ok := d.stored[prefixes[n]]; !ok {
			break
		}
		n++
	}
	return n
}

// ReadSlab copies a slab.
func (d *Dead) ReadSlab(slab int32, to []byte) error {
	if slab < 0 || int(slab) >= d.shape.slabs || len(to) != d.shape.slabBytes {
		return fmt.Errorf("kvfile: %d bytes of slab %d, expected %d bytes, and the pool has %d slabs", len(to), slab, d.shape.slabBytes,
			d.shape.slabs)
	}
	if _, err := d.file.ReadAt(to, d.shape.begin()+int64(slab)*int64(d.shape.slabBytes)); err != nil {
		return fmt.Errorf("kvfile: slab %d: %w", slab, err)
	}
	return nil
}

func (d *Dead) close() { _ = d.file.Close() } // nothing was written

// owned refuses what is not this user's alone, or of another kind.
func owned(s *unix.Stat_t, kind uint32) error {
	switch {
	case s.Mode&unix.S_IFMT != kind:
		return errors.New("kvfile: not of the expected kind")
	case int(s.Uid) != os.Getuid():
		return fmt.Errorf("kvfile: it belongs to user %d, this process runs as %d", s.Uid, os.Getuid())
	case s.Mode&0o077 != 0:
		return fmt.Errorf("kvfile: mode %#o: others have access", s.Mode&0o777)
	}
	return nil
}
