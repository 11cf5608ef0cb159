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

// OfModels returns a Unary that answers from what is known of the models, without the engine. answer gets those that the caller may use.
func OfModels(answer func(body []byte, models []api.Model) ([]byte, error)) Unary {
	return func(ctx context.Context, engine api.Engine, body []byte) ([]byte, error) {
		return answer(body, api.Visible(ctx, engine.Models()))
	}
}

// Rendered is the prompt of a chat.
type Rendered struct {
	Tokens []int32
	Text   string // of Tokens, special ones included
}

// Render makes the prompt of a chat's request at the engine, as it would be computed.
func Render(engine api.Engine, ctx context.Context, c *Call) (*Rendered, error) { //nolint:revive // as Detokenize
	r := c.Requests[0]
	tokens, err := engine.Tokenize(ctx, &api.TokenizeRequest{
		Model: r.Model, Messages: r.Messages, Tools: r.Tools, TemplateArgs: r.TemplateArgs, ContinueFinal: r.ContinueFinal,
		NoGenerationPrompt: r.NoGenerationPrompt, Clock: r.TemplateClock(),
	})
	if err != nil {
		return nil, err
	}
	text, err := engine.Detokenize(ctx, r.Model, tokens)
	if err != nil {
		return nil, err
	}
	return &Rendered{tokens, text}, nil
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
