// Package detok is the pool of detokenizer actors: the tokens of a step to the text of each
// sequence, with stop strings.
//
// A sequence stays with one actor. The package must not know who made the tokens or what a
// request is: it sends Text to Reply, and Cancel to Compute at a stop string.
package detok

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"go.opentelemetry.io/otel/trace"

	"github.com/millrace/millrace/actors/msg"
	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/compute/sample"
	"github.com/millrace/millrace/detok"
	"github.com/millrace/millrace/metrics"
	"github.com/millrace/millrace/tokenizer"
	"github.com/millrace/millrace/tracing"
)

// Pool is the detokenizers of this process.
type Pool struct {
	cfg   Config
	pids  []*actor.PID
	names []string
	turn  atomic.Uint64
	load  atomic.Int64 // texts open
}

// Config is what detokenizers need.
type Config struct {
	Actors    int // 0: 2
	Spawn     func(name string, a actor.Actor) (*actor.PID, error)
	Tokenizer *tokenizer.Tokenizer
	Stage     *metrics.Stage // of detokenizing
	Tracer    trace.Tracer
}

// NewPool spawns the detokenizers.
func NewPool(cfg Config) (*Pool, error) {
	p := &Pool{cfg: cfg}
	for i := range cmp.Or(cfg.Actors, 2) {
		pid, err := cfg.Spawn(fmt.Sprint("detok-", i), newDetokActor(&p.cfg, &p.load))
		if err != nil {
			return nil, err
		}
		p.pids, p.names = append(p.pids, pid), append(p.names, pid.Id)
	}
	return p, nil
}

// Next returns the detokenizer of the next sequence.
func (p *Pool) Next() *actor.PID { return p.pids[p.turn.Add(1)%uint64(len(p.pids))] }

// Names are the names of the actors.
func (p *Pool) Names() []string { return p.names }

// Load is the number of texts that are open.
func (p *Pool) Load() int { return int(p.load.Load()) }

// Sweep forgets texts that nobody ends any more: of gateways that are not alive, or
// without a token for a long time.
func (p *Pool) Sweep(root *actor.RootContext, now time.Time, alive func(node string) bool) {
	for _, pid := range p.pids {
		root.Send(pid, &sweep{now: now, alive: alive})
	}
}

// detokActor turns the tokens of its sequences into text. The table of
// sequences outlives a restart of the actor.
type detokActor struct {
	*Config
	load *atomic.Int64 // of the pool
	open map[msg.SeqID]*openText
	// early are the last tokens without a text, a ring. Its OpenText comes from another process than they do, so it may be on its way.
	early []msg.Token
	next  int // place in early
}

// mostEarly bounds them. Most are of texts that have ended, at a stop string.
const mostEarly = 512

func newDetokActor(cfg *Config, load *atomic.Int64) *detokActor {
	return &detokActor{Config: cfg, load: load, open: make(map[msg.SeqID]*openText)}
}

type openText struct {
	reply   *actor.PID
	compute *actor.PID
	stream  *detok.Stream
	next    int // index of the token that comes next
	options detok.Options
	used    time.Time // last
	span    trace.Span
}

// sweep makes an actor forget texts that nobody ends any more.
type sweep struct {
	now   time.Time
	alive func(node string) bool
}

// textIdle is when a text is forgotten although its request may live: the message
// that ended it was lost. If it continues, its text is lost and starts again.
const textIdle = 10 * time.Minute

func (a *detokActor) sweep(m *sweep) {
	for seq, o := range a.open {
		idle := m.now.Sub(o.used)
		if idle > textIdle || idle > msg.OrphansAfter && !m.alive(o.reply.Address) {
			a.forget(seq)
		}
	}
}

func (a *detokActor) forget(seq msg.SeqID) {
	if o := a.open[seq]; o != nil {
		o.span.End()
		delete(a.open, seq)
		a.load.Add(-1)
	}
}

func (a *detokActor) Receive(ctx actor.Context) {
	switch m := ctx.Message().(type) {
	case *msg.OpenText:
		defer func() {
			if v := recover(); v != nil {
				a.fail(ctx, m.Seq, &openText{reply: m.Reply, compute: m.Compute}, v)
				panic(v)
			}
		}()
		a.begin(ctx, m)
	case *msg.CloseText:
		if o := a.open[m.Seq]; o != nil && (m.Owner == "" || m.Owner == o.reply.Address) {
			a.forget(m.Seq)
		}
	case *sweep:
		a.sweep(m)
	case *msg.Tokens:
		start := time.Now()
		var failure any
		for i := range m.Tokens {
			if v := a.token(ctx, start, &m.Tokens[i]); v != nil {
				failure = v
			}
		}
		a.Stage.Served(time.Since(start))
		if failure != nil {
			panic(failure) // for the supervisor, after every sequence had its answer
		}
		msg.Recycle(m)
	}
}

// begin starts a sequence's text. The text of its history has been sent: only
// what follows it is.
func (a *detokActor) begin(ctx actor.Context, m *msg.OpenText) {
	o := &openText{reply: m.Reply, compute: m.Compute, stream: detok.New(a.Tokenizer, m.Options), next: len(m.History), options: m.Options,
		used: time.Now()}
	o.span = tracing.Stage(a.Tracer, m.Trace, "detokenize")
	for _, id := range m.History {
		if _, stopped := o.stream.Push(id); stopped {
			ctx.Send(m.Reply, &msg.Text{Seq: m.Seq, Token: -1, Index: len(m.History), Finish: api.FinishStop, Stop: o.stream.StopString()})
			o.span.End()
			return
		}
	}
	if a.open[m.Seq] == nil {
		a.load.Add(1)
	}
	a.open[m.Seq] = o
	a.catchUp(ctx, m.Seq, o.used)
}

