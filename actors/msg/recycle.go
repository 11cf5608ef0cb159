package msg

import "sync"

// Two kinds of message come with every token, and a Slab is large. They are used again: whoever took one
// out of its mailbox, and keeps nothing of it, recycles it.
var (
	texts  = sync.Pool{New: func() any { return new(Text) }}
	tokens = sync.Pool{New: func() any { return new(Tokens) }}
)

// NewText returns an empty Text.
func NewText() *Text { return texts.Get().(*Text) } //nolint:forcetypeassert // see texts

// NewTokens returns an empty Tokens, with room for as many as it had before.
func NewTokens() *Tokens { return tokens.Get().(*Tokens) } //nolint:forcetypeassert // see tokens

// Recycle takes back a message that its receiver is done with. Other kinds are left
// to the garbage collector, and so is what nobody recycles.
func Recycle(m any) {
	switch m := m.(type) {
	case *Text:
		*m = Text{}
		texts.Put(m)
	case *Slab:
		*m = Slab{Data: m.Data[:0]}
		slabs.Put(m)
	case *Tokens:
		clear(m.Tokens)
		m.Tokens = m.Tokens[:0]
		tokens.Put(m)
	}
}
