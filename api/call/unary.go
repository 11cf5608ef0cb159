package call

import (
	"context"

	"github.com/millrace/millrace/api"
)

// Unary answers the body of a call that has one answer and no events. Errors are *api.Error.
type Unary func(ctx context.Context, engine api.Engine, body []byte) ([]byte, error)

// NewUnary returns a Unary that decodes a request of type Q, runs it at the engine and encodes its
// answer of type A. The codec gets the served models.
func NewUnary[Q, A any](
	decode func(body []byte, models []api.Model) (Q, error),
	run func(engine api.Engine, ctx context.Context, q Q) (A, error),
	encode func(q Q, answer A, models []api.Model) ([]byte, error),
) Unary {
	return func(ctx context.Context, engine api.Engine, body []byte) ([]byte, error) {
		models := engine.Models()
		q, err := decode(body, models)
		if err != nil {
			return nil, err
		}
		answer, err := run(engine, ctx, q)
		if err != nil {
			return nil, err
		}
		return encode(q, answer, models)
	}
}

// DetokenizeRequest is a list of token ids of a model to turn into text.
type DetokenizeRequest struct {
	Model  string
	Tokens []int32
}

// Detokenize runs a detokenize call at the engine.
func Detokenize(engine api.Engine, ctx context.Context, r *DetokenizeRequest) (string, error) { //nolint:revive // the order of a method expression, as api.Engine.Tokenize has it
	return engine.Detokenize(ctx, r.Model, r.Tokens)
}