// catchUp takes the tokens of a text that came before it was open.
func (a *detokActor) catchUp(ctx actor.Context, seq msg.SeqID, now time.Time) {
	var came []msg.Token
	for i := range a.early {
		if t := &a.early[i]; t.Seq == seq {
			came = append(came, *t)
			*t = msg.Token{}
		}
	}
	slices.SortStableFunc(came, func(x, y msg.Token) int { return x.Index - y.Index })
	for i := range came {
		if v := a.token(ctx, now, &came[i]); v != nil {
			panic(v)
		}
	}
}

// wait keeps a token whose text is not open. The end of a sequence that was cancelled, or failed, is of no text that will be opened.
func (a *detokActor) wait(t *msg.Token) {
	if t.Finish == api.FinishCancelled || t.Finish == api.FinishError {
		return
	}
	if len(a.early) < mostEarly {
		a.early = append(a.early, *t)
		return
	}
	a.early[a.next%mostEarly] = *t
	a.next++
}

// token sends what t adds to its sequence's text. Tokens of a sequence that
// has ended here (a stop string) are the step or two that were already under
// way; they are dropped, as are those that were there. After one that is missing
// there is no text: the request learns of the gap. A panic ends the sequence and is returned.
func (a *detokActor) token(ctx actor.Context, now time.Time, t *msg.Token) (failure any) {
	o := a.open[t.Seq]
	if o == nil {
		a.wait(t)
		return nil
	}
	if t.ID >= 0 && t.Index < o.next {
		return nil
	}
	if t.ID >= 0 && t.Index > o.next {
		ctx.Send(o.reply, &msg.Text{Seq: t.Seq, Token: t.ID, Index: t.Index, Gap: true})
		return nil
	}
	defer func() {
		if failure = recover(); failure != nil {
			a.fail(ctx, t.Seq, o, failure)
		}
	}()
	o.used = now
	out := msg.NewText()
	*out = msg.Text{Seq: t.Seq, Token: t.ID, Cached: t.Cached, Index: t.Index, Finish: t.Finish, Lost: t.Lost, Err: t.Err}
	if t.Extra != nil {
		out.Extra = &api.Extra{Vector: t.Extra.Vector, Prompt: a.promptLogprobs(t.Extra)}
	}
	stopped := false
	if t.ID >= 0 {
		o.next++
		if !t.Stopped || o.options.IncludeStop {
			out.Text, stopped = o.stream.Push(t.ID)
		}
		out.Logprobs = a.logprobs(t)
	}
	if stopped && t.Finish != api.FinishError {
		if t.Finish == api.FinishNone {
			ctx.Send(o.compute, &msg.Cancel{Seq: t.Seq, Owner: o.reply.Address})
		}
		out.Finish, out.Stop = api.FinishStop, o.stream.StopString()
	}
	if out.Finish != api.FinishNone {
		switch {
		case stopped:
		case out.Finish == api.FinishLength:
			out.Text += o.stream.Cut()
		default:
			out.Text += o.stream.Flush()
		}
		a.forget(t.Seq)
	}
	ctx.Send(o.reply, out)
	return nil
}

// fail ends a sequence after a panic.
func (a *detokActor) fail(ctx actor.Context, seq msg.SeqID, o *openText, panicked any) {
	a.forget(seq)
	ctx.Send(o.reply, &msg.Text{Seq: seq, Token: -1, Finish: api.FinishError, Err: api.StageFailed("detokenize", panicked)})
	ctx.Send(o.compute, &msg.Cancel{Seq: seq, Owner: o.reply.Address})
}

func (a *detokActor) logprobs(t *msg.Token) []api.TokenLogprob {
	if t.Top == nil {
		return nil
	}
	l := a.logprob(sample.Alternative{Token: t.ID, Logprob: t.Logprob})
	l.Top = make([]api.TokenLogprob, len(t.Top))
	for i, alt := range t.Top {
		l.Top[i] = a.logprob(alt)
	}
	return []api.TokenLogprob{l}
}

// promptLogprobs are those of all tokens of a prompt, of which the first one was not predicted.
func (a *detokActor) promptLogprobs(x *msg.Extra) []api.TokenLogprob {
	if !x.Scored {
		return nil
	}
	list := []api.TokenLogprob{a.logprob(sample.Alternative{Token: x.First, Logprob: float32(math.NaN())})}
	for _, s := range x.Prompt {
		l := a.logprob(sample.Alternative{Token: s.Token, Logprob: s.Logprob})
		l.Rank, l.Top = s.Rank, make([]api.TokenLogprob, len(s.Top))
		for i, alt := range s.Top {
			l.Top[i] = a.logprob(alt)
		}
		list = append(list, l)
	}
	return list
}

func (a *detokActor) logprob(alt sample.Alternative) api.TokenLogprob {
	return api.TokenLogprob{
		Token: alt.Token, Logprob: alt.Logprob,
		Text: a.Tokenizer.TokenText(alt.Token), Bytes: a.Tokenizer.TokenBytes(alt.Token),
	}
}
