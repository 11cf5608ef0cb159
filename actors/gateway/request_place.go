package gateway

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/millrace/millrace/actors/msg"
	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/cluster/route"
	"github.com/millrace/millrace/kvmgr/chain"
)

// tokenize sends the prompt to a tokenizer of a complete set, or of the digest that the
// answer is bound to. Token ids need none; their request takes the digest of such a set.
func (a *requestActor) tokenize(ctx actor.Context) {
	r, text := a.state.api, a.state.bond.texts()
	if !text.Bound {
		at := a.routes.whole(a.query())
		if at == nil {
			a.wait(ctx, "worker")
			return
		}
		text = route.To(at.text)
	}
	texts := r.Sampling.Texts()
	if r.PromptTokens != nil && r.Grammar == nil && texts == nil {
		a.tokenized(ctx, &msg.Tokenized{Tokens: r.PromptTokens, Text: text.Digest})
		return
	}
	to := a.routes.tokenizer(r.Model, text)
	if to == nil {
		a.wait(ctx, "tokenizer")
		return
	}
	if a.tried.add(to.Address, a.cluster.Probe(to.Address)); a.tried.times > mostResumes {
		a.end(ctx, a.state.fail(api.Unavailable(fmt.Errorf("no tokenizer answered, the last of %d was at %s", mostResumes, to.Address))))
		return
	}
	patience := min(tokenizeFirst<<(a.tried.times-1), tokenizeMost)
	a.unplacedSince, a.askAgain = time.Time{}, time.Now().Add(patience)
	a.watch.wait(time.Now(), ctx.Self(), a.tried.nodes, patience)
	m := &msg.Tokenize{Reply: ctx.Self(), Grammar: r.Grammar, Tenant: r.Tenant, Texts: texts, Answers: r.Pool.Texts(),
		Trace: a.span.SpanContext()}
	switch {
	case r.PromptTokens == nil:
		m.Input = promptOf(r)
	case r.Grammar == nil: // a tokenizer of an earlier version expects one of both
		m.Input = &api.TokenizeRequest{Model: r.Model}
	}
	ctx.Send(to, m)
}

// retry does what could not be done before. A prompt is sent to another tokenizer
// when the last one is gone or silent, but not when it has killed two.
func (a *requestActor) retry(ctx actor.Context) {
	if a.state.started {
		a.start(ctx)
		return
	}
	last, err := a.tried.gone(a.cluster.Alive, a.cluster.Died)
	if err != nil {
		a.end(ctx, a.state.fail(err))
		return
	}
	if left := time.Until(a.askAgain); last && left > 0 { // another one is gone, which had the prompt, too
		a.watch.wait(time.Now(), ctx.Self(), a.tried.nodes, left)
		return
	}
	a.tokenize(ctx)
}

func (a *requestActor) tokenized(ctx actor.Context, m *msg.Tokenized) {
	if a.state.started { // by the answer of another one
		return
	}
	r := a.state.api
	eos, known := a.models.eos(r.Model, m.Text)
	if m.Err == nil && !known && (!r.IgnoreEOS || r.Grammar != nil) {
		a.wait(ctx, "tokenizer")
		return
	}
	a.watch.waitNoMore(ctx.Self())
	if a.state.shorten(len(m.Tokens), m.Err) {
		a.tried = tried{}
		a.tokenize(ctx)
		return
	}
	err := m.Err
	if err == nil && r.Grammar != nil && !m.Checked {
		err = api.Unavailable(fmt.Errorf("%s: the tokenizer is of a version without grammars", r.Grammar.Param))
	}
	if err == nil && r.Second != "" && m.Second == 0 {
		err = api.Unavailable(errors.New("a pair of texts: the tokenizer is of a version without them"))
	}
	if err == nil && m.Texts == nil && r.Sampling.Texts() != nil {
		err = api.Unavailable(errors.New("bad_words or dry_sequence_breakers: the tokenizer is of a version without them"))
	}
	if err == nil && len(m.Answers) != len(r.Pool.Texts()) {
		err = api.Unavailable(errors.New("the answers of a question: the tokenizer is of a version without them"))
	}
	if err == nil {
		ids := m.Tokens
		if r.PromptTokens != nil {
			ids = r.PromptTokens
		}
		err = a.state.tokenized(prompt{ids, m.Second, m.Text, eos, m.Thought, m.Texts, m.Answers})
	}
	if err != nil {
		a.end(ctx, a.state.fail(err))
		return
	}
	a.tried, a.prompt = tried{}, nil
	a.record.note(func(t *Timeline) { t.Tokenized, t.PromptTokens = time.Now(), len(a.state.prompt) })
	a.bound.Store(a.state.bond.fixed)
	if e, over := a.state.resumed(); over {
		a.end(ctx, e)
		return
	}
	a.startOrAdopt(ctx)
	a.log.Debug().Int("prompt_tokens", len(m.Tokens)).Int("max_tokens", a.state.limit).Msg("request tokenized")
}

// start starts what waits to be started, each where there is room for it, all at equals.
func (a *requestActor) start(ctx actor.Context) {
	list := a.state.waiting()
	if len(list) == 0 {
		return
	}
	text := a.routes.detokenizer(a.state.api.Model, a.state.bond.texts()) // one for all choices
	if text == nil {
		a.stay(ctx, "detokenizer")
		return
	}
	for _, first := range list {
		if !a.startOne(ctx, first, text) {
			what := "worker"
			if a.state.api.Grammar != nil { // which needs its text digest, too
				what = "worker for the grammar"
			}
			a.stay(ctx, what)
			return
		}
	}
	a.unplacedSince = time.Time{}
	a.watch.waitNoMore(ctx.Self())
}

