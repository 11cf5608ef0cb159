package gateway

import (
	"slices"
	"sync/atomic"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"github.com/rs/zerolog"
	"go.opentelemetry.io/otel/trace"

	"github.com/millrace/millrace/actors/msg"
	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/cluster/route"
	"github.com/millrace/millrace/kvmgr/chain"
	"github.com/millrace/millrace/metrics"
)

// requestDeps is what all requests of a gateway need.
type requestDeps struct {
	node     string // name of this process
	routes   *routing
	models   *models
	watch    *watch
	watcher  *actor.PID // gets the reports of workers
	requests *requests
	cluster  Membership
	serves   func(model string) error
	nextSeq  func() msg.SeqID
	moved    func(why string)
	failover time.Duration // a request without a place ends with an error after it
}

// requestActor owns the event buffer of one request: it alone says what happened.
type requestActor struct {
	*requestDeps
	state         *request
	events        *api.Buffer
	log           zerolog.Logger
	first         time.Time // of the first token
	series        *metrics.Request
	record        *record
	span          trace.Span           // of the request; stages are below it
	prompt        []chain.Hash         // of the full slabs of the prompt, where they are needed
	places        map[msg.SeqID]*place // of the sequences that run, by the first of their choices
	avoid         string               // the node that failed a sequence last
	unplacedSince time.Time            // since when a sequence has no place; zero: all have
	tried         tried                // since the prompt was sent first
	askAgain      time.Time            // when the last of them has had its time
	bound         atomic.Bool          // for the watch: the answer continues at equals only
	handovers     map[int]handover     // of choices that wait to be started, by the first one of their sequence
	search        search               // for sequences of the process that had the request
	found         []*msg.Found         // of them, those that were found before the prompt was tokenized
}

// place is where a sequence runs.
type place struct {
	compute, detok *actor.PID
	choices        []msg.SeqID
	watched        *watched
	from           int       // tokens that were known when it was placed here
	requested      time.Time // when its worker was sent the last request for its tokens
	next           *seat     // where its keys and values are copied to; nil: nowhere
	why            string    // it goes to next
	stopped        bool      // it was cancelled here to go there, and its last tokens are on their way
	full           string    // node that had no room for it last
}

func (a *requestActor) Receive(ctx actor.Context) {
	defer a.answerPanic(ctx)
	if a.state.done { // messages that were in the mailbox at the end
		return
	}
	switch m := ctx.Message().(type) {
	case *actor.Started:
		if a.state.api.First != "" {
			a.find(ctx)
		}
		a.tokenize(ctx)
	case *msg.Tokenized:
		a.tokenized(ctx, m)
	case *msg.Text:
		a.text(ctx, m)
		msg.Recycle(m)
	case *msg.Started:
		a.begun(m.At)
	case *msg.Found:
		a.foundAt(ctx, m)
	case *msg.Lost:
		switch {
		case m.Why == prefillDone:
			a.decodeElsewhere(ctx, m.Seq)
		case m.Why == workerDraining && a.finishes(m.Seq):
		case m.Why != workerDraining || !a.prefetch(ctx, m.Seq, m.Why):
			a.lost(ctx, m.Seq, m.Why)
		}
	case *msg.Prefetched:
		a.prefetched(ctx, m)
	case *msg.Retry:
		if a.state.started && a.search.open() {
			return
		}
		a.retry(ctx)
	case *msg.Abandon:
		a.abandon(ctx, m.Err)
	case *msg.CancelRequest:
		if m.Moved {
			a.leave()
		}
		a.end(ctx, a.state.cancel(m.Err))
	}
}

// begun notes that the first step with the prompt begins. Later calls change nothing.
func (a *requestActor) begun(at time.Time) {
	a.requests.begun(a.state.api.Key(), at)
	a.series.Started(at, len(a.state.prompt))
	a.record.note(func(t *Timeline) { first(&t.Begun, at) })
}

// findFor is how long a worker may take to say what it has of a request. It answers between two steps, too; one that is gone does not.
const findFor = time.Second

// search is for sequences that another process had started.
type search struct {
	since   time.Time
	workers []string // nodes that have not said that this is all
}

// open says whether a worker may yet have something.
func (s *search) open() bool { return len(s.workers) > 0 && time.Since(s.since) < findFor }

// find sends Find to all workers, for what another process had started of the request and may
// still run or have. They search while the prompt is tokenized.
func (a *requestActor) find(ctx actor.Context) {
	if !a.state.redirects() {
		return
	}
	a.search.since = time.Now()
	for _, w := range a.routes.workersOf(a.state.api.Model) {
		a.search.workers = append(a.search.workers, w.Address)
		ctx.Send(w, &msg.Find{RequestID: a.state.api.OriginKey(), Reply: ctx.Self(), End: true})
	}
}

