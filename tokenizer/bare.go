package tokenizer

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/millrace/millrace/compute/weights"
)

// errNoText is why a Bare tokenizer makes no ids.
var errNoText = errors.New("the model has no tokenizer.json: only token ids can be used")

// Bare is the tokenizer of a model without tokenizer.json: a vocabulary of
// that many tokens, all without text. Ids come from the caller; text is empty.
func Bare(dir string, vocab int) (*Tokenizer, error) {
	t := &Tokenizer{
		bare: true,
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
