package kvfile

import (
	"encoding/binary"
	"hash/crc32"

	"github.com/millrace/millrace/kvmgr"
	"github.com/millrace/millrace/kvmgr/chain"
)

// The file is a header of a page, a table with an entry for each slab, and, from a page on, the slabs.
//
// An entry has two halves, each with a checksum: the sequence that leased the slab last and the slab's place in it, and the hash
// of the prefix that ends with the slab, once it is full. A half with another checksum says nothing.
const (
	pageBytes  = 4096
	entryBytes = 64
	halfBytes  = entryBytes / 2
	sumAt      = halfBytes - 4
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// place is a slab's place in a sequence.
type place struct {
	seq   kvmgr.Seq
	index int
}

// encodeLease writes the entry of a slab that was leased: its contents end.
func encodeLease(to []byte, slab int32, p place) {
	clear(to[:entryBytes])
	binary.LittleEndian.PutUint64(to, uint64(p.seq))
	binary.LittleEndian.PutUint32(to[8:], uint32(p.index))
	seal(to[:halfBytes], slab)
}

// encodeStored writes the half of a slab that is full.
func encodeStored(to []byte, slab int32, prefix chain.Hash) {
	clear(to[:halfBytes])
	copy(to, prefix[:])
	seal(to, slab)
}

func seal(half []byte, slab int32) {
	binary.LittleEndian.PutUint32(half[sumAt:], sum(half, slab))
}

// sum covers the slab's number too: a half that lies elsewhere says nothing. It is not 0 for a half of zeros.
func sum(half []byte, slab int32) uint32 {
	var number [4]byte
	binary.LittleEndian.PutUint32(number[:], uint32(slab))
	return crc32.Update(crc32.Checksum(number[:], castagnoli), castagnoli, half[:sumAt])
}

func sealed(half []byte, slab int32) bool {
	return binary.LittleEndian.Uint32(half[sumAt:]) == sum(half, slab)
}

// contents is what a table says.
type contents struct {
	leased map[place]int32
	stored map[chain.Hash]int32
}

// decode reads a table. A place that two slabs claim is neither's.
func decode(table []byte) contents {
	c := contents{make(map[place]int32), make(map[chain.Hash]int32)}
	twice := make(map[place]bool)
	for slab := int32(0); len(table) >= entryBytes; slab, table = slab+1, table[entryBytes:] {
		if lease := table[:halfBytes]; sealed(lease, slab) {
			p := place{kvmgr.Seq(binary.LittleEndian.Uint64(lease)), int(binary.LittleEndian.Uint32(lease[8:]))}
			_, had := c.leased[p]
			twice[p] = twice[p] || had
			c.leased[p] = slab
		}
		if stored := table[halfBytes:entryBytes]; sealed(stored, slab) {
			c.stored[chain.Hash(stored[:len(chain.Hash{})])] = slab
		}
	}
	for p, is := range twice {
		if is {
			delete(c.leased, p)
		}
	}
	return c
}
