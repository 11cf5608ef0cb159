package actors

import (
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/millrace/millrace/actors/msg"
	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/tokenizer"
)

// tokenizerActor turns prompts into ids. Each message stands for itself.
type tokenizerActor struct {
	p   *Pipeline
	tok *tokenizer.Tokenizer
}

func (a *tokenizerActor) Receive(ctx actor.Context) {
	m, ok := ctx.Message().(*msg.Tokenize)
	if !ok {
		return
	}
	defer func() {
		if v := recover(); v != nil {
			ctx.Send(m.Reply, &msg.Tokenized{Err: internalError("tokenize", v)})
			panic(v)
		}
	}()
	start := time.Now()
	ids, err := promptTokens(a.tok, m.Request)
	a.p.stages.tokenize.Served(time.Since(start))
	ctx.Send(m.Reply, &msg.Tokenized{Tokens: ids, Err: err})
}

// promptTokens makes the prompt's ids. Errors are *api.Error.
func promptTokens(tok *tokenizer.Tokenizer, r *api.Request) ([]int32, error) {
	if r.PromptTokens != nil {
		return r.PromptTokens, nil
	}
	if r.Messages == nil {
		ids, err := tok.Encode(r.Prompt, true)
		if err != nil {
			return nil, api.Invalid("prompt", "%v", err)
		}
		return ids, nil
	}
	text, err := tok.RenderChat(tokenizer.Chat{
		Messages: r.Messages, Tools: r.Tools, Args: r.TemplateArgs,
		AddGenerationPrompt: !r.NoGenerationPrompt && !r.ContinueFinal, ContinueFinal: r.ContinueFinal,
	})
	if err != nil {
		return nil, api.Invalid("messages", "%v", err)
	}
	ids, err := tok.Encode(text, false) // the template wrote the special tokens
	if err != nil {
		return nil, api.Invalid("messages", "%v", err)
	}
	return ids, nil
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
