package sim

import (
	"slices"

	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/compute/sample"
)

// state is a hash of the tokens of a sequence up to one of them. The simulated KV cache stores it in
// place of keys and values.
type state uint64

// start is the state before the first token.
const start state = 0x9E3779B97F4A7C15

// next returns the state after one more token.
func (s state) next(token int32) state {
	return state(mix(uint64(s) ^ (uint64(uint32(token))+1)*0xD1342543DE82EF95))
}

// part returns what a slab of a state has of it.
func (s state) part(i int) state { return s.next(int32(i)) }

// draw returns random number i of a state.
func (s state) draw(i uint64) uint64 { return mix(uint64(s) + (i+1)*0x9E3779B97F4A7C15) }

// mix is the finalizer of SplitMix64 (Steele, Lea, Flood: "Fast splittable
// pseudorandom number generators", OOPSLA 2014).
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xBF58476D1CE4E5B9
	x = (x ^ x>>27) * 0x94D049BB133111EB
	return x ^ x>>31
}

// A row of logits is flat but for its peaks. A bias or a mask can still choose any token; at
// temperature 2 their probability is below 1e-9.
const (
	peaks     = 8
	highest   = float32(10) // of the likeliest token
	flat      = float32(-60)
	endAbove  = float32(10) // of an end of sequence, above the highest
	gapPerBit = 1.0 / 16
)

// logits are the output rows of a step. They stay on the device, as those of a GPU: a row is made when it is read.
type logits struct {
	words  words
	states []state // from which the rows follow
	made   []bool  // the rows that have been read
	blank  []float32
	values []float32
	vocab  int
	hidden []float32
	width  int

	ids     []int32 // of a draw: the tokens with a weight, and their logits
	few     []float32
	scratch sample.Scratch
}

var (
	_ compute.Logits = (*logits)(nil)
	_ compute.Best   = (*logits)(nil)
	_ compute.Draws  = (*logits)(nil)
)

// set says from which state a row follows.
func (l *logits) set(row int, s state) { l.states[row], l.made[row] = s, false }

func (l *logits) Row(i int) []float32 {
	row := l.values[i*l.vocab : (i+1)*l.vocab : (i+1)*l.vocab]
	if !l.made[i] {
		l.words.fill(row, l.blank, l.states[i])
		l.made[i] = true
	}
	return row
}

// Best returns the token of the largest logit of row i.
func (l *logits) Best(i int) (int32, bool) { return l.words.likeliest(l.states[i], l.vocab), true }

// Draw draws tokens as a device does. All but the peaks of a row have no weight.
func (l *logits) Draw(draws []sample.Draw, tokens []int32) error {
	for i := range draws {
		d := &draws[i]
		tokens[i] = -1
		if d.Mask != nil { // it may exclude the peaks
			continue
		}
		l.ids, l.few = l.words.possible(l.states[d.Row], l.vocab, l.ids[:0], l.few[:0])
		among := *d
		at, err := among.Token(l.few, &l.scratch)
		if err != nil {
			return err
		}
		tokens[i] = l.ids[at]
	}
	return nil
}

func (l *logits) Hidden(i int) []float32 {
	return l.hidden[i*l.width : (i+1)*l.width : (i+1)*l.width]
}

// fillHidden writes the hidden state that follows from a state: numbers from -1 to 1.
func (s state) fillHidden(row []float32) {
	for i := range row {
		row[i] = float32(int32(s.draw(uint64(i)+peaks+1)>>32)) / (1 << 31)
	}
}

// words are the tokens of the answers of a simulated model.
type words struct {
	text []int32 // nil: all of the vocabulary
	end  int32   // below 0: none
	mean uint64  // tokens of an answer until its end is likeliest; 0: it never is
}

// fill writes the logits that follow from a state. They depend on nothing else.
func (w *words) fill(row, blank []float32, s state) {
	copy(row, blank)
	w.eachPeak(s, len(row), func(id int32, logit float32) { row[id] = max(row[id], logit) })
}

// eachPeak calls set with the peaks of a row that follows from a state, of a vocabulary. A token may have two; the higher one counts.
func (w *words) eachPeak(s state, vocab int, set func(id int32, logit float32)) {
	level := highest
	for i := range uint64(peaks) {
		set(w.peak(s, i, vocab), level)
		level -= float32(s.draw(i)>>59+1) * gapPerBit // 1/16 to 2
	}
	if w.ends(s) {
		set(w.end, highest+endAbove)
	}
}

// likeliest is the token of the largest logit that follows from a state, of a vocabulary.
func (w *words) likeliest(s state, vocab int) int32 {
	if w.ends(s) {
		return w.end
	}
	return w.peak(s, 0, vocab)
}

// possible appends the tokens with a weight that follow from a state, in their order, and their logits.
func (w *words) possible(s state, vocab int, ids []int32, logits []float32) ([]int32, []float32) {
	set := func(id int32, logit float32) {
		at, found := slices.BinarySearch(ids, id)
		if !found {
			ids, logits = slices.Insert(ids, at, id), slices.Insert(logits, at, logit)
		}
		logits[at] = max(logits[at], logit)
	}
	w.eachPeak(s, vocab, set)
	return ids, logits
}

// peak is the token of peak i; the first one is the highest.
func (w *words) peak(s state, i uint64, vocab int) int32 {
	r := s.draw(i)
	if w.text != nil {
		return w.text[r%uint64(len(w.text))]
	}
	return int32(r % uint64(vocab))
}

// ends says whether an answer ends after a state.
func (w *words) ends(s state) bool { return w.mean > 0 && w.end >= 0 && s.draw(peaks)%w.mean == 0 }
