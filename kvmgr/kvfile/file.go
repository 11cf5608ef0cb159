package kvfile

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/kvmgr"
	"github.com/millrace/millrace/kvmgr/chain"
)

// File is the pool of a living process: its slabs, which the device maps, and the table that says what they hold. It is a
// kvmgr.Observer. The first error of a write removes the file: what it says would not hold any more.
type File struct {
	file  *os.File
	path  string
	shape shape
	warn  func(error)
	gone  sync.Once
	buf   []byte
}

// shape is the part of a header that is known from the start.
type shape struct {
	slabs     int
	slabBytes int
}

func (s shape) tableBytes() int { return s.slabs * entryBytes }

// begin is where slab 0 begins.
func (s shape) begin() int64 {
	return int64((pageBytes + s.tableBytes() + pageBytes - 1) / pageBytes * pageBytes)
}

func (s shape) bytes() int64 { return s.begin() + int64(s.slabs)*int64(s.slabBytes) }

// Fd returns the descriptor of the file, which is the File's to close, and the offset of its first slab.
func (f *File) Fd() (fd uintptr, offset int64) { return f.file.Fd(), f.shape.begin() }

// Serve names the process that owns the pool, and what processes need to have in common to read its slabs. Before it nobody
// takes any.
func (f *File) Serve(node, slabsOf string) {
	header, err := encodeHeader(f.shape, node, slabsOf)
	if err != nil {
		f.fail(err)
		return
	}
	f.write(header, 0)
}

// Void is of kvmgr.Observer.
func (f *File) Void(slabs []int32) {
	f.entries(slabs, func([]byte, int) {})
}

// Leased is of kvmgr.Observer.
func (f *File) Leased(seq kvmgr.Seq, first int, slabs []int32) {
	f.entries(slabs, func(to []byte, i int) { encodeLease(to, slabs[i], place{seq, first + i}) })
}

// entries writes the entries of slabs, those of neighbors at once.
func (f *File) entries(slabs []int32, encode func(to []byte, i int)) {
	for begin := 0; begin < len(slabs); {
		end := begin + 1
		if slabs[begin] < 0 {
			begin = end
			continue
		}
		for end < len(slabs) && slabs[end] == slabs[end-1]+1 {
			end++
		}
		f.buf = append(f.buf[:0], make([]byte, (end-begin)*entryBytes)...)
		for i := begin; i < end; i++ {
			encode(f.buf[(i-begin)*entryBytes:], i)
		}
		f.write(f.buf, entryAt(slabs[begin]))
		begin = end
	}
}

// Stored is of kvmgr.Observer.
func (f *File) Stored(slab int32, prefix chain.Hash) {
	var half [halfBytes]byte
	encodeStored(half[:], slab, prefix)
	f.write(half[:], entryAt(slab)+halfBytes)
}

func entryAt(slab int32) int64 { return pageBytes + int64(slab)*entryBytes }

func (f *File) write(b []byte, at int64) {
	if _, err := f.file.WriteAt(b, at); err != nil && !errors.Is(err, os.ErrClosed) {
		f.fail(err)
	}
}

func (f *File) fail(err error) {
	f.warn(fmt.Errorf("kvfile: %s is not kept for other processes: %w", f.path, err))
	f.remove()
}

func (f *File) remove() {
	f.gone.Do(func() { _ = os.Remove(f.path) }) // nobody wants it, and it may be gone
}

// Close removes the file: its owner ends as it should, or replaces it.
func (f *File) Close() {
	f.remove()
	_ = f.file.Close()
}

const (
	magic       = "millrace kv 1\n\x00\x00"
	mostName    = 255
	headerFixed = len(magic) + 8 + 8
)

// encodeHeader makes a header: magic, slabs, bytes of a slab, two strings, each after its length, and a checksum.
func encodeHeader(s shape, node, slabsOf string) ([]byte, error) {
	if len(node) > mostName || len(slabsOf) > 8*mostName {
		return nil, fmt.Errorf("a name of %d bytes, of a layout with %d", len(node), len(slabsOf))
	}
	b := append(make([]byte, 0, pageBytes), magic...)
	b = binary.LittleEndian.AppendUint64(b, uint64(s.slabs))
	b = binary.LittleEndian.AppendUint64(b, uint64(s.slabBytes))
	for _, text := range []string{node, slabsOf} {
		b = append(binary.LittleEndian.AppendUint32(b, uint32(len(text))), text...)
	}
	b = binary.LittleEndian.AppendUint32(b, crc(b))
	return b, nil
}

var errHeader = errors.New("kvfile: no header of this version")

func decodeHeader(b []byte) (s shape, node, slabsOf string, err error) {
	all := b
	if len(b) < headerFixed || string(b[:len(magic)]) != magic {
		return s, "", "", errHeader
	}
	b = b[len(magic):]
	slabs, bytes := binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[8:])
	b = b[16:]
	var texts [2]string
	for i := range texts {
		if len(b) < 4 || uint64(len(b)-4) < uint64(binary.LittleEndian.Uint32(b)) {
			return s, "", "", errHeader
		}
		n := binary.LittleEndian.Uint32(b)
		texts[i], b = string(b[4:4+n]), b[4+n:]
	}
	if len(b) < 4 || binary.LittleEndian.Uint32(b) != crc(all[:len(all)-len(b)]) || slabs > 1<<31 || bytes > 1<<40 {
		return s, "", "", errHeader
	}
	return shape{int(slabs), int(bytes)}, texts[0], texts[1], nil
}

func crc(b []byte) uint32 { return crc32.Checksum(b, castagnoli) }

// lock takes the lock of an open file: LOCK_EX for its owner, LOCK_SH for those who read what a dead one left.
func lock(f *os.File, how int) error { return unix.Flock(int(f.Fd()), how|unix.LOCK_NB) }
