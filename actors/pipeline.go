// Package actors is the pipeline: thin actors around plain state machines.
//
// Submit -> request actor -> tokenizer pool -> request actor -> compute actor
// (KV manager actor beside it) -> detokeniser pool -> request actor -> journal
// -> stream. See docs/architecture.md for the picture.
package actors

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"github.com/rs/zerolog"

	"github.com/millrace/millrace/actors/msg"
	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/compute/sample"
	"github.com/millrace/millrace/compute/sched"
	"github.com/millrace/millrace/kvmgr"
	"github.com/millrace/millrace/metrics"
	"github.com/millrace/millrace/tokenizer"
)

// Config of a pipeline.
type Config struct {
	ModelID      string
	Model        Runner // opened by compute.Open; the pipeline does not close it
	Tokenizer    *tokenizer.Tokenizer
	Context      int           // longest sequence of the model, in tokens
	Sampling     sample.Params // of a request that says nothing, see api.Model
	Sched        sched.Config
	Tokenizers   int           // actors of the tokeniser pool, 0: 2
	Detokenizers int           // actors of the detokeniser pool, 0: 2
	MaxRequests  int           // requests in the pipeline; more are refused, but for tenants below their share. 0: no bound
	StallAfter   time.Duration // no step for so long with work at hand is not ready; 0: 30 s
	GiveUpAfter  time.Duration // no step for so long is a failure for good, see Wait; 0: never
	Metrics      *metrics.Metrics
	Log          zerolog.Logger
}

// Runner runs steps and holds the KV pool: a *compute.Model.
type Runner = compute.Runner

// Pipeline serves requests for one model: an api.Engine.
type Pipeline struct {
	cfg     Config
	system  *actor.ActorSystem
	metrics *metrics.Model
	stages  stages
	log     zerolog.Logger
	created time.Time

	compute      *actor.PID
	kv           *actor.PID
	tokenizers   []*actor.PID
	detokenizers []*actor.PID
	loop         *loop

	seqs, turn atomic.Uint64
	outage     atomic.Pointer[outage] // nil: none
	failed     chan struct{}          // closed at the failure for good
	hung       chan struct{}          // closed before it, when the device does not return

	mu       sync.Mutex
	requests map[string]*actor.PID
	edge     edge
	closed   bool
	empty    chan struct{} // closed when the pipeline is closed and the last request has ended
}

type stages struct{ tokenize, compute, detok *metrics.Stage }

// New starts the actors.
func New(cfg Config) (*Pipeline, error) {
	if cfg.Tokenizers < 0 || cfg.Detokenizers < 0 || cfg.MaxRequests < 0 {
		return nil, fmt.Errorf("actors: %d tokenizers, %d detokenizers, %d requests at most: expected 0 or more",
			cfg.Tokenizers, cfg.Detokenizers, cfg.MaxRequests)
	}
	books, err := kvmgr.New(kvmgr.Config{Slabs: cfg.Model.Slabs(), SlabTokens: cfg.Model.SlabTokens()})
	if err != nil {
		return nil, err
	}
	scheduler, err := sched.New(cfg.Sched)
	if err != nil {
		return nil, err
	}
	if cfg.StallAfter == 0 {
		cfg.StallAfter = 30 * time.Second
	}
	p := &Pipeline{
		cfg: cfg, log: cfg.Log, created: time.Now(),
		system: actor.NewActorSystem(actor.WithLoggerFactory(func(*actor.ActorSystem) *slog.Logger {
			return slog.New(zerolog.NewSlogHandler(cfg.Log.Level(zerolog.WarnLevel)))
		})),
		metrics: cfg.Metrics.Model(cfg.ModelID),
		stages: stages{
			tokenize: cfg.Metrics.Stage("tokenize"),
			compute:  cfg.Metrics.Stage("compute"),
			detok:    cfg.Metrics.Stage("detok"),
		},
		requests: make(map[string]*actor.PID),
		edge:     newEdge(cfg.MaxRequests, cfg.Sched.MaxBatchSize),
		empty:    make(chan struct{}),
		failed:   make(chan struct{}),
		hung:     make(chan struct{}),
	}
	p.system.EventStream.Subscribe(func(e any) {
		if f, ok := e.(*actor.SupervisorEvent); ok {
			p.log.Error().Str("actor", f.Child.Id).Interface("reason", f.Reason).
				Stringer("directive", f.Directive).Msg("an actor failed")
		}
	})
	p.spawn(books, scheduler)
	return p, nil
}

