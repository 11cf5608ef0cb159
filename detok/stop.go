package detok

import "unicode/utf8"

// stopSet finds stop strings in a text that arrives in pieces. It runs one automaton per string
// (Knuth, Morris and Pratt).
type stopSet struct {
	stops []stopString
	held  []byte // text that was not passed on: it may be the beginning of a stop string
}

type stopString struct {
	text    string
	fail    []int32 // fail[n]: the longest proper beginning of text that text[:n] ends with
	matched int     // the longest beginning of text that the text so far ends with
}

func newStopSet(texts []string) stopSet {
	var s stopSet
	for _, text := range texts {
		if text != "" && utf8.ValidString(text) { // other text cannot be in whole characters
			s.stops = append(s.stops, stopString{text: text, fail: failures(text)})
		}
	}
	return s
}

func failures(text string) []int32 {
	fail := make([]int32, len(text)+1)
	k := int32(0)
	for i := 1; i < len(text); i++ {
		for k > 0 && text[i] != text[k] {
			k = fail[k]
		}
		if text[i] == text[k] {
			k++
		}
		fail[i+1] = k
	}
	return fail
}

// step takes one byte and says whether the string is complete.
func (s *stopString) step(b byte) bool {
	for s.matched > 0 && s.text[s.matched] != b {
		s.matched = int(s.fail[s.matched])
	}
	if s.text[s.matched] == b {
		s.matched++
	}
	return s.matched == len(s.text)
}

// scan takes pending, whose beginning is the held text, seen before. Found: the stop string is
// pending[start:end]. Else pending[start:] may be the beginning of one.
func (s *stopSet) scan(pending []byte) (start, end int, found bool) {
	if len(s.stops) == 0 {
		return len(pending), len(pending), false
	}
	for at := len(s.held); at < len(pending); at++ {
		longest := 0
		for i := range s.stops {
			if stop := &s.stops[i]; stop.step(pending[at]) {
				longest = max(longest, len(stop.text))
			}
		}
		if longest > 0 {
			return at + 1 - longest, at + 1, true
		}
	}
	longest := 0
	for i := range s.stops {
		longest = max(longest, s.stops[i].matched)
	}
	return len(pending) - longest, len(pending), false
}

// hold keeps pending[start:] for the next scan.
func (s *stopSet) hold(pending []byte, start int) {
	s.held = pending[:copy(pending, pending[start:])]
}

// touches says whether text, with nothing held before it, completes or begins a stop string.
func (s *stopSet) touches(text string) bool {
	for i := range s.stops {
		stop := &s.stops[i]
		for at := range len(text) {
			if stop.step(text[at]) {
				s.reset()
				return true
			}
		}
		if stop.matched > 0 {
			s.reset()
			return true
		}
	}
	return false
}

// reset forgets the text since the held text became empty.
func (s *stopSet) reset() {
	for i := range s.stops {
		s.stops[i].matched = 0
	}
}
