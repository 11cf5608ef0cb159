// Package chain hashes prefixes slab by slab, so that processes that do not share tokens can compare what they have.
//
// A hash covers a space and all tokens up to the end of a slab. It must not know who uses it, and where slabs are.
package chain

import (
	"crypto/sha256"
	"encoding/binary"
)

// Hash is the hash of a prefix that ends at the end of a slab.
type Hash [16]byte

// Root returns the hash of the empty prefix of a space: what keys and values depend on besides tokens, and who may share them.
func Root(space string) Hash {
	sum := sha256.Sum256(append([]byte("millrace prefix\x00"), space...))
	return Hash(sum[:len(Hash{})])
}

// Next returns the hash of the prefix with the tokens of one more slab.
func (h Hash) Next(tokens []int32) Hash {
	const usual = 16 // tokens of a slab
	var room [len(h) + 4*usual]byte
	b := append(room[:0], h[:]...)
	for _, t := range tokens {
		b = binary.LittleEndian.AppendUint32(b, uint32(t))
	}
	sum := sha256.Sum256(b)
	return Hash(sum[:len(h)])
}

// Of returns the hashes of the prefixes of tokens that end with a slab, the shortest one first.
func Of(space string, slabTokens int, tokens []int32) []Hash {
	if slabTokens < 1 || len(tokens) < slabTokens {
		return nil
	}
	list := make([]Hash, 0, len(tokens)/slabTokens)
	for h := Root(space); len(tokens) >= slabTokens; tokens = tokens[slabTokens:] {
		h = h.Next(tokens[:slabTokens])
		list = append(list, h)
	}
	return list
}

// Common returns how many of the first hashes of a and b are equal. It compares O(log n) of them: two chains that
// have an equal hash are equal up to it.
func Common(a, b []Hash) int {
	low, high := 0, min(len(a), len(b)) // the first low are equal, those from high on are not
	if high > 0 && a[0] != b[0] {
		return 0 // most often
	}
	for low < high {
		at := (low + high) / 2
		if a[at] == b[at] {
			low = at + 1
		} else {
			high = at
		}
	}
	return low
}
