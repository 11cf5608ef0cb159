package sample

import (
	"cmp"
	"math"
	"slices"
	"sort"
)

// A candidate is a token that may still be drawn.
type candidate struct {
	id     int32
	key    float32 // cut keeps the smallest: the distance to the largest logit times Draw.PerNat
	weight uint64  // of the distance, see weigh
}

const selectMargin = 256

// Scratch is the working memory of Sample, grown to the largest vocabulary it
// has seen (about 17 bytes per token). One goroutine uses it at a time; any
// number of samplers may share it. The zero value is ready.
type Scratch struct {
	candidates []candidate
	inside     []candidate // the bucket in which a cut ends
	largest    []float32
	raw        []float32
	reversed   []int32 // of repeats, as the next one
	common     []int32
	longest    map[int32]int // by token: the longest repetition that it would continue
	banned     []bias        // logits of tokens that bad words exclude
	mass       [cutBuckets]uint64
	sums       []uint64 // of the weights before each of drawBlock tokens
}

// collect lists the tokens with a finite logit no smaller than least, by id.
// top is the largest logit.
func (ws *Scratch) collect(logits []float32, least, top, perNat float32) []candidate {
	set := ws.candidates[:0]
	if least < -math.MaxFloat32 { // -Inf: nearly all of them
		least = -math.MaxFloat32
		set = slices.Grow(set, len(logits))
	}
	for at := 0; at < len(logits); at += block {
		rest := logits[at:]
		if len(rest) >= block {
			if rest = rest[:block]; allBelow((*[block]float32)(rest), least) {
				continue
			}
		}
		for i, v := range rest {
			if v < least {
				continue
			}
			key := (top - v) * perNat
			set = append(set, candidate{int32(at + i), key, weigh(key)})
		}
	}
	ws.candidates = set
	return set
}

// block is the number of logits that are compared at once: few of a vocabulary are large.
const block = 8

// allBelow says whether all logits of a block are less than a limit.
func allBelow(b *[block]float32, limit float32) bool {
	return b[0] < limit && b[1] < limit && b[2] < limit && b[3] < limit && b[4] < limit && b[5] < limit && b[6] < limit && b[7] < limit
}

// kthLargest is the k-th largest logit, 1 <= k <= len(logits), without sorting:
// it gathers what exceeds the k-th largest so far and cuts back to k whenever
// that has doubled.
func (ws *Scratch) kthLargest(logits []float32, k int) float32 {
	limit := max(2*k, k+selectMargin)
	kept := slices.Grow(ws.largest[:0], limit)
	least := float32(math.Inf(-1))
	for len(logits) > 0 {
		n := min(block, len(logits))
		if n == block && allBelow((*[block]float32)(logits), least) {
			logits = logits[block:]
			continue
		}
		for _, v := range logits[:n] {
			if v > least {
				kept = append(kept, v)
				if len(kept) == limit {
					least = partition(kept, k)
					kept = kept[:k]
				}
			}
		}
		logits = logits[n:]
	}
	ws.largest = kept
	if len(kept) < k {
		return least // fewer than k tokens are possible at all
	}
	return partition(kept, k)
}

// partition moves the k largest values, 1 <= k <= len(v), to the front and
// returns the least of them (Hoare's selection).
func partition(v []float32, k int) float32 {
	lo, hi := 0, len(v)-1
	for lo < hi {
		pivot := median(v[lo], v[(lo+hi)/2], v[hi])
		i, j := lo, hi
		for i <= j {
			for v[i] > pivot {
				i++
			}
			for v[j] < pivot {
				j--
			}
			if i <= j {
				v[i], v[j] = v[j], v[i]
				i++
				j--
			}
		}
		switch { // v[lo..j] >= pivot >= v[i..hi], and all between are the pivot
		case k-1 <= j:
			hi = j
		case k-1 >= i:
			lo = i
		default:
			return v[k-1]
		}
	}
	return v[k-1]
}

func median(a, b, c float32) float32 { return max(min(a, b), min(max(a, b), c)) }

