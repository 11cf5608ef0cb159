package tokenizer

import (
	"encoding/json"
	"fmt"
	"unicode"
	"unicode/utf8"
)

// bound is how much text a token can stand for at most. The zero value knows no bound.
type bound struct {
	bytes  int  // of text that a token stands for at most; 0: no bound is known
	spaces bool // white space may belong to a token in any amount: it is not counted
}

// Beginning returns the beginning of a text that has at least n tokens, as LeastTokens finds it: all of it where the text may have fewer.
func (t *Tokenizer) Beginning(text string, n int) string {
	if t.LeastTokens(text) <= n {
		return text
	}
	left := n * t.bound.bytes
	for at, r := range text {
		if left <= 0 {
			return text[:at]
		}
		if !t.bound.spaces || !unicode.IsSpace(r) {
			left -= utf8.RuneLen(r)
		}
	}
	return text
}

// LeastTokens is a number of tokens that Encode makes of a text at least, found from the text's bytes
// without tokenizing it: they are divided by the length of the longest token, times the most that the
// normalizer may shrink a text. It is 0 where a tokenizer may drop text or join unknown characters, so
// that no bound is known.
func (t *Tokenizer) LeastTokens(text string) int {
	if t.bound.bytes == 0 {
		return 0
	}
	n := len(text)
	if t.bound.spaces {
		for _, r := range text {
			if unicode.IsSpace(r) {
				n -= utf8.RuneLen(r)
			}
		}
	}
	return (n + t.bound.bytes - 1) / t.bound.bytes
}

// stage is a normalizer or a pre-tokenizer, or a sequence of them.
type stage struct {
	Type          string          `json:"type"`
	Normalizers   []stage         `json:"normalizers"`
	PreTokenizers []stage         `json:"pretokenizers"`
	Pattern       json.RawMessage `json:"pattern"`
	Content       string          `json:"content"`
	Behavior      string          `json:"behavior"`
}

// newBound returns the bound of a file whose vocabulary is v. What it does not know has no bound.
func newBound(f *tokenizerFile, v *vocabulary) bound {
	shrinks := f.Normalizer.shrinks()
	if shrinks == 0 || !f.PreTokenizer.keeps() {
		return bound{}
	}
	added := make(map[int64]bool, len(f.AddedTokens))
	var b bound
	for _, t := range f.AddedTokens {
		added[t.ID] = true
		b.spaces = b.spaces || t.LStrip || t.RStrip
	}
	byBytes := f.PreTokenizer.has("ByteLevel") || f.Normalizer.has("ByteLevel")
	longest := 1
	switch {
	case byBytes && v.hasAll(byteLevelPieces()):
	case !byBytes && f.Model.ByteFallback && v.hasAll(fallbackPieces()):
	case !byBytes && f.Model.Type == "BPE" && !f.Model.FuseUnknown && f.Model.Unknown != nil:
		longest = utf8.UTFMax // an unknown character
	default:
		return bound{}
	}
	if f.Model.Type != "BPE" && f.Model.Type != "Unigram" {
		return bound{}
	}
	table := byteLevelTable()
	for id, piece := range v.pieces {
		n := len(piece)
		if byBytes && !added[int64(id)] {
			n = len(byteLevelBytes(&table, piece))
		}
		longest = max(longest, n)
	}
	b.bytes = longest * shrinks
	return b
}

// shrinks is how many times shorter, in bytes, a normalizer makes a text at most; 0: no bound is known.
func (s *stage) shrinks() int {
	if s == nil {
		return 1
	}
	switch s.Type {
	case "Sequence":
		times := 1
		for i := range s.Normalizers {
			times *= s.Normalizers[i].shrinks()
		}
		return times
	case "Prepend", "ByteLevel":
		return 1
	case "NFC", "NFD": // three jamo of 3 bytes are a syllable of 3; U+212A, of 3 bytes, is the letter K
		return 3
	case "NFKC", "NFKD": // mathematical letters have 4 bytes
		return 4
	case "Lowercase": // the Kelvin sign U+212A
		return 3
	case "Replace":
		var pattern struct{ String string }
		if json.Unmarshal(s.Pattern, &pattern) != nil || pattern.String == "" || s.Content == "" {
			return 0
		}
		return (len(pattern.String) + len(s.Content) - 1) / len(s.Content)
	}
	return 0
}

// keeps says whether all of a text is in a pre-tokenizer's pieces.
func (s *stage) keeps() bool {
	if s == nil {
		return true
	}
	switch s.Type {
	case "Sequence":
		for i := range s.PreTokenizers {
			if !s.PreTokenizers[i].keeps() {
				return false
			}
		}
		return true
	case "ByteLevel", "Metaspace", "Digits", "UnicodeScripts":
		return true
	case "Split", "Punctuation":
		return s.Behavior != "Removed"
	}
	return false
}

func (s *stage) has(kind string) bool {
	if s == nil {
		return false
	}
	if s.Type == kind {
		return true
	}
	for _, list := range [][]stage{s.Normalizers, s.PreTokenizers} {
		for i := range list {
			if list[i].has(kind) {
				return true
			}
		}
	}
	return false
}

// hasAll says whether a vocabulary has all of some pieces: then no text is unknown to it.
func (v *vocabulary) hasAll(pieces []string) bool {
	lacks := make(map[string]bool, len(pieces))
	for _, p := range pieces {
		lacks[p] = true
	}
	for _, p := range v.pieces {
		delete(lacks, p)
	}
	return len(lacks) == 0
}

// byteLevelPieces are the 256 characters that spell bytes. Those of bytes that are in no text (0xC0,
// 0xC1, from 0xF5 on) may be missing.
func byteLevelPieces() []string {
	var pieces []string
	for char, value := range byteLevelTable() {
		if value >= 0 && inText(byte(value)) {
			pieces = append(pieces, string(rune(char)))
		}
	}
	return pieces
}

// fallbackPieces are the tokens of a byte each.
func fallbackPieces() []string {
	pieces := make([]string, 0x100)
	for b := range pieces {
		pieces[b] = fmt.Sprintf("<0x%02X>", b)
	}
	return pieces
}

// inText says whether valid UTF-8 has a byte.
func inText(b byte) bool { return b < 0xC0 || b > 0xC1 && b < 0xF5 }
