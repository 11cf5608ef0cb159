package sample

import (
	"fmt"
	"math"
	"slices"
)

// MaxBeams bounds the beams of a request.
const MaxBeams = 64

// EarlyStopping says when a beam search ends before its token limit. In every
// case Width hypotheses must have ended.
type EarlyStopping uint8

const (
	// StopHeuristic ends it when the best running beam, at its present length,
	// scores no better than the worst hypothesis (early_stopping=False).
	StopHeuristic EarlyStopping = iota
	// StopAtOnce ends it (early_stopping=True).
	StopAtOnce
	// StopNever ends it when no running beam can get better: as StopHeuristic,
	// but with a positive length penalty at the longest length
	// (early_stopping="never").
	StopNever
)

// BeamParams are the parameters of a beam search.
type BeamParams struct {
	Width         int     // beams
	LengthPenalty float64 // a hypothesis scores its logprobs' sum / length^LengthPenalty
	Early         EarlyStopping
}

// Validate checks the ranges; the error is a *ParamError.
func (p BeamParams) Validate() error {
	switch {
	case p.Width < 1 || p.Width > MaxBeams:
		return &ParamError{"num_beams", fmt.Sprint(p.Width), fmt.Sprintf("1 to %d", MaxBeams)}
	case !(p.LengthPenalty >= -10 && p.LengthPenalty <= 10):
		return &ParamError{"length_penalty", fmt.Sprint(p.LengthPenalty), "-10 to 10"}
	case p.Early > StopNever:
		return &ParamError{"early_stopping", fmt.Sprint(p.Early), `false, true or "never"`}
	}
	return nil
}

// Hypothesis is an answer of a beam search.
type Hypothesis struct {
	Tokens []int32 // with the end of sequence
	Score  float32
	Ended  bool // by an end of sequence, not by the limit
}

// Beam is a beam search over one prompt. It gives the hypotheses of
// transformers' generate(num_beams=Width, do_sample=False), with the same
// float32 sums; of equal scores the lower row and token goes first.
//
// It moves no KV: row r of a step writes its key and value into buffer r, and
// Index says whose buffers hold a beam's past.
type Beam struct {
	p     BeamParams
	vocab int
	limit int
	ends  []int32

	scores   []float32 // [Width] of the running beams, best first; one before the first step
	tokens   [][]int32 // [steps][Width]: what row r of a step continues with
	index    [][]int32 // [Width][steps - 1]
	spare    [][]int32
	best     []continuation // of a step, at most Width
	running  []continuation // the best that do not end, at most Width
	finished []Hypothesis   // best first, at most Width
	done     bool
}

// continuation is a row with one more token.
type continuation struct {
	row   int32
	token int32
	score float32
}

// NewBeam returns the search for answers of at most limit tokens; each of ends
// is an end of sequence. p has passed Validate. The error is a *ParamError.
func NewBeam(p BeamParams, vocab, limit int, ends []int32) (*Beam, error) {
	b := &Beam{p: p, vocab: vocab, limit: limit, scores: make([]float32, 1, p.Width)}
	for _, id := range ends {
		if id >= 0 && int(id) < vocab && !slices.Contains(b.ends, id) {
			b.ends = append(b.ends, id)
		}
	}
	if left := vocab - len(b.ends); p.Width > left {
		return nil, &ParamError{"num_beams", fmt.Sprint(p.Width), fmt.Sprintf("1 to %d (tokens that do not end the answer)", left)}
	}
	b.index, b.spare = make([][]int32, p.Width), make([][]int32, p.Width)
	return b, nil
}

// Advance takes the logits that follow the prompt (one row) or the last tokens
// (Width rows) and chooses the next ones.
func (b *Beam) Advance(row func(i int) []float32) error {
	b.best, b.running = b.best[:0], b.running[:0]
	for r := range b.scores {
		if err := b.consider(int32(r), row(r)); err != nil {
			return err
		}
	}
	length := len(b.tokens) + 1
	for _, c := range b.best {
		if ended := slices.Contains(b.ends, c.token); ended || length == b.limit {
			b.finish(c, length, ended)
		}
	}
	if b.done = b.decide(length); !b.done {
		b.fork()
	}
	return nil
}

