package gateway

import (
	"context"
	"fmt"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/millrace/millrace/actors/msg"
	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/cluster/route"
	"github.com/millrace/millrace/tracing"
)

// callTimeout bounds a call to a tokenizer.
const callTimeout = 10 * time.Second

// Tokenize turns text or messages into ids, at a tokenizer of the pool.
func (g *Gateway) Tokenize(ctx context.Context, r *api.TokenizeRequest) ([]int32, error) {
	model, err := g.modelOr(r.Model)
	if err != nil {
		return nil, err
	}
	leave, err := g.calls.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	answer, err := call[*msg.Tokenized](ctx, g, model, func(reply *actor.PID) any {
		return &msg.Tokenize{Reply: reply, Input: r, Trace: tracing.Of(ctx)}
	})
	if err != nil {
		return nil, err
	}
	return answer.Tokens, answer.Err
}

// Detokenize turns ids into text.
func (g *Gateway) Detokenize(ctx context.Context, model string, tokens []int32) (string, error) {
	model, err := g.modelOr(model)
	if err != nil {
		return "", err
	}
	leave, err := g.calls.enter(ctx)
	if err != nil {
		return "", err
	}
	defer leave()
	answer, err := call[*msg.Detokenized](ctx, g, model, func(reply *actor.PID) any {
		return &msg.Detokenize{Reply: reply,
			Tokens: tokens}
	})
	if err != nil {
		return "", err
	}
	return answer.Text, answer.Err
}

// modelOr is a model by name, or without one the one that there is.
func (g *Gateway) modelOr(id string) (string, error) {
	if id == "" && g.cfg.Local.Model != "" {
		return g.cfg.Local.Model, nil
	}
	if id == "" {
		if list := g.models.list(); len(list) == 1 {
			return list[0].ID, nil
		}
	}
	m, err := g.models.get(id)
	if err != nil {
		return "", err
	}
	return m.ID, nil
}

// call sends a question to a tokenizer and waits for the answer.
func call[Answer any](ctx context.Context, g *Gateway, model string, question func(*actor.PID) any) (none Answer, err error) {
	to := g.routes.tokenizer(model, route.Bond{})
	if to == nil {
		return none, api.Unavailable(fmt.Errorf("no tokenizer for model %q is there", model))
	}
	wait := callTimeout
	if d, ok := ctx.Deadline(); ok {
		wait = min(wait, time.Until(d))
	}
	future := actor.NewFuture(g.cfg.System, max(wait, 0))
	g.cfg.System.Root.Send(to, question(future.PID()))
	got, err := future.Result()
	if err != nil {
		return none, api.Unavailable(fmt.Errorf("the tokenizer at %s did not answer: %w", to.Address, err))
	}
	if a, ok := got.(Answer); ok {
		return a, nil
	}
	if a, ok := got.(*msg.Tokenized); ok { // of a tokenizer that failed
		return none, a.Err
	}
	return none, api.Unavailable(fmt.Errorf("the tokenizer at %s answered with a %T", to.Address, got))
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
		return nil, overloaded(reasonQueueFull, shortestRetry, "the server has %d texts to tokenize in hand, its most: try again later",
			cap(g.inside))
	}
	select {
	case g.served <- struct{}{}:
		return func() { <-g.served; <-g.inside }, nil
	case <-ctx.Done():
		<-g.inside
		return nil, ctx.Err()
	}
}