// foundAt takes what a worker has, or that it has no more.
func (a *requestActor) foundAt(ctx actor.Context, m *msg.Found) {
	switch {
	case len(m.Seqs) == 0:
		a.search.workers = slices.DeleteFunc(a.search.workers, func(node string) bool { return node == m.Compute.Address })
		if len(a.search.workers) == 0 && a.state.started {
			a.start(ctx)
		}
	case a.state.started:
		a.adopt(ctx, m)
	default:
		a.found = append(a.found, m)
	}
}

// startOrAdopt continues what was found, waits for what may yet be found, and starts the rest.
func (a *requestActor) startOrAdopt(ctx actor.Context) {
	found := a.found
	a.found = nil
	for _, m := range found {
		a.adopt(ctx, m)
	}
	if len(a.state.waiting()) > 0 && a.search.open() {
		a.watch.wait(a.search.since, ctx.Self(), nil, 0)
		return
	}
	a.start(ctx)
}

// adopt continues a sequence that another process had started. What was found too
// late, or twice, is cancelled.
func (a *requestActor) adopt(ctx actor.Context, m *msg.Found) {
	lead := m.Seqs[0]
	if a.places[lead] != nil {
		return
	}
	text := a.routes.detokenizer(a.state.api.Model, a.state.bond.texts())
	if text == nil || !a.state.adopt(m.First, m.Seqs, m.Pin) {
		ctx.Send(m.Compute, &msg.Cancel{Seq: lead})
		return
	}
	a.redirect(ctx, m.Compute, text, m.Seqs)
	a.begun(time.Now())
	if len(a.state.waiting()) == 0 {
		a.search.workers = nil
		a.watch.waitNoMore(ctx.Self())
	}
	a.log.Info().Str("at", m.Compute.Address).Int("choice", m.First).Msg("a sequence of another process was taken over")
}

// lost continues a sequence after the tokens that arrived: where it runs if only its text was
// lost, else from its prompt.
func (a *requestActor) lost(ctx actor.Context, seq msg.SeqID, why string) {
	if (why == detokDead || why == textLost) && a.moveText(ctx, seq, why) {
		return
	}
	from := a.leaving(seq, why)
	first, err := a.state.lost(seq, why)
	if err != nil {
		a.end(ctx, a.state.fail(err))
		return
	}
	if first < 0 {
		return
	}
	a.moved(why)
	a.record.note(func(t *Timeline) { t.Moves++ })
	a.drop(ctx, seq)
	if delete(a.handovers, first); from.from.KV != nil {
		a.handovers[first] = from
	}
	tokens := len(a.state.choices[first].tokens)
	migrated(a.span, why, a.avoid, tokens)
	a.start(ctx)
	level := zerolog.WarnLevel
	if why == prefillDone {
		level = zerolog.DebugLevel
	}
	a.log.WithLevel(level).Str("why", why).Int("tokens", tokens).Str("from", a.avoid).Msg("a sequence was started again")
}

// moveText makes another detokenizer continue a sequence; false if the sequence has to
// start again.
func (a *requestActor) moveText(ctx actor.Context, seq msg.SeqID, why string) bool {
	_, at := a.place(seq)
	text := a.routes.detokenizer(a.state.api.Model, a.state.bond.texts())
	if at == nil || text == nil || !a.state.mayRedirect(seq) {
		return false
	}
	a.closeTexts(ctx, at)
	tokens := a.redirect(ctx, at.compute, text, at.choices)
	a.moved(why)
	migrated(a.span, why, at.detok.Address, tokens)
	a.log.Warn().Str("why", why).Int("tokens", tokens).Str("from", at.detok.Address).Msg("a text continues at another detokenizer")
	return true
}

// redirect makes the worker of a sequence send it to a detokenizer, after the tokens that are here.
func (a *requestActor) redirect(ctx actor.Context, worker, text *actor.PID, choices []msg.SeqID) (tokens int) {
	open, tokens := a.state.redirect(choices[0])
	a.openTexts(ctx, text, worker, open)
	a.runs(ctx, worker, text, choices, tokens)
	a.sendRedirect(ctx, worker, text, choices[0], tokens)
	return tokens
}

func (a *requestActor) sendRedirect(ctx actor.Context, worker, text *actor.PID, seq msg.SeqID, from int) {
	ctx.Send(worker, &msg.Redirect{Seq: seq, Reply: ctx.Self(), Watch: a.watcher, Detok: text, From: from})
}

// redirectAfter is how long a worker may take for a redirect, before which its tokens are of before.
const redirectAfter = 100 * time.Millisecond

// redirectAgain sends a worker once more the request for tokens that it had to send again: they came to the detokenizer
// before the text was open there.
func (a *requestActor) redirectAgain(ctx actor.Context, at *place) {
	now := time.Now()
	if now.Sub(at.requested) < redirectAfter {
		return
	}
	at.requested = now
	_, tokens := a.state.redirect(at.choices[0])
	a.sendRedirect(ctx, at.compute, at.detok, at.choices[0], tokens)
}

