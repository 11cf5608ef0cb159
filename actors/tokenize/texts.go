package tokenize

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/compute/sample"
	"github.com/millrace/millrace/tokenizer"
)

// textTokens returns the tokens of the texts in sampling parameters. Errors are *api.Error.
func textTokens(tok *tokenizer.Tokenizer, t *sample.Texts, b *breakers) (*sample.TextTokens, error) {
	out := &sample.TextTokens{}
	for _, word := range t.Words {
		spellings, err := spell(tok, word)
		if err != nil {
			return nil, api.Invalid("bad_words", "bad_words: %v", err)
		}
		out.Words = append(out.Words, spellings...)
	}
	if len(t.Breakers) > 0 {
		found, err := b.of(t.Breakers)
		if err != nil {
			return nil, api.Invalid("dry_sequence_breakers", "dry_sequence_breakers: %v", err)
		}
		out.Breaks, out.LongBreaks = found.single, found.long
	}
	return out, nil
}

// spell returns the tokens of a word at the beginning of a text, within a word and after a space, each once.
func spell(tok *tokenizer.Tokenizer, word string) (list [][]int32, err error) {
	bare := strings.TrimLeft(word, " ")
	if bare == "" {
		bare = word
	}
	for _, encode := range []func() ([]int32, error){
		func() ([]int32, error) { return tok.Encode(bare, false) },
		func() ([]int32, error) { return continuation(tok, bare) },
		func() ([]int32, error) { return continuation(tok, " "+bare) },
	} {
		ids, err := encode()
		if err != nil {
			return nil, err
		}
		if !slices.ContainsFunc(list, func(l []int32) bool { return slices.Equal(l, ids) }) {
			list = append(list, ids)
		}
	}
	return list, nil
}

// continuation returns the tokens of a text within another one: many tokenizers write a space before the text that they get.
func continuation(tok *tokenizer.Tokenizer, text string) ([]int32, error) {
	const before = "\n" // joins with no text in vocabularies that have such a space
	ids, err := tok.Encode(text, false)
	if err != nil || tok.ByteLevel() {
		return ids, err
	}
	prefix, err := tok.Encode(before, false)
	if err != nil {
		return nil, err
	}
	both, err := tok.Encode(before+text, false)
	if err != nil || len(both) <= len(prefix) || !slices.Equal(both[:len(prefix)], prefix) {
		return ids, err
	}
	return both[len(prefix):], nil
}

// mostBreakers is how many lists of breakers are kept. Their tokens are found by a look at the whole vocabulary.
const mostBreakers = 16

// breakers finds the tokens of breakers. It is safe for many goroutines at once.
type breakers struct {
	tokenizer *tokenizer.Tokenizer

	mu   sync.Mutex
	kept map[string]breaks // by the list
}

// breaks are the tokens of a list of breakers, as in sample.TextTokens. They are shared: read only.
type breaks struct {
	single []int32
	long   [][]int32
}

func (b *breakers) of(list []string) (breaks, error) {
	name := fmt.Sprintf("%q", list)
	b.mu.Lock()
	defer b.mu.Unlock()
	if found, ok := b.kept[name]; ok {
		return found, nil
	}
	found, err := b.find(list)
	if err != nil {
		return breaks{}, err
	}
	if b.kept == nil || len(b.kept) >= mostBreakers {
		b.kept = make(map[string]breaks)
	}
	b.kept[name] = found
	return found, nil
}

// find checks every token: one that contains a breaker is a breaker. One that ends with the beginning of a breaker is one together with the
// tokens of the rest.
func (b *breakers) find(list []string) (out breaks, err error) {
	rests := make(map[string][]int32) // tokens by text
	for _, text := range list {
		for at := range text { // at whole characters
			if rest := text[at:]; rests[rest] == nil {
				if rests[rest], err = continuation(b.tokenizer, rest); err != nil {
					return breaks{}, err
				}
			}
		}
	}
	for id := range int32(b.tokenizer.VocabSize()) {
		token := b.tokenizer.TokenBytes(id)
		if slices.ContainsFunc(list, func(text string) bool { return bytes.Contains(token, []byte(text)) }) {
			out.single = append(out.single, id)
			continue
		}
		for _, text := range list {
			for n := min(len(token), len(text)-1); n > 0; n-- {
				if rest := rests[text[n:]]; rest != nil && bytes.HasSuffix(token, []byte(text[:n])) {
					out.long = append(out.long, append([]int32{id}, rest...))
				}
			}
		}
	}
	return out, nil
}
