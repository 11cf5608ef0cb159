package call

import (
	"encoding/json"
	"math"
	"slices"

	"github.com/millrace/millrace/api"
)

// Question is how the probabilities of its options become the answer to a question.
type Question struct {
	Type   string  // "predicate", "choice" or "score"
	Name   *string // that the client gave it; nil: none
	Values []json.RawMessage
	Labels []string // of the levels of a score
}

// Decision is the probabilities of the options of a question.
type Decision struct {
	Probabilities []float64 // by option; their sum is 1
	Mass          float64   // probability that an answer is any of the options, of all answers that the model may give
	Best          int       // the most probable option, the first of several
}

// Confidence is the probability of the best option of all answers that the model may give.
func (d *Decision) Confidence() float64 { return d.Probabilities[d.Best] * d.Mass }

// Expected is the mean of the options' numbers, from 0 on, by their probabilities.
func (d *Decision) Expected() float64 {
	sum := 0.0
	for i, p := range d.Probabilities {
		sum += float64(i) * p
	}
	return sum
}

// Decide makes probabilities of the log probabilities of a question's options. An answer is an option if it begins with the option's
// tokens, and with those of no longer option that begins with them too: the probability of "New" is without that of "New York". Sums are of
// float64, in the order of tokens and options. The error is an *api.Error: an option has no log probabilities.
func Decide(options []api.AnswerLogprobs) (*Decision, error) {
	logs := make([]float64, len(options))
	for i := range options {
		if n := len(options[i].Logprobs); n == 0 || n != len(options[i].Tokens) {
			return nil, &api.Error{Code: api.CodeInternal, Message: "the answer has no log probabilities of an option"}
		}
		for _, v := range options[i].Logprobs {
			logs[i] += float64(v)
		}
	}
	if len(logs) == 0 {
		return nil, &api.Error{Code: api.CodeInternal, Message: "the answer has no options"}
	}
	most := slices.Max(logs) // all others are relative to it: the product of many small probabilities is 0
	d := &Decision{Probabilities: make([]float64, len(options))}
	for i := range options {
		d.Probabilities[i] += math.Exp(logs[i] - most)
		if parent := longestBeginning(options, i); parent >= 0 {
			d.Probabilities[parent] -= math.Exp(logs[i] - most)
		}
	}
	total := 0.0
	for i, p := range d.Probabilities {
		d.Probabilities[i] = max(p, 0) // what is left of one that is nearly all of a longer one may be below 0
		total += d.Probabilities[i]
	}
	for i := range d.Probabilities {
		if d.Probabilities[i] /= total; d.Probabilities[i] > d.Probabilities[d.Best] {
			d.Best = i
		}
	}
	d.Mass = min(total*math.Exp(most), 1)
	return d, nil
}

// longestBeginning returns the longest option whose tokens option i begins with, and which is shorter; -1: there is none.
func longestBeginning(options []api.AnswerLogprobs, i int) int {
	best, tokens := -1, options[i].Tokens
	for k := range options {
		n := len(options[k].Tokens)
		if n < len(tokens) && slices.Equal(options[k].Tokens, tokens[:n]) && (best < 0 || n > len(options[best].Tokens)) {
			best = k
		}
	}
	return best
}
