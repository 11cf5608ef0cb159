package tokenizer

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/millrace/millrace/compute/weights"
)

const (
	flagSpecial = 1 << iota // skipped by Decode with skipSpecial
	flagByte                // one byte, <0xE4>, decoded together with its neighbors
)

// vocabulary is what every id stands for, from tokenizer.json. It never changes.
type vocabulary struct {
	pieces    []string // by id, as the file spells them
	bytes     [][]byte // by id, as they stand in a text; nil where no token has the id
	flags     []uint8
	byteLevel bool  // a text is the joined bytes of its tokens
	nul       int32 // the token that is a NUL byte, or -1; not of a byteLevel vocabulary
	spellsNUL bool  // a token is a NUL byte

	processor json.RawMessage // the file's post_processor
}

// maxVocab bounds what a file can make us allocate: the largest published vocabularies have under
// 2^19 tokens.
const maxVocab = 1 << 24

// tokenizerFile is what is read of tokenizer.json here. The library reads all of it.
type tokenizerFile struct {
	AddedTokens []struct {
		ID      int64  `json:"id"`
		Content string `json:"content"`
		Special bool   `json:"special"`
		LStrip  bool   `json:"lstrip"`
		RStrip  bool   `json:"rstrip"`
	} `json:"added_tokens"`
	Normalizer   *stage `json:"normalizer"`
	PreTokenizer *stage `json:"pre_tokenizer"`
	Model        struct {
		Type         string          `json:"type"`
		Vocab        json.RawMessage `json:"vocab"`
		ByteFallback bool            `json:"byte_fallback"`
		Unknown      *string         `json:"unk_token"`
		FuseUnknown  bool            `json:"fuse_unk"`
		// WordPiece
		ContinuingSubwordPrefix *string `json:"continuing_subword_prefix"`
	} `json:"model"`
	Decoder   *component      `json:"decoder"`
	Processor json.RawMessage `json:"post_processor"`
}

// read parses a tokenizer.json for its vocabulary and its bound.
func (t *Tokenizer) read(data []byte) (err error) {
	var f tokenizerFile
	if err = json.Unmarshal(data, &f); err != nil {
		return fmt.Errorf("found %s, expected a tokenizer", weights.JSONFault(err))
	}
	if t.vocab, err = newVocabulary(&f); err == nil {
		t.bound = newBound(&f, &t.vocab)
	}
	return err
}

// component is a decoder, or a sequence of them.
type component struct {
	Type     string      `json:"type"`
	Decoders []component `json:"decoders"`
}

func (c *component) has(kind string) bool {
	if c == nil {
		return false
	}
	if c.Type == kind {
		return true
	}
	for i := range c.Decoders {
		if c.Decoders[i].has(kind) {
			return true
		}
	}
	return false
}

// isOnly says whether the component does nothing but kind.
func (c *component) isOnly(kind string) bool {
	if c == nil {
		return false
	}
	return c.Type == kind || c.Type == "Sequence" && len(c.Decoders) == 1 && c.Decoders[0].isOnly(kind)
}

func newVocabulary(f *tokenizerFile) (vocabulary, error) {
	pieces, err := modelPieces(f.Model.Vocab)
	if err != nil {
		return vocabulary{}, err
	}
	v := vocabulary{pieces: pieces, nul: -1, processor: f.Processor}
	for i, t := range f.AddedTokens {
		if t.ID < 0 || t.ID >= maxVocab {
			return vocabulary{}, fmt.Errorf("added_tokens[%d] has id %d, expected 0..%d", i, t.ID, maxVocab-1)
		}
		for int(t.ID) >= len(v.pieces) {
			v.pieces = append(v.pieces, "")
		}
		v.pieces[t.ID] = t.Content
	}
	v.flags = make([]uint8, len(v.pieces))
	v.bytes = make([][]byte, len(v.pieces))
	added := make([]bool, len(v.pieces))
	for _, t := range f.AddedTokens {
		added[t.ID] = true
		if t.Special {
			v.flags[t.ID] |= flagSpecial
		}
	}
	v.byteLevel = f.Decoder.isOnly("ByteLevel")
	spell := speller(f)
	for id, piece := range v.pieces {
		switch value, isByte := byteToken(piece); {
		case piece == "":
			continue
		case isByte && f.Decoder.has("ByteFallback"):
			v.flags[id] |= flagByte
			v.bytes[id] = []byte{value}
		case added[id] && !v.byteLevel:
			v.bytes[id] = []byte(piece)
		default:
			v.bytes[id] = spell(piece)
		}
	}
	v.spellsNUL = slices.ContainsFunc(v.bytes, func(b []byte) bool { return len(b) == 1 && b[0] == 0 })
	err = v.findNUL()
	return v, err
}

// findNUL finds the token that is a NUL byte. The library ends its strings at a NUL and cannot
// decode longer tokens with one.
func (v *vocabulary) findNUL() error {
	if v.byteLevel {
		return nil
	}
	for id, b := range v.bytes {
		switch {
		case len(b) == 1 && b[0] == 0:
			v.nul = int32(id)
		case bytes.IndexByte(b, 0) >= 0:
			return fmt.Errorf("token %d is %q: a NUL byte needs the ByteLevel decoder alone", id, b)
		}
	}
	return nil
}

