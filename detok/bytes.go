package detok

import (
	"unicode/utf8"
	"unsafe"
)

// byteText is the text of a byte-level vocabulary: its tokens' bytes joined, read as UTF-8.
type byteText struct {
	dec  Decoder
	part [utf8.UTFMax]byte // the beginning of a character, part[:n]
	n    int
}

// whole is the text of id if it needs nothing before it or after it. The text shares the decoder's
// memory, which never changes.
func (t *byteText) whole(id int32) (string, bool) {
	b := t.dec.TokenBytes(id)
	if t.n > 0 || !utf8.Valid(b) {
		return "", false
	}
	return unsafe.String(unsafe.SliceData(b), len(b)), true
}

func (t *byteText) push(dst []byte, id int32) []byte {
	for _, b := range t.dec.TokenBytes(id) {
		dst = t.add(dst, b)
	}
	return dst
}

// add takes one byte. part[:n] is always a proper beginning of a character.
func (t *byteText) add(dst []byte, b byte) []byte {
	t.part[t.n] = b
	t.n++
	if !utf8.FullRune(t.part[:t.n]) {
		return dst
	}
	r, size := utf8.DecodeRune(t.part[:t.n])
	if r != utf8.RuneError || size > 1 {
		dst = append(dst, t.part[:t.n]...)
		t.n = 0
		return dst
	}
	// b does not continue the character: its beginning becomes one U+FFFD, and b begins a new one.
	broken := t.n > 1
	t.n = 0
	dst = append(dst, "\uFFFD"...)
	if broken {
		dst = t.add(dst, b)
	}
	return dst
}

func (t *byteText) drop() { t.n = 0 }

func (t *byteText) flush(dst []byte) []byte {
	if t.n > 0 {
		dst = append(dst, "\uFFFD"...)
		t.n = 0
	}
	return dst
}
