package actors

import (
	"time"

	"github.com/asynkron/protoactor-go/actor"
	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"

	"github.com/millrace/millrace/actors/msg"
	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/tokenizer"
	"github.com/millrace/millrace/tracing"
)

// tokenizerActor turns prompts into ids. Each message stands for itself.
type tokenizerActor struct {
	p   *Pipeline
	tok *tokenizer.Tokenizer
}

func (a *tokenizerActor) Receive(ctx actor.Context) {
	start := time.Now()
	var to *actor.PID
	var answer any
	switch m := ctx.Message().(type) {
	case *msg.Tokenize:
		defer a.answerPanic(ctx, m.Reply)
		span := tracing.Stage(a.p.tracer, m.Trace, spanTokenize)
		defer span.End()
		ids, err := encode(a.tok, m.Input, a.p.longest())
		span.SetAttributes(semconv.GenAIUsageInputTokens(len(ids)))
		tracing.Fail(span, "invalid_request", err)
		to, answer = m.Reply, &msg.Tokenized{Tokens: ids, Text: a.p.cfg.Text, Err: err}
	case *msg.Detokenize:
		defer a.answerPanic(ctx, m.Reply)
		text, err := decode(a.tok, m.Tokens)
		to, answer = m.Reply, &msg.Detokenized{Text: text, Err: err}
	default:
		return
	}
	a.p.stages.tokenize.Served(time.Since(start))
	a.p.tokenizing.Add(-1)
	ctx.Send(to, answer)
}

func (a *tokenizerActor) answerPanic(ctx actor.Context, reply *actor.PID) {
	if v := recover(); v != nil {
		a.p.tokenizing.Add(-1)
		ctx.Send(reply, &msg.Tokenized{Err: internalError("tokenize", v)})
		panic(v)
	}
}

// encode makes the ids of a text or a chat, for a model whose context is longest tokens (0: unknown). Errors
// are *api.Error.
func encode(tok *tokenizer.Tokenizer, r *api.TokenizeRequest, longest int) ([]int32, error) {
	if r.Messages == nil {
		if err := fits(tok, "prompt", r.Prompt, longest); err != nil {
			return nil, err
		}
		ids, err := tok.Encode(r.Prompt, r.AddSpecialTokens)
		if err != nil {
			return nil, api.Invalid("prompt", "%v", err)
		}
		return ids, nil
	}
	text, err := tok.RenderChat(tokenizer.Chat{
		Messages: r.Messages, Tools: r.Tools, Args: r.TemplateArgs,
		AddGenerationPrompt: !r.NoGenerationPrompt && !r.ContinueFinal, ContinueFinal: r.ContinueFinal,
		Clock: r.Clock,
	})
	if err != nil {
		return nil, api.Invalid("messages", "%v", err)
	}
	if err := fits(tok, "messages", text, longest); err != nil {
		return nil, err
	}
	ids, err := tok.Encode(text, false) // the template wrote the special tokens
	if err != nil {
		return nil, api.Invalid("messages", "%v", err)
	}
	return ids, nil
}

func decode(tok *tokenizer.Tokenizer, tokens []int32) (string, error) {
	text, err := tok.Decode(tokens, false)
	if err != nil {
		return "", api.Invalid("tokens", "%v", err)
	}
	return text, nil
}

// promptOf is what is to be tokenized of a request without token ids.
func promptOf(r *api.Request) *api.TokenizeRequest {
	return &api.TokenizeRequest{
		Model: r.Model, Prompt: r.Prompt, AddSpecialTokens: true, Messages: r.Messages, Tools: r.Tools,
		TemplateArgs: r.TemplateArgs, ContinueFinal: r.ContinueFinal, NoGenerationPrompt: r.NoGenerationPrompt,
		Clock: r.Arrival,
	}
}

// checkVocab refuses tokens that the model does not have.
func checkVocab(r *api.Request, prompt []int32, vocab int) error {
	for _, list := range []struct {
		param string
		ids   []int32
	}{{"prompt", prompt}, {"stop_token_ids", r.StopTokens}} {
		for i, id := range list.ids {
			if id < 0 || int(id) >= vocab {
				return api.Invalid(list.param, "%s: token %d is %d, the model has 0..%d", list.param, i, id, vocab-1)
			}
		}
	}
	if err := r.Sampling.ValidateVocab(vocab); err != nil {
		return api.Invalid("logit_bias", "%v", err)
	}
	return nil
}
