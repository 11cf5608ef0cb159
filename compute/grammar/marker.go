package grammar

import "sync"

// marker finds a text in the bytes of tokens (Knuth, Morris and Pratt 1977).
type marker struct {
	text []byte
	back []int // for each length of a beginning of text: the longest shorter beginning that it ends with

	mu       sync.Mutex
	crossing map[int][]int32 // by the length that is found: tokens with bytes on both sides of the text's end
}

func newMarker(text string) *marker {
	m := &marker{text: []byte(text), back: make([]int, len(text)+1), crossing: make(map[int][]int32)}
	for i, k := 1, 0; i < len(m.text); i++ {
		for k > 0 && m.text[i] != m.text[k] {
			k = m.back[k]
		}
		if m.text[i] == m.text[k] {
			k++
		}
		m.back[i+1] = k
	}
	return m
}

// next returns how much of the text the bytes so far end with, after some more, and how many of these it read:
// all of them, or those up to the end of the text.
func (m *marker) next(found int, more []byte) (now, read int) {
	for i, b := range more {
		for found > 0 && m.text[found] != b {
			found = m.back[found]
		}
		if m.text[found] == b {
			found++
		}
		if found == len(m.text) {
			return found, i + 1
		}
	}
	return found, len(more)
}

// across lists the tokens that may not come where some of the text is found: the text would end inside of them.
func (m *marker) across(v Vocabulary, found int) []int32 {
	m.mu.Lock()
	defer m.mu.Unlock()
	list, known := m.crossing[found]
	if known {
		return list
	}
	for id := range int32(v.Size()) {
		if more := v.Bytes(id); len(more) > 1 {
			if now, read := m.next(found, more); now == len(m.text) && read < len(more) {
				list = append(list, id)
			}
		}
	}
	m.crossing[found] = list
	return list
}
