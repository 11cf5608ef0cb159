package sample

import "math/bits"

// philox is Philox4x32-10: ten rounds of a keyed bijection on four words.
// Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3",
// SC 2011, section 3.3; multipliers and key increments are the paper's.
func philox(counter [4]uint32, key [2]uint32) [4]uint32 {
	const (
		mul0, mul1   = 0xD2511F53, 0xCD9E8D57
		weyl0, weyl1 = 0x9E3779B9, 0xBB67AE85 // golden ratio, sqrt(3)-1
	)
	for range 10 {
		hi0, lo0 := bits.Mul32(mul0, counter[0])
		hi1, lo1 := bits.Mul32(mul1, counter[2])
		counter = [4]uint32{hi1 ^ counter[1] ^ key[0], lo1, hi0 ^ counter[3] ^ key[1], lo0}
		key[0] += weyl0
		key[1] += weyl1
	}
	return counter
}

// purpose is what a random number is for. Those of one position have nothing in common.
type purpose uint32

const (
	forToken     purpose = iota
	forExclusion         // whether XTC applies
)

// uniform is the random number of a position's token, as a fraction of 2^64.
func uniform(seed uint64, position int) uint64 { return middle(random(seed, position, forToken)) }

// random are the random bits of a position for a purpose: the seed is the key, the position and the purpose the counter.
func random(seed uint64, position int, p purpose) uint64 {
	n := uint64(position)
	w := philox([4]uint32{uint32(n), uint32(n >> 32), uint32(p)}, [2]uint32{uint32(seed), uint32(seed >> 32)})
	return uint64(w[1])<<32 | uint64(w[0])
}

// middle is the middle of one of 2^52 equal cells of (0, 1), as a fraction of 2^64: never 0, never 1.
func middle(word uint64) uint64 { return word>>12<<12 | 1<<11 }
