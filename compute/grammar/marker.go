package grammar

import (
	"slices"
	"sync"
)

// finder finds a text in bytes (Knuth, Morris and Pratt 1977).
type finder struct {
	text []byte
	back []int // for each length of a beginning of text: the longest shorter beginning that it ends with
}

func newFinder(text string) finder {
	f := finder{text: []byte(text), back: make([]int, len(text)+1)}
	for i, k := 1, 0; i < len(f.text); i++ {
		for k > 0 && f.text[i] != f.text[k] {
			k = f.back[k]
		}
		if f.text[i] == f.text[k] {
			k++
		}
		f.back[i+1] = k
	}
	return f
}

// next returns how much of the text the bytes so far end with after one more: less than all of it was found before.
func (f *finder) next(found int, b byte) int {
	for found > 0 && f.text[found] != b {
		found = f.back[found]
	}
	if f.text[found] == b {
		found++
	}
	return found
}

// stage is what is looked for before a grammar.
type stage uint8

const (
	seeking   stage = iota // Spec.After
	opening                // Spec.SkipFrom, which may come at once only
	skipping               // Spec.SkipTo
	undecided              // Spec.Opening, which may come at once only
	decided                // not Spec.Opening
)

// place is a place before a grammar.
type place struct {
	stage stage
	found int // length of the beginning of the text that is looked for with which the bytes so far end
}

// marks are the texts before a grammar.
type marks struct{ after, skipFrom, skipTo, opening string }

// marker finds the end of the text before a grammar.
type marker struct {
	first    place
	after    finder
	skipFrom []byte
	skipTo   finder
	opening  []byte

	mu       sync.Mutex
	crossing map[place][]int32 // tokens with bytes on both sides of the end of after
	leading  map[place][]int32 // undecided: tokens that lead to the opening
}

func newMarker(m marks) *marker {
	out := &marker{after: newFinder(m.after), skipFrom: []byte(m.skipFrom), skipTo: newFinder(m.skipTo), opening: []byte(m.opening),
		crossing: make(map[place][]int32), leading: make(map[place][]int32)}
	switch {
	case m.opening != "":
		out.first.stage = undecided
	case m.skipTo == "":
	case m.skipFrom == "":
		out.first.stage = skipping
	default:
		out.first.stage = opening
	}
	return out
}

// next returns the place after some more bytes, and how many of these it read: all of them, or those up to the end of the
// text before the grammar.
func (m *marker) next(at place, more []byte) (now place, read int) {
	for i, b := range more {
		if at = m.step(at, b); m.ends(at) {
			return at, i + 1
		}
	}
	return at, len(more)
}

// ends reports whether the grammar begins at a place.
func (m *marker) ends(at place) bool { return at.stage == seeking && at.found == len(m.after.text) }

func (m *marker) step(at place, b byte) place {
	switch at.stage {
	case undecided:
		return m.open(at, b)
	case decided:
		return at
	case opening:
		switch {
		case m.skipFrom[at.found] == b:
			if at.found++; at.found == len(m.skipFrom) {
				return place{stage: skipping}
			}
			return at
		case at.found == 0 && isSpace(b):
			return at
		}
		found := 0 // what looked like skipFrom may be the beginning of after
		for _, earlier := range m.skipFrom[:at.found] {
			found = m.after.next(found, earlier)
		}
		return place{found: m.after.next(found, b)}
	case skipping:
		if at.found = m.skipTo.next(at.found, b); at.found == len(m.skipTo.text) {
			return place{}
		}
		return at
	default:
		at.found = m.after.next(at.found, b)
		return at
	}
}

// open is the step to the opening.
func (m *marker) open(at place, b byte) place {
	if m.opening[at.found] != b {
		return place{stage: decided}
	}
	if at.found++; at.found < len(m.opening) {
		return at
	}
	found := 0 // the opening may be the beginning of after
	for _, b := range m.opening {
		found = m.after.next(found, b)
	}
	return place{found: found}
}

func isSpace(b byte) bool { return b == ' ' || b == '\n' || b == '\r' || b == '\t' }

// toOpening lists the tokens that lead from a place to the opening, or beyond it.
func (m *marker) toOpening(v Vocabulary, at place) []int32 {
	m.mu.Lock()
	defer m.mu.Unlock()
	list, known := m.leading[at]
	if known {
		return list
	}
	for id := range int32(v.Size()) {
		if more := v.Bytes(id); len(more) > 0 && !slices.Contains(v.Ends(), id) {
			if now, read := m.next(at, more); now.stage != decided && read == len(more) {
				list = append(list, id)
			}
		}
	}
	m.leading[at] = list
	return list
}

// across lists the tokens that may not come at a place: the text before the grammar would end inside of them.
func (m *marker) across(v Vocabulary, at place) []int32 {
	m.mu.Lock()
	defer m.mu.Unlock()
	list, known := m.crossing[at]
	if known {
		return list
	}
	for id := range int32(v.Size()) {
		if more := v.Bytes(id); len(more) > 1 {
			if now, read := m.next(at, more); m.ends(now) && read < len(more) {
				list = append(list, id)
			}
		}
	}
	m.crossing[at] = list
	return list
}