// spawn starts the actors. A failed one is restarted: what it must not lose
// lives outside of it, and every shell answers what it was serving.
func (p *Pipeline) spawn(books *kvmgr.Manager, scheduler *sched.Scheduler) {
	restart := actor.WithGuardian(actor.NewOneForOneStrategy(1000, time.Minute, actor.DefaultDecider))
	one := func(a actor.Actor) *actor.PID {
		return p.system.Root.Spawn(actor.PropsFromProducer(func() actor.Actor { return a }, restart))
	}
	for range orDefault(p.cfg.Tokenizers, 2) {
		p.tokenizers = append(p.tokenizers, one(&tokenizerActor{p: p, tok: p.cfg.Tokenizer}))
	}
	for range orDefault(p.cfg.Detokenizers, 2) {
		p.detokenizers = append(p.detokenizers, one(&detokActor{p: p, tok: p.cfg.Tokenizer, open: map[msg.SeqID]*openText{}}))
	}
	p.kv = one(&kvActor{kv: books, metrics: p.metrics, broken: p.fail})
	p.loop = newLoop(p, scheduler)
	p.compute = one(&computeActor{loop: p.loop})
	p.loop.launch()
	if p.cfg.GiveUpAfter > 0 {
		go p.watch()
	}
}

func orDefault(n, def int) int {
	if n == 0 {
		return def
	}
	return n
}

func (p *Pipeline) nextSeq() msg.SeqID { return msg.SeqID(p.seqs.Add(1)) }

func (p *Pipeline) tokenizer() *actor.PID {
	p.stages.tokenize.Enqueued()
	return p.tokenizers[p.turn.Add(1)%uint64(len(p.tokenizers))]
}

func (p *Pipeline) detokenizer() *actor.PID {
	return p.detokenizers[p.turn.Add(1)%uint64(len(p.detokenizers))]
}

// Submit starts a request.
func (p *Pipeline) Submit(_ context.Context, r *api.Request) (api.Stream, error) {
	if err := p.check(r); err != nil {
		return nil, err
	}
	j := newJournal()
	a := &requestActor{
		p: p, journal: j, places: make(map[msg.SeqID]place),
		state: newRequest(r, p.cfg.Tokenizer.EOS(), modelLimits{
			context: p.cfg.Context, pool: p.cfg.Model.Slabs() * p.cfg.Model.SlabTokens(),
			slabTokens: p.cfg.Model.SlabTokens(), vocab: p.cfg.Model.Vocab(),
		}),
		log: p.log.With().Str("request", r.ID).Logger(),
	}
	pid, err := p.admit(r, a)
	if err != nil {
		return nil, err
	}
	return &stream{journal: j, next: 1, cancel: func() { p.system.Root.Send(pid, &msg.CancelRequest{}) }}, nil
}

func (p *Pipeline) check(r *api.Request) error {
	if r.Model != p.cfg.ModelID {
		return &api.Error{Code: api.CodeNotFound, Reason: "model_not_found", Param: "model",
			Message: fmt.Sprintf("model %q does not exist, expected %q", r.Model, p.cfg.ModelID)}
	}
	if r.N < 1 {
		return api.Invalid("n", "n is %d, expected at least 1", r.N)
	}
	if err := checkBeams(r, p.cfg.Sched.MaxBatchSize); err != nil {
		return err
	}
	return p.Ready()
}

// admit lets a request in while there is room. The bound is at the edge: from
// here on every queue holds at most what was admitted.
func (p *Pipeline) admit(r *api.Request, a *requestActor) (*actor.PID, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch o := p.outage.Load(); {
	case o != nil: // since check; whoever is let in before hears of an outage by tellAll
		return nil, unavailable(o.err)
	case p.closed:
		p.metrics.Rejected("shutdown")
		return nil, errShutdown()
	case p.requests[r.ID] != nil:
		return nil, api.Invalid("id", "request id %q is in use", r.ID)
	}
	if err := p.edge.enter(r, time.Now()); err != nil {
		p.metrics.Rejected(err.Reason)
		return nil, err
	}
	a.series = p.metrics.Queued(r.Arrival, r.N)
	pid := p.system.Root.Spawn(actor.PropsFromProducer(func() actor.Actor { return a },
		actor.WithGuardian(actor.NewOneForOneStrategy(0, 0, func(any) actor.Directive { return actor.StopDirective }))))
	p.requests[r.ID] = pid
	return pid, nil
}