// startOne starts the sequence of a choice where its prompt costs the least; false if no worker may have it.
func (a *requestActor) startOne(ctx actor.Context, first int, text *actor.PID) bool {
	prompt := a.slabs(first)
	if prompt != nil {
		a.routes.caches.placing.Lock()
		defer a.routes.caches.placing.Unlock()
	}
	at := a.seat(first, prompt)
	if at == nil {
		return false
	}
	a.state.bond.placed(at.numerics)
	seq := a.startAt(ctx, first, at.worker, text)
	a.watch.prompts(seq, at.worker.Address, prompt)
	return true
}

// slabs are the hashes of the full slabs of the tokens that a choice begins with. They are not needed where requests are
// placed without them.
func (a *requestActor) slabs(first int) []chain.Hash {
	r := a.state
	if !a.routes.caches.known() {
		return nil
	}
	if len(r.choices[first].tokens) > 0 {
		return chain.Of(r.space(), r.limits.slabTokens, r.known(first))
	}
	if a.prompt == nil {
		a.prompt = chain.Of(r.space(), r.limits.slabTokens, r.prompt)
	}
	return a.prompt
}

// startAt starts the sequence of a choice at a worker.
func (a *requestActor) startAt(ctx actor.Context, first int, worker, text *actor.PID) msg.SeqID {
	g, open := a.state.start(first, a.nextSeq)
	g.Source = a.source(first, worker)
	g.Reply, g.Detok, g.Watch, g.Trace = ctx.Self(), text, a.watcher, a.span.SpanContext()
	a.openTexts(ctx, text, worker, open)
	a.runs(ctx, worker, text, g.Choices, len(g.Generated))
	ctx.Send(worker, g)
	return g.Seq
}

// runs notes where a sequence does from here on, after a number of tokens.
func (a *requestActor) runs(ctx actor.Context, worker, text *actor.PID, choices []msg.SeqID, tokens int) {
	lead := choices[0]
	a.places[lead] = &place{
		compute: worker, detok: text, choices: choices, from: tokens, requested: time.Now(),
		watched: a.watch.begin(time.Now(), lead, worker.Address, text.Address, ctx.Self(), &a.bound, tokens),
	}
	a.record.note(func(t *Timeline) { t.Worker, t.Sequences = worker.Address, a.sequences() })
}

// sequences lists the ids of the sequences that run, in the order of their beginnings.
func (a *requestActor) sequences() []string {
	ids := []string{}
	for _, lead := range slices.Sorted(maps.Keys(a.places)) {
		for _, seq := range a.places[lead].choices {
			ids = append(ids, strconv.FormatUint(uint64(seq), 10))
		}
	}
	return ids
}

// query is what placement has to know of a sequence.
func (a *requestActor) query() route.Query {
	r := a.state.api
	q := route.Query{
		Model: r.Model, Avoid: a.avoid,
		Slabs: a.state.needs() / max(a.state.limits.slabTokens, 1),
	}
	if a.state.bond.bind(&q); r.Grammar != nil { // equal numerics do not say that the grammar's engine is the same
		q.Text = a.state.bond.texts()
	}
	if len(r.Messages) > 0 {
		beginning := make([]string, 0, 2)
		for _, m := range r.Messages[:min(2, len(r.Messages))] {
			beginning = append(beginning, m.Content)
		}
		q.Conversation = route.Conversation(r.Tenant, beginning...)
	}
	return q
}

// stay is for a sequence without a place: its request begins again at others, if they are
// there and nothing of it was shown, or waits for an equal.
func (a *requestActor) stay(ctx actor.Context, what string) {
	if a.serves(a.state.api.Model) != nil || !a.again(ctx) {
		a.wait(ctx, what)
	}
}

// again begins the request again from its prompt; false if something of it has left.
func (a *requestActor) again(ctx actor.Context) bool {
	r := a.state.api
	if a.state.bond.fixed && (r.Takeover != nil || r.Equal != nil || !a.events.Restart(r.Buffered)) {
		return false
	}
	pin, avoid := a.state.bond.pin, a.avoid
	if err := a.state.again(); err != nil {
		a.end(ctx, a.state.fail(err))
		return true
	}
	for seq := range a.places {
		a.drop(ctx, seq)
	}
	a.avoid = avoid // those that were dropped have not failed it
	a.bound.Store(false)
	a.moved(startedAgain)
	a.record.note(func(t *Timeline) { t.Moves++ })
	migrated(a.span, startedAgain, avoid, 0)
	a.log.Warn().Str("numerics", api.ShortDigest(pin.Numerics)).Str("text",
		api.ShortDigest(pin.Text)).Msg("no equal is there: a request begins again")
	a.tokenize(ctx)
	return true
}

// wait has the request try again later, and ends it when that took too long.
func (a *requestActor) wait(ctx actor.Context, what string) {
	now := time.Now()
	if a.unplacedSince.IsZero() {
		a.unplacedSince = now
		a.log.Warn().Str("for", what).Msg("a request waits")
	}
	if waited := now.Sub(a.unplacedSince); waited > a.failover {
		var err error = api.Unavailable(fmt.Errorf("no %s was there for %s", what, waited.Round(time.Second)))
		if a.state.bond.fixed {
			err = a.routes.noEqual(a.state.api.Model, what, a.state.bond.pin, waited)
		}
		a.end(ctx, a.state.fail(err))
		return
	}
	a.watch.wait(now, ctx.Self(), nil, 0)
}
