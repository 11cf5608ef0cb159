package grammar

// Vocabulary is the tokens of a model as text.
type Vocabulary interface {
	// Size is one above the largest id.
	Size() int
	// Bytes are those that a token stands for in a text; of a special token its name. They are read only. nil: no such token.
	Bytes(id int32) []byte
	// Ends are the tokens that may end an answer, at least one.
	Ends() []int32
}

// Engine compiles grammars over a vocabulary. It is safe for many goroutines at once.
type Engine interface {
	Vocabulary
	// Compile compiles a JSONSchema, a Regex or a Lark grammar. Its time and memory are bounded. The error is
	// ErrSpec with the reason.
	Compile(kind Kind, source string) (Program, error)
}

// Program is a compiled grammar. It is safe for many goroutines at once.
type Program interface {
	// Start returns an Automaton before the first token.
	Start() (Automaton, error)
	// Held is the memory that the program and its automatons share, in bytes. It grows while they run.
	Held() int
}

// Automaton follows the tokens of one sequence. It is for one goroutine at a time. After an error it is of no use.
type Automaton interface {
	// Mask sets the bits of the tokens that may come next, and clears all others. Where the text may end,
	// the ends of the vocabulary are among them.
	Mask(m Mask) error
	// Advance takes a token that is not an end, or refuses it and stays where it is. ended: nothing but an end may follow.
	Advance(token int32) (ok, ended bool, err error)
	// Forced fills tokens with the ones that Mask would allow alone, one after the other, and returns their number.
	Forced(tokens []int32) (int, error)
	// Rollback takes back the last n tokens.
	Rollback(n int) error
	// Close frees the automaton's memory.
	Close()
}

// Mask has a bit for each token: set where the token is allowed.
type Mask []uint32

// NewMask returns a mask for a vocabulary that allows nothing.
func NewMask(vocab int) Mask { return make(Mask, (vocab+31)/32) }

// Allows reports whether a token is allowed.
func (m Mask) Allows(id int32) bool {
	return id >= 0 && int(id)/32 < len(m) && m[id/32]&(1<<(id%32)) != 0
}

// allow and forbid change the bit of a token. Ids outside of the mask are ignored.
func (m Mask) allow(id int32) {
	if id >= 0 && int(id)/32 < len(m) {
		m[id/32] |= 1 << (id % 32)
	}
}

func (m Mask) forbid(id int32) {
	if id >= 0 && int(id)/32 < len(m) {
		m[id/32] &^= 1 << (id % 32)
	}
}

func (m Mask) fill(bits uint32) {
	for i := range m {
		m[i] = bits
	}
}

// empty reports whether the mask allows nothing.
func (m Mask) empty() bool {
	for _, bits := range m {
		if bits != 0 {
			return false
		}
	}
	return true
}
