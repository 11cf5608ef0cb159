package kvmgr

import (
	"math/bits"
	"slices"
)

// searchRuns bounds the search for a run that holds a whole lease.
const searchRuns = 64

// freeSet is the set of free slabs, as a bitmap. Low and adjacent ids come
// first, since adjacent slabs are mapped by one call. Taking n slabs costs
// O(n + searchRuns) plus a scan of the bitmap's words (94 for 6,000 slabs);
// nothing is allocated.
type freeSet struct {
	words []uint64
	count int
	low   int // no slab below word low is free
}

func newFreeSet(n int) freeSet {
	f := freeSet{words: make([]uint64, (n+63)/64)}
	for id := range n {
		f.put(id)
	}
	f.low = 0
	return f
}

func (f *freeSet) has(id int) bool { return f.words[id/64]>>(id%64)&1 == 1 }

func (f *freeSet) put(id int) {
	f.words[id/64] |= 1 << (id % 64)
	f.count++
	f.low = min(f.low, id/64)
}

// take removes n slabs (the caller knows that there are n) and appends
// their ids to dst: first those that follow on from near (-1: none), then one
// run for all the rest, or else the lowest ones.
func (f *freeSet) take(dst []int32, n, near int) []int32 {
	if near >= 0 {
		k := f.run(near, n)
		dst = f.remove(dst, near, k)
		n -= k
	}
	if n == 0 {
		return dst
	}
	if first, ok := f.findRun(n); ok {
		return f.remove(dst, first, n)
	}
	for n > 0 {
		first := f.next(f.low * 64)
		k := f.run(first, n)
		dst = f.remove(dst, first, k)
		n -= k
	}
	return dst
}

// findRun returns the lowest run of n free slabs, if it is among the lowest
// searchRuns runs.
func (f *freeSet) findRun(n int) (first int, ok bool) {
	from := f.low * 64
	for range searchRuns {
		first = f.next(from)
		if first < 0 {
			return 0, false
		}
		k := f.run(first, n)
		if k == n {
			return first, true
		}
		from = first + k
	}
	return 0, false
}

// next returns the lowest free slab from id on, or -1.
func (f *freeSet) next(id int) int {
	for w := id / 64; w < len(f.words); w++ {
		word := f.words[w]
		if w == id/64 {
			word &= ^uint64(0) << (id % 64)
		}
		if word != 0 {
			return w*64 + bits.TrailingZeros64(word)
		}
	}
	return -1
}

// last returns the highest free slab, or -1.
func (f *freeSet) last() int {
	for w, v := range slices.Backward(f.words) {
		if word := v; word != 0 {
			return w*64 + 63 - bits.LeadingZeros64(word)
		}
	}
	return -1
}

// run counts the free slabs from first on without a gap, up to n.
func (f *freeSet) run(first, n int) int {
	k := 0
	for k < n && (first+k)/64 < len(f.words) {
		off := (first + k) % 64
		ones := bits.TrailingZeros64(^(f.words[(first+k)/64] >> off))
		k += ones
		if ones < 64-off {
			break
		}
	}
	return min(k, n)
}

// remove takes the n slabs from first on, which are free.
func (f *freeSet) remove(dst []int32, first, n int) []int32 {
	for id := first; id < first+n; id++ {
		f.words[id/64] &^= 1 << (id % 64)
		dst = append(dst, int32(id))
	}
	f.count -= n
	for f.low < len(f.words) && f.words[f.low] == 0 {
		f.low++
	}
	return dst
}
