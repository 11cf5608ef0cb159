package sample

// Thinking bounds the reasoning of an output. It begins with the token Start, or where the output does, and ends with the token End, which
// is drawn in place of any other one when the reasoning has Budget tokens.
type Thinking struct {
	Budget int
	Start  int32 // below 0: the model has none
	End    int32
	Begun  bool // the prompt ends inside reasoning
}

// reasoning is the reasoning of a sequence so far. The zero value is one without a bound.
type reasoning struct {
	bound  *Thinking // nil: none, or the reasoning has ended
	inside bool
	tokens int // of it
}

func newReasoning(t *Thinking) reasoning {
	return reasoning{bound: t, inside: t != nil && t.Begun}
}

// accept takes the next token.
func (r *reasoning) accept(token int32) {
	switch {
	case r.bound == nil:
	case token == r.bound.End:
		r.bound, r.inside = nil, false
	case token == r.bound.Start: // a model may write it again after a prompt that ends with it
		r.inside = true
	case r.inside:
		r.tokens++
	}
}

// bounded reports whether a later token may be the one that ends the reasoning, whatever the logits are.
func (r *reasoning) bounded() bool { return r.bound != nil }

// spent reports whether the next token ends the reasoning.
func (r *reasoning) spent() bool { return r.inside && r.tokens >= r.bound.Budget }
