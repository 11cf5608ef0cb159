package kvdisk

import (
	"crypto/sha256"
	"encoding/binary"
	"hash/crc32"
	"math"
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

// none is no token, after those of a slab that they do not fill.
const none = math.MinInt32

// Block names a slab.
type Block struct {
	Key    chain.Hash // of the tokens up to its end
	Parent chain.Hash // of those before it
	Tokens []int32    // in it; of a slab of a state one number, see StateBlock
}

// StateBlock names a slab of the state after a prefix. No token is negative.
func StateBlock(prefix chain.Hash, slab int) Block {
	return Block{Key: prefix, Parent: prefix, Tokens: []int32{int32(-1 - slab)}}
}

// state returns the number of a slab of a state; -1 for one of tokens.
func (b *Block) state() int {
	if len(b.Tokens) == 1 && b.Tokens[0] < 0 {
		return int(-1 - b.Tokens[0])
	}
	return -1
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

func (h *header) encode(l layout) []byte {
	b := make([]byte, 4, l.headerSize())
	b = binary.LittleEndian.AppendUint32(b, h.sum)
	b = binary.LittleEndian.AppendUint64(b, uint64(h.used))
	b = append(append(b, h.Key[:]...), h.Parent[:]...)
	for _, t := range h.Tokens {
		b = binary.LittleEndian.AppendUint32(b, uint32(t))
	}
	for len(b) < l.headerSize() {
		b = binary.LittleEndian.AppendUint32(b, 1<<31) // none
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
		if t := int32(binary.LittleEndian.Uint32(rest)); t != none {
			h.Tokens = append(h.Tokens, t)
		}
	}
	return h, true
}

// holds says whether a header is that of a block. Two prefixes may have the same hash.
func (h *header) holds(b Block) bool {
	return h.Key == b.Key && h.Parent == b.Parent && slices.Equal(h.Tokens, b.Tokens)
}
