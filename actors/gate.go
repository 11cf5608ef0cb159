package actors

import "context"

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
