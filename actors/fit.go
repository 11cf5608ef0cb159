package actors

import (
	"context"

	"github.com/millrace/millrace/tokenizer"
)

// longest is the context of this process's model, in tokens: the least of its workers'. 0: it is not known.
func (p *Pipeline) longest() int {
	least := p.cfg.Context
	for _, m := range p.registry.Others() {
		if w := m.Worker; w != nil && m.Model == p.cfg.ModelID && (least == 0 || w.Context < least) {
			least = w.Context
		}
	}
	return least
}

// fits refuses a text that surely has more tokens than a model's context, 0: unknown. It costs
// nothing, where to tokenize a megabyte takes seconds and hundreds of megabytes.
func fits(tok *tokenizer.Tokenizer, param, text string, longest int) error {
	if least := tok.LeastTokens(text); longest > 0 && least > longest {
		return tooLong(param, "the %s has %d bytes, which are %d tokens at least, expected at most %d tokens (context of the model)",
			param, len(text), least, longest)
	}
	return nil
}

// mostTexts is how many calls of Tokenize and Detokenize wait for a tokenizer at most.
const mostTexts = 64

// gate bounds the calls of Tokenize and Detokenize. They share the tokenizers with the prompts of
// requests: few are there at once, some wait in the order in which they came, more are refused.
type gate struct {
	inside chan struct{} // all of them
	served chan struct{} // those that are at a tokenizer
}

func newGate(served, waiting int) gate {
	return gate{inside: make(chan struct{}, served+waiting), served: make(chan struct{}, served)}
}

// enter waits for a tokenizer; leave says that its answer is there.
func (g *gate) enter(ctx context.Context) (leave func(), err error) {
	select {
	case g.inside <- struct{}{}:
	default:
		return nil, overloaded(reasonQueueFull, shortestRetry, "the server has %d texts to tokenize in hand, its most: try again later", cap(g.inside))
	}
	select {
	case g.served <- struct{}{}:
		return func() { <-g.served; <-g.inside }, nil
	case <-ctx.Done():
		<-g.inside
		return nil, ctx.Err()
	}
}