// consider offers every continuation of a row.
func (b *Beam) consider(r int32, logits []float32) error {
	if len(logits) != b.vocab {
		return fmt.Errorf("%w: found %d, expected %d, one per token", ErrLogits, len(logits), b.vocab)
	}
	norm, err := normOf(logits)
	if err != nil {
		return err
	}
	for id, v := range logits {
		score := float32(float64(v)-norm) + b.scores[r]
		if len(b.running) == b.p.Width && score <= b.running[b.p.Width-1].score {
			continue // no better than the worst of both: ends only raise that of best
		}
		c := continuation{r, int32(id), score}
		b.best = offer(b.best, b.p.Width, c)
		if !slices.Contains(b.ends, c.token) {
			b.running = offer(b.running, b.p.Width, c)
		}
	}
	return nil
}

// offer inserts c into a list of the n best, best first, after its equals.
func offer(list []continuation, n int, c continuation) []continuation {
	at := len(list)
	for at > 0 && c.score > list[at-1].score {
		at--
	}
	switch {
	case at == n:
		return list
	case len(list) == n:
		list = list[:n-1]
	}
	return slices.Insert(list, at, c)
}

// finish keeps an ended continuation among the Width best hypotheses.
func (b *Beam) finish(c continuation, length int, ended bool) {
	score := c.score / b.penalty(length)
	at := len(b.finished)
	for at > 0 && score > b.finished[at-1].Score {
		at--
	}
	switch {
	case at == b.p.Width:
		return
	case len(b.finished) == b.p.Width:
		b.finished = b.finished[:b.p.Width-1]
	}
	b.finished = slices.Insert(b.finished, at, Hypothesis{b.answer(c, length), score, ended})
}

func (b *Beam) penalty(length int) float32 {
	return float32(math.Pow(float64(length), b.p.LengthPenalty))
}

// answer collects a continuation's tokens from the rows of its past.
func (b *Beam) answer(c continuation, length int) []int32 {
	out := make([]int32, 0, length)
	if length > 1 {
		for step, row := range b.index[c.row] {
			out = append(out, b.tokens[step][row])
		}
		out = append(out, b.tokens[length-2][c.row])
	}
	return append(out, c.token)
}

// decide says whether the search is over.
func (b *Beam) decide(length int) bool {
	switch {
	case length == b.limit:
		return true
	case len(b.finished) < b.p.Width:
		return false
	case b.p.Early == StopAtOnce:
		return true
	case b.p.Early == StopNever && b.p.LengthPenalty > 0:
		length = b.limit
	}
	return !(b.running[0].score/b.penalty(length) > b.finished[b.p.Width-1].Score)
}

// fork makes the running continuations the rows of the next step.
func (b *Beam) fork() {
	tokens := make([]int32, b.p.Width)
	b.scores = b.scores[:b.p.Width]
	for i, c := range b.running {
		tokens[i], b.scores[i] = c.token, c.score
		if len(b.tokens) > 0 {
			b.spare[i] = append(append(b.spare[i][:0], b.index[c.row]...), c.row)
		}
	}
	b.tokens = append(b.tokens, tokens)
	b.index, b.spare = b.spare, b.index
}

// Done says that the hypotheses are final.
func (b *Beam) Done() bool { return b.done }

// Width is the number of beams.
func (b *Beam) Width() int { return b.p.Width }

// Chosen counts the tokens of each running beam.
func (b *Beam) Chosen() int { return len(b.tokens) }

// Tokens are the tokens of the next step, one per row. Read-only.
func (b *Beam) Tokens() []int32 { return b.tokens[len(b.tokens)-1] }

// Index says for each row of the next step and for each earlier step which row
// was its ancestor there: [Width][Chosen() - 1]. Read-only, valid until the
// next Advance.
func (b *Beam) Index() [][]int32 { return b.index }

// Results are the best n hypotheses, n <= Width, best first, once it is done.
func (b *Beam) Results(n int) []Hypothesis { return b.finished[:min(n, len(b.finished))] }