// ended forgets a request.
func (p *Pipeline) ended(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.requests, id)
	p.edge.leave(id, time.Now())
	if p.closed && len(p.requests) == 0 {
		p.closeEmpty()
	}
}

func (p *Pipeline) closeEmpty() {
	select {
	case <-p.empty:
	default:
		close(p.empty)
	}
}

func errShutdown() error {
	return &api.Error{Code: api.CodeUnavailable, RetryAfter: 5 * time.Second, Message: "the server is shutting down"}
}

// Models lists the one model.
func (p *Pipeline) Models() []api.Model {
	return []api.Model{{ID: p.cfg.ModelID, Created: p.created, ContextLength: p.cfg.Context, Sampling: p.cfg.Sampling}}
}

// Ready is nil while steps make progress.
func (p *Pipeline) Ready() error {
	if o := p.outage.Load(); o != nil {
		return unavailable(o.err)
	}
	p.mu.Lock()
	closed := p.closed
	p.mu.Unlock()
	if closed {
		return errShutdown()
	}
	if d := p.loop.stalled(time.Now()); d > p.cfg.StallAfter {
		return unavailable(fmt.Errorf("the device has made no step for %s", d.Round(time.Millisecond)))
	}
	return nil
}

// Tokenize turns text or messages into ids, beside the actors: it is a pure
// call on the caller's goroutine.
func (p *Pipeline) Tokenize(_ context.Context, r *api.TokenizeRequest) ([]int32, error) {
	if r.Model != "" && r.Model != p.cfg.ModelID {
		return nil, p.check(&api.Request{Model: r.Model})
	}
	if r.Messages == nil {
		ids, err := p.cfg.Tokenizer.Encode(r.Prompt, r.AddSpecialTokens)
		if err != nil {
			return nil, api.Invalid("prompt", "%v", err)
		}
		return ids, nil
	}
	return promptTokens(p.cfg.Tokenizer, &api.Request{
		Messages: r.Messages, Tools: r.Tools, TemplateArgs: r.TemplateArgs,
		ContinueFinal: r.ContinueFinal, NoGenerationPrompt: r.NoGenerationPrompt,
	})
}

// Detokenize turns ids into text.
func (p *Pipeline) Detokenize(_ context.Context, model string, tokens []int32) (string, error) {
	if model != "" && model != p.cfg.ModelID {
		return "", p.check(&api.Request{Model: model})
	}
	text, err := p.cfg.Tokenizer.Decode(tokens, false)
	if err != nil {
		return "", api.Invalid("tokens", "%v", err)
	}
	return text, nil
}

// KVState is the KV manager's books, for /debug/kv.
func (p *Pipeline) KVState(ctx context.Context) (*KVState, error) {
	wait := time.Second
	if d, ok := ctx.Deadline(); ok {
		wait = time.Until(d)
	}
	answer, err := p.system.Root.RequestFuture(p.kv, &kvSnapshot{}, wait).Result()
	if err != nil {
		return nil, fmt.Errorf("actors: the KV manager did not answer: %w", err)
	}
	state, ok := answer.(*KVState)
	if !ok {
		return nil, fmt.Errorf("actors: the KV manager answered with a %T", answer)
	}
	return state, nil
}

// Running is the number of requests in the pipeline.
func (p *Pipeline) Running() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.requests)
}

// tellAll sends a message to every request.
func (p *Pipeline) tellAll(m any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, pid := range p.requests {
		p.system.Root.Send(pid, m)
	}
}

// Close refuses new requests, lets the running ones finish until ctx ends,
// then ends them with a clear error, and stops the actors.
func (p *Pipeline) Close(ctx context.Context) error {
	p.mu.Lock()
	p.closed = true
	if len(p.requests) == 0 {
		p.closeEmpty()
	}
	p.mu.Unlock()
	select {
	case <-p.empty:
	case <-ctx.Done():
		p.tellAll(&msg.CancelRequest{Err: errShutdown()})
		select {
		case <-p.empty:
		case <-time.After(p.cfg.StallAfter):
			return errors.New("actors: the device did not end its step")
		}
	}
	p.loop.stop()
	select {
	case <-p.loop.stopped:
	case <-p.hung:
		return errors.New("actors: the device did not end its step")
	}
	p.system.Shutdown()
	return nil
}
