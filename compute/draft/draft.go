// Package draft guesses a sequence's next tokens from what it has said before: those that
// followed the last time that it had the tokens it ends with (prompt lookup decoding, Saxena
// 2023; "ngram" of vLLM). A step computes guesses as rows behind the sequence's own, and
// what is sampled from those rows tells which were right: a token of the answer, so that
// guesses change the time that an answer takes, and no bit of it.
package draft

const (
	// match is how many tokens must have been there before. With fewer most guesses are wrong.
	match = 3
	// window is how far back they are looked for, some microseconds at most.
	window = 16384
	// first is how many tokens the first guess has.
	first = 3
	// restMost bounds the pause after guesses that were all wrong, in steps.
	restMost = 64
)

// Drafter guesses for one sequence. It makes more guesses while they are right, and
// pauses longer and longer while they are wrong, so that text without repetitions pays
// next to nothing for them. The zero value is ready.
type Drafter struct {
	length int // of the next guess, 0: first
	rest   int // steps without a guess to come
	pause  int // the last one, 0 since a guess was right; the next one is twice as long
	guess  []int32
}

// Guess returns at most `most` tokens to come behind tokens, valid until the next call.
func (d *Drafter) Guess(tokens []int32, most int) []int32 {
	d.guess = d.guess[:0]
	if d.rest > 0 {
		d.rest--
		return nil
	}
	next := follows(tokens)
	if next < 0 {
		return nil
	}
	if d.length == 0 {
		d.length = first
	}
	// Behind the last token the guess goes on with itself: a text that goes round.
	for i := range min(d.length, most) {
		if at := next + i; at < len(tokens) {
			d.guess = append(d.guess, tokens[at])
		} else {
			d.guess = append(d.guess, d.guess[at-len(tokens)])
		}
	}
	return d.guess
}

// Learn is told how many of the guesses that were computed were right.
func (d *Drafter) Learn(guesses, right int) {
	switch {
	case guesses == 0:
	case right == 0:
		d.pause = min(max(1, 2*d.pause), restMost)
		d.rest, d.length = d.pause, 1
	case right == guesses:
		d.pause, d.length = 0, 2*guesses+1
	default:
		d.pause, d.length = 0, right+1
	}
}

// follows is where tokens go on behind the last place, but for their end, that has the
// tokens they end with; -1 without one.
func follows(tokens []int32) int {
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
