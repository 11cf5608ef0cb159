package tokenizer

import (
	"unsafe"

	"github.com/millrace/millrace/compute/grammar"
	"github.com/millrace/millrace/tokenizer/llguidance"
)

// Grammars returns the engine that compiles grammars over the vocabulary. It makes it at the first call, which takes up
// to some tenths of a second for a large vocabulary. A model without tokenizer.json has none.
func (t *Tokenizer) Grammars() (grammar.Engine, error) {
	if t.bare != nil {
		return nil, t.bare
	}
	t.making.Lock()
	defer t.making.Unlock()
	t.mu.RLock()
	defer t.mu.RUnlock()
	if t.lib == nil {
		return nil, ErrClosed
	}
	if t.grammars != nil {
		return t.grammars, nil
	}
	tokens := make([]llguidance.Token, len(t.vocab.bytes))
	for id, b := range t.vocab.bytes {
		tokens[id] = llguidance.Token{Bytes: b, Special: t.vocab.flags[id]&flagSpecial != 0}
	}
	engine, err := llguidance.New(t.lib.pointer(), tokens, t.eos)
	if err != nil {
		return nil, err
	}
	t.grammars = engine
	return engine, nil
}

// pointer is the library's tokenizer, the one field of its Go type. TestTheLibrarysPointerIsItsTokenizer holds that.
func (l *library) pointer() unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(l.hf)) }
