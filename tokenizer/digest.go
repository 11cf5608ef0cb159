package tokenizer

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"

	"github.com/millrace/millrace/compute/grammar/schema"
	"github.com/millrace/millrace/tokenizer/jinja"
)

// digestBytes is the length of a digest before it is spelled in hexadecimal.
const digestBytes = 16

// textVersion is the version of this package's own part of turning chats into text and text
// into ids and back. A change that makes other ids or other text raises it.
const textVersion = 2

// source is what a tokenizer was made of.
type source struct {
	file      [sha256.Size]byte // hash of tokenizer.json, or of what stands for it; zero: bare
	templates map[string]string // of the chat, by name
}

// Digest names what makes ids of text and text of ids, 128 bits of SHA-256 in hexadecimal: tokenizer.json, the named tokens, the chat
// templates, the ends of an answer, and the libraries, with the forms that schemas get for the grammar engine. Tokenizers with equal
// digests give equal ids and equal text. Parts of the files that nothing reads are not in it.
func (t *Tokenizer) Digest() string {
	version := fmt.Sprintf("%d %s %s", textVersion, schema.Version, jinja.LibraryID)
	if t.plainMessages {
		version += " plain messages"
	}
	return t.source.digest(len(t.vocab.pieces), t.special, t.eos, version)
}

func (s *source) digest(vocab int, special specialTokens, eos []int32, libraries string) string {
	h := sha256.New()
	field := func(name, value string) {
		// No two lists of fields look alike. A hash takes everything: no error.
		fmt.Fprintf(h, "%d:%s=%d:%s", len(name), name, len(value), value)
	}
	field("libraries", libraries)
	field("tokenizer", string(s.file[:]))
	field("vocab", fmt.Sprint(vocab))
	for _, name := range slices.Sorted(maps.Keys(s.templates)) {
		field("template "+name, s.templates[name])
	}
	for _, name := range slices.Sorted(maps.Keys(special.text)) {
		field(name, special.text[name])
	}
	field("ids", fmt.Sprint(special.bos, special.eos, eos))
	return hex.EncodeToString(h.Sum(nil)[:digestBytes])
}
