package kvdisk

import (
	"crypto/sha256"
	"encoding/binary"
	"hash/crc32"
	"slices"

	"github.com/millrace/millrace/kvmgr/chain"
)

// A file begins with a page that says what it is. After it come the headers of all slots, one after the other, and
// after them the slots, each at the begin of a page. Numbers are little-endian.
const (
	page      = 4096
	magic     = "millrace kv 1\n\x00\x00"
	fixedSize = 4 + 4 + 8 + 2*len(chain.Hash{}) // of a header: two checksums, the time of the last use, two hashes
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Block names a slab.
type Block struct {
	Key    chain.Hash // of the tokens up to its end
	Parent chain.Hash // of those before it
	Tokens []int32    // in it
}

// layout is where things are in a file.
type layout struct {
	slots, slabBytes, slabTokens int
}

// layoutOf returns the layout of a file of at most size bytes.
func layoutOf(size int64, slabBytes, slabTokens int) layout {
	l := layout{slabBytes: slabBytes, slabTokens: slabTokens}
	if n := (size - 2*page) / (l.stride() + int64(l.headerSize())); n > 0 {
		l.slots = int(n)
	}
	return l
}

func (l layout) headerSize() int         { return fixedSize + 4*l.slabTokens }
func (l layout) stride() int64           { return pages(int64(l.slabBytes)) }
func (l layout) headerAt(slot int) int64 { return page + int64(slot)*int64(l.headerSize()) }
func (l layout) at(slot int) int64       { return pages(l.headerAt(l.slots)) + int64(slot)*l.stride() }
func (l layout) encode(identity string) []byte {
	b := make([]byte, 0, page)
	b = append(b, magic...)
	sum := sha256.Sum256([]byte(identity))
	b = append(b, sum[:]...)
	for _, n := range []int{l.slots, l.slabBytes, l.slabTokens} {
		b = binary.LittleEndian.AppendUint64(b, uint64(n))
	}
	return append(b, make([]byte, page-len(b))...)
}

// pages rounds bytes up to whole pages.
func pages(n int64) int64 { return (n + page - 1) / page * page }

// header is what a file says of a slot.
type header struct {
	Block
	sum  uint32 // of the slab
	used int64  // Unix seconds
}

func (h *header) encode() []byte {
	b := make([]byte, 4, fixedSize+4*len(h.Tokens))
	b = binary.LittleEndian.AppendUint32(b, h.sum)
	b = binary.LittleEndian.AppendUint64(b, uint64(h.used))
	b = append(append(b, h.Key[:]...), h.Parent[:]...)
	for _, t := range h.Tokens {
		b = binary.LittleEndian.AppendUint32(b, uint32(t))
	}
	binary.LittleEndian.PutUint32(b, crc32.Checksum(b[4:], castagnoli))
	return b
}

// decodeHeader returns false for a slot without a slab: never used, cleared, or torn.
func decodeHeader(b []byte) (h header, ok bool) {
	if binary.LittleEndian.Uint32(b) != crc32.Checksum(b[4:], castagnoli) { // zeros alone do not match
		return h, false
	}
	h.sum, h.used = binary.LittleEndian.Uint32(b[4:]), int64(binary.LittleEndian.Uint64(b[8:]))
	rest := b[16:]
	rest = rest[copy(h.Key[:], rest):]
	rest = rest[copy(h.Parent[:], rest):]
	for ; len(rest) > 0; rest = rest[4:] {
		h.Tokens = append(h.Tokens, int32(binary.LittleEndian.Uint32(rest)))
	}
	return h, true
}

// holds says whether a header is that of a block. Two prefixes may have the same hash.
func (h *header) holds(b Block) bool {
	return h.Key == b.Key && h.Parent == b.Parent && slices.Equal(h.Tokens, b.Tokens)
}
