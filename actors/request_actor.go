package actors

import (
	"fmt"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"github.com/rs/zerolog"

	"github.com/millrace/millrace/actors/msg"
	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/detok"
	"github.com/millrace/millrace/metrics"
)

// requestActor owns the journal of one request: it alone says what happened.
type requestActor struct {
	p       *Pipeline
	state   *request
	journal *journal
	log     zerolog.Logger
	first   time.Time // of the first token
	series  *metrics.Request
}

func (a *requestActor) Receive(ctx actor.Context) {
	defer a.answerPanic(ctx)
	switch m := ctx.Message().(type) {
	case *actor.Started:
		ctx.Send(a.p.tokenizer(), &msg.Tokenize{Reply: ctx.Self(), Request: a.state.api})
	case *msg.Tokenized:
		a.tokenized(ctx, m)
	case *msg.Text:
		a.text(ctx, m)
	case *msg.Started:
		a.series.Started(m.At, len(a.state.prompt), 0)
	case *msg.Abandon:
		a.abandon(ctx, m.Err)
	case *msg.CancelRequest:
		running, ended := a.state.cancel(m.Err)
		a.cancel(ctx, running)
		if ended != nil {
			a.end(ctx, *ended)
		}
	}
}

func (a *requestActor) tokenized(ctx actor.Context, m *msg.Tokenized) {
	if m.Err != nil {
		a.end(ctx, a.state.fail(m.Err))
		return
	}
	generate, err := a.state.tokenized(m.Tokens, a.p.nextSeq)
	if err != nil {
		a.end(ctx, a.state.fail(err))
		return
	}
	r := a.state.api
	text := a.p.detokenizer() // one for all choices
	for _, g := range generate {
		g.Reply, g.Detok = ctx.Self(), text
		for _, seq := range g.Choices {
			ctx.Send(text, &msg.OpenText{
				Seq: seq, Reply: ctx.Self(),
				Options: detok.Options{Stop: r.Stop, IncludeStop: r.IncludeStop, KeepSpecial: r.KeepSpecial},
			})
		}
		ctx.Send(a.p.compute, g)
	}
	a.log.Debug().Int("prompt_tokens", len(m.Tokens)).Int("max_tokens", generate[0].MaxTokens).Msg("request tokenised")
}

func (a *requestActor) text(ctx actor.Context, m *msg.Text) {
	e, ok := a.state.text(m)
	if !ok {
		return
	}
	if m.Token >= 0 {
		a.countToken(e.Choice)
	}
	if e.Done {
		a.cancel(ctx, a.state.running()) // none, unless one choice failed
		a.end(ctx, e)
		return
	}
	a.journal.append(e)
}

func (a *requestActor) countToken(choice int) {
	now := time.Now()
	a.series.Tokens(now, choice, 1)
	if a.first.IsZero() {
		a.first = now
	}
}

func (a *requestActor) cancel(ctx actor.Context, seqs []msg.SeqID) {
	for _, seq := range seqs {
		ctx.Send(a.p.compute, &msg.Cancel{Seq: seq})
	}
}

// abandon ends the request now. What still runs of it is cancelled, in case
// that the device comes back.
func (a *requestActor) abandon(ctx actor.Context, err error) {
	if a.state.done {
		return
	}
	a.cancel(ctx, a.state.running())
	a.end(ctx, a.state.fail(err))
}

// end writes the last event and stops the actor.
func (a *requestActor) end(ctx actor.Context, e api.Event) {
	a.p.ended(a.state.api.ID) // before the client can see the end: its next request has room
	a.journal.append(e)
	a.series.Finished(time.Now(), string(e.Finish))
	line := a.log.Info()
	if e.Err != nil {
		line = a.log.Warn().Err(e.Err)
	}
	if !a.first.IsZero() {
		line = line.Dur("ttft", a.first.Sub(a.state.api.Arrival))
	}
	line.Str("finish", string(e.Finish)).Int("prompt_tokens", e.Usage.PromptTokens).
		Int("completion_tokens", e.Usage.CompletionTokens).Dur("took", time.Since(a.state.api.Arrival)).Msg("request done")
	ctx.Stop(ctx.Self())
}

// answerPanic ends the request when its actor fails, so that no client waits
// for an actor that is gone, and lets the supervisor see the failure.
func (a *requestActor) answerPanic(ctx actor.Context) {
	v := recover()
	if v == nil {
		return
	}
	a.cancel(ctx, a.state.running())
	a.end(ctx, a.state.fail(internalError("request", v)))
	panic(v)
}

// internalError is what a client is told when an actor fails.
func internalError(stage string, v any) error {
	return &api.Error{Code: api.CodeInternal, Message: fmt.Sprintf("the %s stage failed: %v", stage, v)}
}
