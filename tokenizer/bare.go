package tokenizer

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/millrace/millrace/compute/weights"
)

// errNoText is why a Bare tokenizer makes no ids.
var errNoText = errors.New("only token ids can be used")

// noText returns errNoText with what a folder has in the place of tokenizer.json. why is the reason for which it is not read, or nil.
func noText(dir string, why error) error {
	if why != nil {
		return fmt.Errorf("%w: %w", why, errNoText)
	}
	for _, name := range []string{"tekken.json", "tiktoken.model", "sentencepiece.bpe.model", "spiece.model"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
			return fmt.Errorf("the model has %s but no tokenizer.json, which transformers' AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR) writes: %w", name, errNoText)
		}
	}
	return fmt.Errorf("the model has no tokenizer.json: %w", errNoText)
}

// NoText says why there are only token ids and no text. It returns nil for a tokenizer of texts.
func (t *Tokenizer) NoText() error { return t.bare }

// Bare is the tokenizer of a model without tokenizer.json: a vocabulary of
// that many tokens, all without text. Ids come from the caller; text is empty.
func Bare(dir string, vocab int) (*Tokenizer, error) { return bare(dir, vocab, nil) }

// bare is Bare. why is the reason for which the files of a tokenizer are not read, or nil.
func bare(dir string, vocab int, why error) (*Tokenizer, error) {
	t := &Tokenizer{
		bare: noText(dir, why),
		vocab: vocabulary{
			pieces: make([]string, vocab), bytes: make([][]byte, vocab), flags: make([]uint8, vocab),
			byteLevel: true, nul: -1,
		},
	}
	for i := range t.vocab.bytes {
		t.vocab.bytes[i] = []byte{}
	}
	return t, t.loadConfig(dir, nil)
}

// LoadOrBare is Load, or Bare where the folder has no tokenizer that is read,
// the GGUF file no tokenizer.
func LoadOrBare(dir string, vocab int) (*Tokenizer, error) {
	if weights.IsGGUF(dir) {
		t, err := loadGGUF(dir)
		if errors.Is(err, errNoTokens) {
			return Bare(filepath.Dir(dir), vocab)
		}
		return t, err
	}
	if _, err := os.Stat(filepath.Join(dir, "tokenizer.json")); errors.Is(err, fs.ErrNotExist) && slowFile(dir) == "" {
		return Bare(dir, vocab)
	}
	t, err := Load(dir)
	if errors.Is(err, errClass) {
		return bare(dir, vocab, err)
	}
	return t, err
}