// nucleus lists the tokens of the largest logits whose weights reach the share of the total. Most of a large vocabulary are far below
// the border: they have a weight in the total, and are not listed.
func (ws *Scratch) nucleus(logits []float32, top, perNat float32, share uint64) []candidate {
	clear(ws.mass[:])
	want := part(weightSums(instructions, logits, top, perNat, nil, &ws.mass), share)
	at, below := ws.border(want)
	least := impossible()
	if at < cutBuckets-1 { // a bucket more, for rounding
		least = top - float32(float64(at+2)/(bucketsPerOctave*octavesPerNat))/perNat
	}
	return ws.within(ws.collect(logits, least, top, perNat), at, below, want, false)
}

// cut keeps the candidates with the smallest keys whose weights reach the
// share of the total, at least one. If keys are equal at the border, the lowest
// ids stay, or all of them with ties. The order does not change.
func (ws *Scratch) cut(set []candidate, share uint64, ties bool) []candidate {
	clear(ws.mass[:])
	total := uint64(0)
	for i := range set {
		ws.mass[bucket(set[i].key)] += set[i].weight
		total += set[i].weight
	}
	want := part(total, share)
	at, below := ws.border(want)
	return ws.within(set, at, below, want, ties)
}

// border finds the bucket in which the weights from the smallest key on reach a sum, and the sum of those before it: a histogram of weight
// by key finds it to 1/64 octave.
func (ws *Scratch) border(want uint64) (at int, below uint64) {
	for at < cutBuckets-1 && below+ws.mass[at] < want {
		below += ws.mass[at]
		at++
	}
	return at, below
}

// within keeps the candidates up to the one with which the sum is reached. Only those inside the border's bucket are sorted.
func (ws *Scratch) within(set []candidate, at int, below, want uint64, ties bool) []candidate {
	inside := ws.inside[:0]
	for i := range set {
		if bucket(set[i].key) == at {
			inside = append(inside, set[i])
		}
	}
	ws.inside = inside
	if len(inside) == 0 {
		return set // rounding: the share is the whole
	}
	slices.SortFunc(inside, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(a.key, b.key), cmp.Compare(a.id, b.id))
	})
	last := inside[len(inside)-1]
	for _, c := range inside {
		if below += c.weight; below >= want {
			last = c
			break
		}
	}
	kept := set[:0]
	for _, c := range set {
		if c.key < last.key || c.key == last.key && (ties || c.id <= last.id) {
			kept = append(kept, c)
		}
	}
	return kept
}

// atLeast drops the candidates with a weight below least.
func atLeast(set []candidate, least uint64) []candidate {
	kept := set[:0]
	for _, c := range set {
		if c.weight >= least {
			kept = append(kept, c)
		}
	}
	return kept
}

// typical keeps the candidates whose surprise -log p is nearest to the
// entropy, up to the share of the probability (Meister et al., "Locally
// typical sampling", TACL 2023). Keys become the distance to the entropy.
func (ws *Scratch) typical(set []candidate, share float32) []candidate {
	total, moment := uint64(0), 0.0
	for _, c := range set {
		total += c.weight
		if c.weight > 0 { // the key of others may be infinite
			moment += float64(float64(c.weight) * float64(c.key))
		}
	}
	// -log p = key + log(total), so its mean, the entropy, is mean key + log(total).
	mean := moment / float64(total)
	for i := range set {
		set[i].key = float32(math.Abs(float64(set[i].key) - mean))
	}
	return ws.cut(set, fraction(share), true)
}

// pick draws by inverting the cumulative distribution at u, a fraction of 2^64.
func pick(set []candidate, u uint64) int32 {
	total := uint64(0)
	for i := range set {
		total += set[i].weight
	}
	target, sum := part(total, u), uint64(0)
	for i := range set {
		if sum += set[i].weight; sum > target {
			return set[i].id
		}
	}
	return set[0].id // none has a weight
}

// draw is pick among all tokens, which it does not list.
func (ws *Scratch) draw(logits []float32, top, perNat float32, u uint64) int32 {
	blocks := (len(logits) + drawBlock - 1) / drawBlock
	ws.sums = slices.Grow(ws.sums[:0], blocks)[:blocks]
	target := part(weightSums(instructions, logits, top, perNat, ws.sums, nil), u)
	n := sort.Search(len(ws.sums), func(i int) bool { return ws.sums[i] > target }) - 1 // the block in which the sum passes it
	sum, last := ws.sums[n], n*drawBlock
	for ; last < len(logits)-1; last++ {
		if sum += weigh((top - logits[last]) * perNat); sum > target {
			break
		}
	}
	return int32(last)
}
