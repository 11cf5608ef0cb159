package detok

import (
	"slices"
	"strings"
	"unicode/utf8"
)

// windowText is the text of a vocabulary whose tokens read differently at the beginning of a text
// and within it (SentencePiece, WordPiece): it decodes a window of the last tokens with and without
// the newest, and the difference is what they add.
type windowText struct {
	dec    Decoder
	ids    []int32 // ids[:shown] give before, which has been passed on; the rest are new
	shown  int
	before string
}

func (t *windowText) push(dst []byte, id int32) []byte {
	t.ids = append(t.ids, id)
	// A run of byte tokens is decoded as one: if any of it is not UTF-8, all of it is U+FFFD.
	if t.dec.IsByte(id) {
		return dst
	}
	added, ok := t.added()
	if !ok || added == "" || strings.HasSuffix(added, "\uFFFD") {
		return dst
	}
	dst = append(dst, added...)
	t.slide()
	return dst
}

func (t *windowText) flush(dst []byte) []byte {
	added, _ := t.added()
	t.ids, t.shown, t.before = nil, 0, ""
	return append(dst, added...)
}

func (t *windowText) drop() {
	for len(t.ids) > t.shown {
		last := t.ids[len(t.ids)-1]
		added, ok := t.added()
		if ok && !strings.HasSuffix(added, "\uFFFD") || !t.dec.IsByte(last) && utf8.Valid(t.dec.TokenBytes(last)) {
			return
		}
		t.ids = t.ids[:len(t.ids)-1]
	}
}

// added is what ids[shown:] add to the text. Not ok: the text before may still change.
func (t *windowText) added() (string, bool) {
	text, err := t.dec.Decode(t.ids, false) // special tokens were left out before
	if err != nil {
		return "", false
	}
	return strings.CutPrefix(text, t.before)
}

// slide moves the window's beginning to the tokens just passed on, so that the next ones are not at
// the beginning of a text.
func (t *windowText) slide() {
	t.ids = slices.Delete(t.ids, 0, t.shown)
	t.shown = len(t.ids)
	before, err := t.dec.Decode(t.ids, false)
	if err != nil {
		before = ""
	}
	t.before = before
}
