package call

import (
	"slices"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/tools"
)

// TextLogprobs chooses the log probabilities of an answer that belong to its text, rather than to reasoning or calls. Tokens without a
// delta of their own belong to the next one: they may be parts of a character, or of a marker.
type TextLogprobs struct{ held []api.TokenLogprob }

// Add takes the tokens and the deltas of an event, and returns the tokens that turn out to be of the text.
func (l *TextLogprobs) Add(deltas []tools.Delta, tokens []api.TokenLogprob) []api.TokenLogprob {
	l.held = append(l.held, tokens...)
	if len(deltas) == 0 {
		return nil
	}
	all := l.held
	l.held = nil
	if slices.ContainsFunc(deltas, func(d tools.Delta) bool { return d.Kind == tools.Content }) {
		return all
	}
	return nil
}