// openTexts makes a detokenizer take the tokens of a sequence.
func (a *requestActor) openTexts(ctx actor.Context, text, compute *actor.PID, open []*msg.OpenText) {
	for _, o := range open {
		o.Reply, o.Compute, o.Trace = ctx.Self(), compute, a.span.SpanContext()
		ctx.Send(text, o)
	}
}

// drop cancels a sequence wherever it may still run.
func (a *requestActor) drop(ctx actor.Context, seq msg.SeqID) {
	lead, at := a.place(seq)
	if at == nil {
		return
	}
	a.avoid = at.compute.Address
	ctx.Send(at.compute, &msg.Cancel{Seq: lead, Owner: a.node})
	a.closeTexts(ctx, at)
	a.left(lead, at)
}

func (a *requestActor) closeTexts(ctx actor.Context, at *place) {
	for _, choice := range at.choices {
		ctx.Send(at.detok, &msg.CloseText{Seq: choice, Owner: a.node})
	}
}

// leave has the sequences that another process can find run on at their workers. Their
// texts stay open: the other process opens them again, at the same detokenizer perhaps.
func (a *requestActor) leave() {
	if !a.state.redirects() {
		return
	}
	for lead, at := range a.places {
		if at.compute.Address != a.node { // this process ends
			a.watch.leave(lead, at.compute.Address)
			delete(a.places, lead)
		}
	}
}

// left forgets a sequence's place.
func (a *requestActor) left(lead msg.SeqID, at *place) {
	a.watch.end(lead, at.compute.Address)
	delete(a.places, lead)
}

// place finds where the sequence of a choice runs.
func (a *requestActor) place(seq msg.SeqID) (lead msg.SeqID, at *place) {
	if at := a.places[seq]; at != nil {
		return seq, at
	}
	for lead, at := range a.places {
		if slices.Contains(at.choices, seq) {
			return lead, at
		}
	}
	return 0, nil
}

// abandon moves what runs in this process, whose worker is gone, or ends the
// request if there is nowhere to go.
func (a *requestActor) abandon(ctx actor.Context, err error) {
	elsewhere := a.routes.elsewhere(&route.Query{Model: a.state.api.Model}, a.node)
	if len(a.places) == 0 && !elsewhere {
		a.end(ctx, a.state.fail(err))
		return
	}
	for _, seq := range a.state.running() {
		if at := a.places[seq]; at == nil || at.compute.Address != a.node {
			continue
		}
		if !elsewhere {
			a.end(ctx, a.state.fail(err))
			return
		}
		a.lost(ctx, seq, workerFailed)
	}
}

func (a *requestActor) text(ctx actor.Context, m *msg.Text) {
	lead, at := a.place(m.Seq)
	if at == nil {
		return
	}
	if m.Lost && a.routes.elsewhere(&route.Query{Model: a.state.api.Model}, at.compute.Address) {
		a.lost(ctx, m.Seq, workerFailed)
		return
	}
	if at.stopped && m.Finish == api.FinishCancelled {
		a.lost(ctx, m.Seq, at.why)
		return
	}
	e, v := a.state.text(m)
	switch v {
	case ignored:
		return
	case further:
		a.left(lead, at)
		a.start(ctx)
		return
	case gap:
		a.lost(ctx, m.Seq, textLost)
		return
	case resend:
		a.redirectAgain(ctx, at)
		return
	case taken:
	}
	if m.Token >= 0 {
		a.bound.Store(a.state.bond.fixed)
		at.watched.received.Add(1)
		a.countToken(e.Choice)
	}
	if e.Finish != api.FinishNone && !slices.Contains(a.state.running(), lead) {
		a.left(lead, at)
	}
	a.event(ctx, e)
}

// event writes an event to the buffer; the last one ends the request.
func (a *requestActor) event(ctx actor.Context, e api.Event) {
	if e.Done {
		a.end(ctx, e)
		return
	}
	a.events.Append(e)
}

func (a *requestActor) countToken(choice int) {
	now := time.Now()
	if a.first.IsZero() {
		a.begun(now) // the word of its step comes from another process: later, or never
		a.first = now
		a.record.note(func(t *Timeline) { t.FirstToken = now })
		a.span.AddEvent(eventFirstToken)
	}
	a.series.Tokens(now, choice, 1)
	a.record.generated.Add(1)
}

// end writes the last event, cancels what still runs and stops the actor.
func (a *requestActor) end(ctx actor.Context, e api.Event) {
	a.watch.waitNoMore(ctx.Self())
	for seq := range a.places {
		a.drop(ctx, seq)
	}
	endRequest(a.span, &e)
	a.requests.ended(a.state.api.Key()) // before the client can see the end: its next request has room
	now := time.Now()
	a.record.note(func(t *Timeline) {
		t.End, t.Finish, t.PromptTokens, t.CachedTokens = now, string(e.Finish), e.Usage.PromptTokens, e.Usage.CachedTokens
	})
	a.events.Append(e)
	a.series.Finished(now, string(e.Finish))
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
	a.end(ctx, a.state.fail(api.StageFailed("request", v)))
	panic(v)
}
