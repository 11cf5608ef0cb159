package sample

import (
	"fmt"
	"math"
	"slices"
)

// MaxDRY is the largest DRY.Multiplier, and the largest DRY.Base.
const MaxDRY = 100

// DRY lowers the logits of tokens that would continue a repetition, by Multiplier * Base^(length of the repetition - Allowed). The
// repetition is the longest end of the sequence, prompt and output, that the token followed before. It is the sampler "DRY" of p-e-w
// (text-generation-webui, pull request 5677), as in llama.cpp.
type DRY struct {
	Multiplier float32 // 0..MaxDRY
	Base       float32 // 1..MaxDRY
	Allowed    int     // a shorter repetition, in tokens, has no penalty
	Last       int     // tokens at the end of the sequence in which repetitions are found; -1: all, 0: none
	// Breakers are texts that no repetition crosses.
	Breakers []string
}

// DefaultDRY returns the parameters of llama.cpp, with a multiplier of 0.
func DefaultDRY() DRY {
	return DRY{Base: 1.75, Allowed: 2, Last: -1, Breakers: []string{"\n", ":", "\"", "*"}}
}

func (d *DRY) on() bool { return d != nil && d.Multiplier != 0 && d.Last != 0 }

func (d *DRY) validate() error {
	if d == nil {
		return nil
	}
	if err := checkRange("dry_multiplier", d.Multiplier, 0, MaxDRY); err != nil {
		return err
	}
	if err := checkRange("dry_base", d.Base, 1, MaxDRY); err != nil {
		return err
	}
	if d.Allowed < 0 {
		return &ParamError{"dry_allowed_length", fmt.Sprint(d.Allowed), "0 or more"}
	}
	if d.Last < -1 {
		return &ParamError{"dry_penalty_last_n", fmt.Sprint(d.Last), "-1 (all), or 0 or more"}
	}
	return validateTexts("dry_sequence_breakers", d.Breakers, MaxBreakers, MaxBreakerBytes)
}

// dry is DRY with the tokens of its breakers.
type dry struct {
	*DRY
	breaks []int32             // tokens that contain a breaker, ascending: thousands, so that no sequence makes a map of them
	long   map[int32][][]int32 // the rest of each longer breaker by the token that it begins with
}

// newDRY returns nil where DRY does nothing.
func newDRY(p *Params) *dry {
	if !p.DRY.on() {
		return nil
	}
	d := &dry{DRY: p.DRY, long: make(map[int32][][]int32)}
	if p.Tokens == nil {
		return d
	}
	if d.breaks = p.Tokens.Breaks; !slices.IsSorted(d.breaks) {
		d.breaks = slices.Sorted(slices.Values(d.breaks))
	}
	for _, ids := range p.Tokens.LongBreaks {
		if len(ids) > 0 {
			d.long[ids[0]] = append(d.long[ids[0]], ids[1:])
		}
	}
	return d
}

// edit lowers the logits of the tokens that would continue a repetition at the end of a sequence.
func (d *dry) edit(logits []float32, sequence []int32, ws *Scratch) {
	if d.Last > 0 && len(sequence) > d.Last {
		sequence = sequence[len(sequence)-d.Last:]
	}
	most := d.unbroken(sequence)
	if len(sequence) <= d.Allowed || most < d.Allowed {
		return
	}
	if ws.longest == nil {
		ws.longest = make(map[int32]int)
	}
	clear(ws.longest)
	for back, common := range ws.repeats(sequence) {
		n := min(int(common), most)
		if n < d.Allowed || back == 0 { // 0: the end itself
			continue
		}
		if next := sequence[len(sequence)-back]; next >= 0 && int(next) < len(logits) {
			ws.longest[next] = max(ws.longest[next], n)
		}
	}
	for id, n := range ws.longest {
		logits[id] -= d.penalty(n)
	}
}

// unbroken is the number of tokens after the last breaker of a sequence.
func (d *dry) unbroken(sequence []int32) int {
	for i, s := range slices.Backward(sequence) {
		after, longest := sequence[i+1:], -1
		if _, ok := slices.BinarySearch(d.breaks, s); ok {
			longest = 0
		}
		for _, rest := range d.long[s] {
			if len(rest) > longest && hasPrefix(after, rest) {
				longest = len(rest)
			}
		}
		if longest >= 0 {
			return len(after) - longest
		}
	}
	return len(sequence)
}

func hasPrefix(ids, prefix []int32) bool {
	if len(prefix) > len(ids) {
		return false
	}
	for i, id := range prefix {
		if ids[i] != id {
			return false
		}
	}
	return true
}

// penalty is that of a repetition of n tokens, at most the largest float32. The power is made of products, since math.Pow is not the same
// everywhere.
func (d *dry) penalty(n int) float32 {
	power, square := 1.0, float64(d.Base)
	for n -= d.Allowed; n > 0; n /= 2 {
		if n%2 == 1 {
			power *= square
		}
		square *= square
	}
	return float32(min(float64(d.Multiplier)*power, math.MaxFloat32))
}

// repeats returns, for each number of tokens that are left out at the end of a sequence, how many tokens the rest's end has in common with
// the sequence's. It is the Z-function of the reversed sequence (Gusfield, "Algorithms on strings, trees and sequences", 1.4).
func (ws *Scratch) repeats(sequence []int32) []int32 {
	n := len(sequence)
	text := slices.Grow(ws.reversed[:0], n)[:n]
	copy(text, sequence)
	slices.Reverse(text)
	z := slices.Grow(ws.common[:0], n)[:n]
	ws.reversed, ws.common = text, z
	left, right := 0, 0 // the part that is known to equal the beginning
	for i := 1; i < n; i++ {
		same := 0
		if i < right {
			same = min(right-i, int(z[i-left]))
		}
		for i+same < n && text[same] == text[i+same] {
			same++
		}
		z[i] = int32(same)
		if i+same > right {
			left, right = i, i+same
		}
	}
	return z
}
