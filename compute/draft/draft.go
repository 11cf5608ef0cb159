// Package draft proposes draft tokens for a sequence: those that followed the last time that its
// text had the tokens it ends with now (prompt lookup decoding, Saxena 2023; "ngram" in vLLM). A
// step computes draft tokens as rows after the sequence's own row. Sampling accepts a draft token
// only if it draws the same token, so draft tokens change the time of an answer and no bit of it.
// Where the model's first layers make the draft tokens, a Drafter says how many.
//
// It must not know how drafts are computed or sampled.
package draft

const (
	// match is the number of tokens that must repeat. With fewer, most draft tokens are wrong.
	match = 3
	// window is how many tokens back a repetition may lie. Searching it takes some microseconds.
	window = 16384
	// first is the number of draft tokens in the first draft.
	first = 3
	// longestPause bounds the pause after a draft without an accepted token, in steps.
	longestPause = 64
)

// Drafter makes drafts for one sequence. It drafts more tokens while they are accepted and pauses
// longer and longer while none is, so that text without repetitions pays next to nothing. The
// zero value is ready.
type Drafter struct {
	length int // of the next draft, in tokens; 0: first
	rest   int // steps until the next draft
	pause  int // last pause, in steps; the next one is twice as long; 0 since a token was accepted
	draft  []int32
}

// Length returns how many draft tokens to make in this step, at most `most`; 0 during a pause.
func (d *Drafter) Length(most int) int {
	if d.rest > 0 {
		d.rest--
		return 0
	}
	if d.length == 0 {
		d.length = first
	}
	return min(d.length, most)
}

// Draft returns at most `most` draft tokens to follow tokens, valid until the next call.
func (d *Drafter) Draft(tokens []int32, most int) []int32 {
	d.draft = d.draft[:0]
	length := d.Length(most)
	if length == 0 {
		return nil
	}
	next := repeated(tokens)
	if next < 0 {
		return nil
	}
	// After the last token the draft repeats itself: the text is a loop.
	for i := range length {
		if at := next + i; at < len(tokens) {
			d.draft = append(d.draft, tokens[at])
		} else {
			d.draft = append(d.draft, d.draft[at-len(tokens)])
		}
	}
	return d.draft
}

// Learn records how many of the computed draft tokens were accepted.
func (d *Drafter) Learn(computed, accepted int) {
	switch {
	case computed == 0:
	case accepted == 0:
		d.pause = min(max(1, 2*d.pause), longestPause)
		d.rest, d.length = d.pause, 1
	case accepted == computed:
		d.pause, d.length = 0, 2*computed+1
	default:
		d.pause, d.length = 0, accepted+1
	}
}

// repeated returns the index after the last place in tokens, before their end, that has the tokens
// they end with; -1 if there is none.
func repeated(tokens []int32) int {
	end := len(tokens) - match
	if end <= 0 {
		return -1
	}
	last, suffix := tokens[len(tokens)-1], [match]int32(tokens[end:])
	for i := end - 1; i >= max(0, end-window); i-- {
		if tokens[i+match-1] == last && [match]int32(tokens[i:]) == suffix {
			return i + match
		}
	}
	return -1
}
