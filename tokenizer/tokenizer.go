// Package tokenizer turns text into token ids and back, and chats into text: tokenizer.json through
// github.com/daulet/tokenizers, chat templates through package jinja. Only Load reads
// files.
//
// It must not know actors or how a request is served.
package tokenizer

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/millrace/millrace/tokenizer/llguidance"
)

var (
	// ErrClosed is returned after Close.
	ErrClosed = errors.New("tokenizer is closed")
	// ErrText means text that cannot be tokenized: not UTF-8, or with a NUL byte that the vocabulary has no token for.
	ErrText = errors.New("bad text")
	// ErrToken means an id outside the vocabulary.
	ErrToken = errors.New("token id outside the vocabulary")
	// ErrLibrary means that the tokenizers library failed on a text or on ids, mostly because
	// tokenizer.json lacks what they need; its message follows.
	ErrLibrary = errors.New("tokenizers library")
	// ErrFile means a file of the model's folder is missing or wrong.
	ErrFile = errors.New("tokenizer files")
)

// Tokenizer is one model's vocabulary, special tokens and chat template. It is safe for use by many
// goroutines at once.
type Tokenizer struct {
	mu  sync.RWMutex // held for reading while lib is in use
	lib *library

	vocab     vocabulary
	bound     bound
	special   specialTokens
	eos       []int32
	templates map[string]*template // by name; none: the model has no chat template
	bare      error                // why there is no text, see Bare; nil: there is
	source    source
	pair      []pairPiece // of two texts
	pairFault error       // why there is none
	// plainMessages, see PlainMessages. specials are the special tokens, longest first, and specialFirsts the
	// characters that they begin with, but letters, digits and spaces.
	plainMessages bool
	specials      []string
	specialFirsts []rune

	making   sync.Mutex         // held while grammars is made and closed; before mu
	grammars *llguidance.Engine // nil until it is needed
}

// Close frees the library's memory. Calls after it return ErrClosed or nothing.
func (t *Tokenizer) Close() error {
	t.making.Lock()
	defer t.making.Unlock()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.lib == nil {
		return nil
	}
	if t.grammars != nil {
		t.grammars.Close()
	}
	err := t.lib.close()
	t.lib = nil
	return err
}

// Encode turns text into ids. Special tokens written in the text are recognized; addSpecial adds
// those that the model's post-processor puts around a text (BOS, ...). Text from RenderChat takes
// addSpecial=false, since templates write them. Errors are ErrText with the byte's
// offset, and ErrLibrary. The whole text is encoded: truncation and padding of tokenizer.json are
// off, as they are by default in transformers.
func (t *Tokenizer) Encode(text string, addSpecial bool) ([]int32, error) {
	return t.encode(text, addSpecial, nil)
}

// encode is Encode. Special tokens that cover one of the ascending byte offsets plain are text like any other.
func (t *Tokenizer) encode(text string, addSpecial bool, plain []int) ([]int32, error) {
	if t.bare != nil {
		return nil, t.bare
	}
	if err := t.checkText(text); err != nil {
		return nil, err
	}
	if text == "" && !addSpecial {
		return []int32{}, nil
	}
	t.mu.RLock()
	defer t.mu.RUnlock()
	if t.lib == nil {
		return nil, ErrClosed
	}
	ids, err := t.lib.encode(text, addSpecial, plain)
	if err != nil {
		return nil, fmt.Errorf("%w: encode %d bytes: %w", ErrLibrary, len(text), err)
	}
	return ids, nil
}

// checkText refuses what the library would silently change: it replaces what is not UTF-8, and a vocabulary without a
// token for a NUL byte has no text for one.
func (t *Tokenizer) checkText(text string) error {
	if at := strings.IndexByte(text, 0); at >= 0 && !t.vocab.spellsNUL {
		return fmt.Errorf("%w: NUL byte at offset %d, which the model has no token for", ErrText, at)
	}
	if utf8.ValidString(text) {
		return nil
	}
	for at := 0; at < len(text); {
		r, size := utf8.DecodeRuneInString(text[at:])
		if r == utf8.RuneError && size == 1 {
			return fmt.Errorf("%w: byte 0x%02x at offset %d is not UTF-8", ErrText, text[at], at)
		}
		at += size
	}
	return nil
}

// Decode turns ids into text, without special tokens if skipSpecial. Bytes that make no character
// become U+FFFD. Errors are ErrToken and ErrLibrary.
func (t *Tokenizer) Decode(ids []int32, skipSpecial bool) (string, error) {
	for i, id := range ids {
		if !t.vocab.has(id) {
			return "", fmt.Errorf("%w: ids[%d] is %d, expected 0..%d", ErrToken, i, id, t.VocabSize()-1)
		}
	}
	if t.vocab.byteLevel {
		return t.vocab.decodeBytes(ids, skipSpecial), nil
	}
	t.mu.RLock()
	defer t.mu.RUnlock()
	if t.lib == nil {
		return "", ErrClosed
	}
	stand, err := t.vocab.nulStandIn(ids)
	if err != nil {
		return "", err
	}
	if stand.id >= 0 {
		ids = slices.Clone(ids)
		for i, id := range ids {
			if id == t.vocab.nul {
				ids[i] = stand.id
			}
		}
	}
	text, err := t.lib.decode(ids, skipSpecial)
	if err != nil {
		return "", fmt.Errorf("%w: decode %d ids: %w", ErrLibrary, len(ids), err)
	}
	if stand.id >= 0 {
		text = strings.ReplaceAll(text, stand.text, "\x00")
	}
	return text, nil
}

// VocabSize is one above the largest id. A model's logits may have more columns (padding).
func (t *Tokenizer) VocabSize() int { return len(t.vocab.pieces) }

// TokenBytes are the bytes that id stands for within a text; they may be a part of a character. A
// special token's are its name. They are shared: read only. Nil where there is no such token.
func (t *Tokenizer) TokenBytes(id int32) []byte {
	if !t.vocab.has(id) {
		return nil
	}
	return t.vocab.bytes[id]
}

// TokenText is TokenBytes as text; what is not UTF-8 becomes U+FFFD.
func (t *Tokenizer) TokenText(id int32) string {
	return string(appendLossy(nil, t.TokenBytes(id)))
}

// IsSpecial says whether id is a special token, which Decode can skip.
func (t *Tokenizer) IsSpecial(id int32) bool {
	return t.vocab.has(id) && t.vocab.flags[id]&flagSpecial != 0
}

// IsByte says whether id is one byte of a character that the vocabulary lacks (<0xE4>). Such
// tokens are decoded in runs.
func (t *Tokenizer) IsByte(id int32) bool {
	return t.vocab.has(id) && t.vocab.flags[id]&flagByte != 0
}

// ByteLevel says whether a text is the joined TokenBytes of its tokens.
func (t *Tokenizer) ByteLevel() bool { return t.vocab.byteLevel }

// EOS are the ids that end an answer, ascending: of generation_config.json, config.json and the
// tokenizer's own eos_token.
func (t *Tokenizer) EOS() []int32 { return t.eos }

// BOS is the id that begins a text, if the tokenizer has one.
func (t *Tokenizer) BOS() (id int32, ok bool) { return t.special.bos, t.special.bos >= 0 }

// Special returns the id of the special token with that text. It returns false if there is none.
func (t *Tokenizer) Special(text string) (id int32, ok bool) {
	id = t.idOf(text)
	return id, t.IsSpecial(id)
}
