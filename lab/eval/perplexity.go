// Package eval measures how well a model predicts a text, and how often it
// chooses the tokens that another run of it chose. It must not know ops, backends or requests.
package eval

import (
	"fmt"
	"math"

	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/compute/device"
)

// StepRows is the number of rows per step. It bounds the memory of the logits. A model must be
// opened with at least this number of rows and outputs.
const StepRows = 128

// Windows cut a text into overlapping runs of Context tokens that begin Stride
// tokens apart. Each token but the text's first is scored in the first window
// that holds the token and one before it, which means after at least Context - Stride tokens
// from the second window on.
type Windows struct {
	Context int // 2 or more
	Stride  int // 1 to Context - 1
}

// window is text[begin:end], of which the targets text[scored:end] count.
type window struct{ begin, scored, end int }

func (w Windows) cut(tokens int) []window {
	var all []window
	for begin, scored := 0, 1; scored < tokens; begin += w.Stride {
		end := min(begin+w.Context, tokens)
		all = append(all, window{begin, scored, end})
		scored = end
	}
	return all
}

func (w Windows) check() error {
	if w.Context < 2 || w.Stride < 1 || w.Stride >= w.Context {
		return fmt.Errorf("eval: %w: windows of %d tokens every %d, expected at least 2, every 1 to %d",
			device.ErrInvalid, w.Context, w.Stride, w.Context-1)
	}
	return nil
}

// Score is a model's prediction of a text.
type Score struct {
	Tokens     int       `json:"tokens"`         // scored: all but the first
	Nats       float64   `json:"nats_per_token"` // mean of -ln p(token | the tokens before it in its window)
	Perplexity float64   `json:"perplexity"`     // exp(Nats)
	Each       []float64 `json:"-"`              // nats of each scored token
	Best       []int32   `json:"-"`              // the likeliest token at each scored position
}

// Perplexity scores a text. The softmax and the sum are float64, from the
// device's float32 logits.
func Perplexity(m *compute.Model, text []int32, w Windows) (*Score, error) {
	if err := w.check(); err != nil {
		return nil, err
	}
	if len(text) < 2 {
		return nil, fmt.Errorf("eval: %w: a text of %d tokens, expected at least 2", device.ErrInvalid, len(text))
	}
	for i, id := range text { // the last one is only a target
		if id < 0 || int(id) >= m.Vocab() {
			return nil, fmt.Errorf("eval: %w: token %d of the text is %d, expected 0 to %d", device.ErrInvalid, i, id, m.Vocab()-1)
		}
	}
	region, err := newRegion(m, 0, min(w.Context, len(text)))
	if err != nil {
		return nil, err
	}
	defer region.Close()
	s := &Score{Tokens: len(text) - 1}
	sum := 0.0
	for _, at := range w.cut(len(text)) {
		nats, err := s.add(m, region, text, at)
		if err != nil {
			return nil, err
		}
		sum += nats
	}
	s.Nats = sum / float64(s.Tokens)
	s.Perplexity = math.Exp(s.Nats)
	return s, nil
}

// add scores one window, from an empty KV cache, and returns its nats.
func (s *Score) add(m *compute.Model, region *device.Region, text []int32, w window) (nats float64, err error) {
	last := w.end - 1 // predicts nothing of this window
	for first := w.begin; first < last; first += StepRows {
		rows := text[first:min(first+StepRows, last)]
		from := min(max(w.scored-1-first, 0), len(rows))
		out, err := m.Engine().Run([]device.Rows{{Region: region, Tokens: rows, Position: first - w.begin, OutputsFrom: from}})
		if err != nil {
			return 0, err
		}
		for i := range out.Rows() {
			target := first + from + i + 1
			x := surprisal(out.Row(i), text[target])
			if math.IsNaN(x) || math.IsInf(x, 0) {
				return 0, fmt.Errorf("eval: %w: the logits before token %d of the text are not numbers", device.ErrDevice, target)
			}
			nats += x
			s.Each = append(s.Each, x)
			s.Best = append(s.Best, argmax(out.Row(i)))
		}
	}
	return nats, nil
}

// surprisal is -ln softmax(logits)[id].
func surprisal(logits []float32, id int32) float64 {
	largest := float64(logits[argmax(logits)])
	sum := 0.0
	for _, x := range logits {
		sum += math.Exp(float64(x) - largest)
	}
	return math.Log(sum) + (largest - float64(logits[id]))
}

// argmax is the first of the largest.
func argmax(logits []float32) int32 {
	best := 0
	for i, x := range logits {
		if x > logits[best] {
			best = i
		}
	}
	return int32(best)
}

// newRegion returns the KV cache of sequence i. Each sequence has room for the given tokens.
func newRegion(m *compute.Model, i, tokens int) (*device.Region, error) {
	per := m.Engine().Slabs(tokens)
	if need := (i + 1) * per; need > m.Slabs() {
		return nil, fmt.Errorf("eval: %w: %d sequences of %d tokens need %d KV slabs, the pool has %d",
			device.ErrNoMemory, i+1, tokens, need, m.Slabs())
	}
	return m.Engine().NewRegionAt(i*per, tokens)
}
