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

// noText returns errNoText with what a folder has in the place of tokenizer.json.
func noText(dir string) error {
	for _, name := range []string{"tokenizer.model", "tekken.json", "vocab.json", "tiktoken.model"} {
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
func Bare(dir string, vocab int) (*Tokenizer, error) {
	t := &Tokenizer{
		bare: noText(dir),
		vocab: vocabulary{
			pieces: make([]string, vocab), bytes: make([][]byte, vocab), flags: make([]uint8, vocab),
			byteLevel: true, nul: -1,
		},
	}
	for i := range t.vocab.bytes {
		t.vocab.bytes[i] = []byte{}
	}
	return t, t.loadConfig(dir)
}

// LoadOrBare is Load, or Bare where the folder has no tokenizer.json, the GGUF
// file no tokenizer.
func LoadOrBare(dir string, vocab int) (*Tokenizer, error) {
	if weights.IsGGUF(dir) {
		t, err := loadGGUF(dir)
		if errors.Is(err, errNoTokens) {
			return Bare(filepath.Dir(dir), vocab)
		}
		return t, err
	}
	if _, err := os.Stat(filepath.Join(dir, "tokenizer.json")); errors.Is(err, fs.ErrNotExist) {
		return Bare(dir, vocab)
	}
	return Load(dir)
}