// speller is how a piece of the model's vocabulary stands in the middle of a text.
func speller(f *tokenizerFile) func(string) []byte {
	switch {
	case f.Decoder.has("ByteLevel"):
		table := byteLevelTable()
		return func(piece string) []byte { return byteLevelBytes(&table, piece) }
	case f.Decoder.has("WordPiece"):
		prefix := "##"
		if p := f.Model.ContinuingSubwordPrefix; p != nil {
			prefix = *p
		}
		return func(piece string) []byte {
			if rest, ok := strings.CutPrefix(piece, prefix); ok {
				return []byte(rest)
			}
			return []byte(" " + piece)
		}
	default:
		return func(piece string) []byte { return []byte(strings.ReplaceAll(piece, "\u2581", " ")) }
	}
}

// modelPieces reads model.vocab: {"piece": id} of BPE, WordPiece and WordLevel, or [["piece",
// score]] of Unigram.
func modelPieces(vocab json.RawMessage) ([]string, error) {
	if len(vocab) > 0 && vocab[0] == '[' {
		var scored [][2]any
		if err := json.Unmarshal(vocab, &scored); err != nil {
			return nil, fmt.Errorf("model.vocab: %w", err)
		}
		pieces := make([]string, len(scored))
		for i, s := range scored {
			piece, ok := s[0].(string)
			if !ok {
				return nil, fmt.Errorf("model.vocab[%d][0] is %v, expected a string", i, s[0])
			}
			pieces[i] = piece
		}
		return pieces, nil
	}
	var ids map[string]int64
	if err := json.Unmarshal(vocab, &ids); err != nil {
		return nil, fmt.Errorf("model.vocab: %w", err)
	}
	size := int64(0)
	for piece, id := range ids {
		if id < 0 || id >= maxVocab {
			return nil, fmt.Errorf("model.vocab[%q] is %d, expected 0..%d", piece, id, maxVocab-1)
		}
		size = max(size, id+1)
	}
	pieces := make([]string, size)
	for piece, id := range ids {
		pieces[id] = piece
	}
	return pieces, nil
}

func (v *vocabulary) has(id int32) bool { return id >= 0 && int(id) < len(v.pieces) }

// byteToken reads <0xE4>.
func byteToken(piece string) (byte, bool) {
	if len(piece) != 6 || !strings.HasPrefix(piece, "<0x") || piece[5] != '>' {
		return 0, false
	}
	value, err := strconv.ParseUint(piece[3:5], 16, 8)
	return byte(value), err == nil
}

// byteLevelTable maps the characters by which byte-level vocabularies spell bytes (GPT-2's
// bytes_to_unicode: printable ones themselves, the other 68 from U+0100 on) to those bytes.
func byteLevelTable() [0x144]int16 {
	var table [0x144]int16
	for i := range table {
		table[i] = -1
	}
	next := 0x100
	for b := range 0x100 {
		printable := b >= '!' && b <= '~' || b >= 0xA1 && b <= 0xAC || b >= 0xAE
		if printable {
			table[b] = int16(b)
		} else {
			table[next] = int16(b)
			next++
		}
	}
	return table
}

// byteLevelBytes is a token's bytes: mapped, or its own UTF-8 if any character is none of the 256,
// as the library's ByteLevel decoder has it.
func byteLevelBytes(table *[0x144]int16, piece string) []byte {
	out := make([]byte, 0, len(piece))
	for _, r := range piece {
		if int(r) >= len(table) || table[r] < 0 {
			return []byte(piece)
		}
		out = append(out, byte(table[r]))
	}
	return out
}

func (v *vocabulary) decodeBytes(ids []int32, skipSpecial bool) string {
	var raw []byte
	for _, id := range ids {
		if skipSpecial && v.flags[id]&flagSpecial != 0 {
			continue
		}
		raw = append(raw, v.bytes[id]...)
	}
	return string(appendLossy(make([]byte, 0, len(raw)), raw))
}

// appendLossy appends raw as UTF-8 to dst. As in Unicode's recommended practice (and Rust's
// from_utf8_lossy), each longest beginning of a character that breaks off becomes one U+FFFD.
func appendLossy(dst, raw []byte) []byte {
	for len(raw) > 0 {
		r, size := utf8.DecodeRune(raw)
		if r == utf8.RuneError && size == 1 {
			size = brokenLen(raw)
			dst = append(dst, "\uFFFD"...)
		} else {
			dst = append(dst, raw[:size]...)
		}
		raw = raw[size:]
	}
	return dst
}

// brokenLen is the length of the broken character at the start of raw: the longest beginning that
// could have become a character, at least 1.
func brokenLen(raw []byte) int {
	n := 1
	for n < len(raw) && !utf8.FullRune(raw[:n]) {
		if utf8.FullRune(raw[:n+1]) {
			return n
		}
		n++
	}
	return n
}

// standIn is a control character that takes the place of NUL within one call of the library, which
// ends its strings there.
type standIn struct {
	id   int32 // -1: not needed
	text string
}

func (v *vocabulary) nulStandIn(ids []int32) (standIn, error) {
	if v.nul < 0 || !slices.Contains(ids, v.nul) {
		return standIn{id: -1}, nil
	}
	for id, b := range v.bytes {
		if len(b) == 1 && b[0] > 0 && b[0] < ' ' && v.flags[id] == v.flags[v.nul] && !v.inUse(ids, b[0]) {
			return standIn{id: int32(id), text: string(b)}, nil
		}
	}
	return standIn{}, fmt.Errorf("%w: NUL (token %d) together with every other control character", ErrText, v.nul)
}

// inUse says whether control stands in the text of ids.
func (v *vocabulary) inUse(ids []int32, control byte) bool {
	for _, id := range ids {
		if bytes.IndexByte(v.bytes[id], control) >= 0 {
			return true
		}
	}
	return false
}
