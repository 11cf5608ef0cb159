package actors

import (
	"fmt"
	"slices"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"github.com/rs/zerolog"

	"github.com/millrace/millrace/actors/msg"
	"github.com/millrace/millrace/api"
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
	places  map[msg.SeqID]place // of the sequences that run, by their first choice
}

// place is where a sequence runs.
type place struct {
	compute, detok *actor.PID
	choices        []msg.SeqID
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
		a.cancel(ctx, m.Err)
	case *msg.CancelRequest:
		a.cancel(ctx, m.Err)
	}
}

func (a *requestActor) tokenized(ctx actor.Context, m *msg.Tokenized) {
	err := m.Err
	if err == nil {
		err = a.state.tokenized(m.Tokens)
	}
	if err != nil {
		a.end(ctx, a.state.fail(err))
		return
	}
	for _, e := range a.state.resumed() {
		a.event(ctx, e)
	}
	a.start(ctx)
	a.log.Debug().Int("prompt_tokens", len(m.Tokens)).Int("max_tokens", a.state.limit).Msg("request tokenised")
}

// start starts what waits to be started.
func (a *requestActor) start(ctx actor.Context) {
	text := a.p.detokenizer() // one for all choices
	for _, first := range a.state.waiting() {
		g, open := a.state.start(first, a.p.nextSeq)
		g.Reply, g.Detok = ctx.Self(), text
		for _, o := range open {
			o.Reply, o.Compute = ctx.Self(), a.p.compute
			ctx.Send(text, o)
		}
		a.places[g.Seq] = place{compute: a.p.compute, detok: text, choices: g.Choices}
		ctx.Send(a.p.compute, g)
	}
}

// lost starts a sequence again, behind what came of it.
func (a *requestActor) lost(ctx actor.Context, seq msg.SeqID, why string) {
	first, err := a.state.lost(seq, why)
	if err != nil {
		a.end(ctx, a.state.fail(err))
	}
	if first >= 0 {
		a.log.Warn().Str("why", why).Msg("a sequence is started again")
		a.drop(ctx, seq)
		a.start(ctx)
	}
}

// drop cancels a sequence wherever it may still run.
func (a *requestActor) drop(ctx actor.Context, seq msg.SeqID) {
	for lead, at := range a.places {
		if !slices.Contains(at.choices, seq) {
			continue
		}
		ctx.Send(at.compute, &msg.Cancel{Seq: lead})
		for _, choice := range at.choices {
			ctx.Send(at.detok, &msg.CloseText{Seq: choice})
		}
		delete(a.places, lead)
		return
	}
}

func (a *requestActor) text(ctx actor.Context, m *msg.Text) {
	e, v := a.state.text(m)
	switch v {
	case ignored:
	case gap:
		a.lost(ctx, m.Seq, "tokens were lost on their way")
	case taken:
		if m.Token >= 0 {
			a.countToken(e.Choice)
		}
		a.event(ctx, e)
	}
}

// event writes an event to the journal; the last one ends the request.
func (a *requestActor) event(ctx actor.Context, e api.Event) {
	if e.Done {
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

// cancel ends the request now, whatever its stages do: a device that hangs never
// answers.
func (a *requestActor) cancel(ctx actor.Context, reason error) {
	if !a.state.done {
		a.end(ctx, a.state.cancel(reason))
	}
}

// end writes the last event, cancels what still runs and stops the actor.
func (a *requestActor) end(ctx actor.Context, e api.Event) {
	for _, seq := range a.state.running() {
		a.drop(ctx, seq)
	}
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
	a.end(ctx, a.state.fail(internalError("request", v)))
	panic(v)
}

// internalError is what a client is told when an actor fails.
func internalError(stage string, v any) error {
	return &api.Error{Code: api.CodeInternal, Message: fmt.Sprintf("the %s stage failed: %v", stage, v)}
}
