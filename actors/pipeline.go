// Package actors is the pipeline: thin actors around plain state machines.
//
// Submit -> request actor -> tokenizer pool -> request actor -> compute actor
// (KV manager actor beside it) -> detokenizer pool -> request actor -> journal
// -> stream. See docs/architecture.md for the picture.
package actors

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"
	"go.opentelemetry.io/otel/trace"

	"github.com/millrace/millrace/actors/msg"
	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/cluster"
	"github.com/millrace/millrace/cluster/bridge"
	"github.com/millrace/millrace/cluster/route"
	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/compute/sample"
	"github.com/millrace/millrace/compute/sched"
	"github.com/millrace/millrace/metrics"
	"github.com/millrace/millrace/tokenizer"
	"github.com/millrace/millrace/tracing"
)

// Config of a pipeline: the part of it that this process has.
type Config struct {
	Roles     []cluster.Role       // nil: all
	ModelID   string               // of tokenize, compute and detok
	Model     Runner               // of compute, opened by compute.Open; the pipeline does not close it
	Tokenizer *tokenizer.Tokenizer // of tokenize and detok

	Context      int           // longest sequence of the model, in tokens
	Sampling     sample.Params // of a request that says nothing, see api.Model
	Backend      string        // what computes, for others to see
	Weights      string        // as Backend
	Numerics     string        // of compute: digest, see api.Pin
	Class        string        // of compute: name of the numerics class, for others to see
	Text         string        // of tokenize, compute and detok: digest of the checkpoint's tokenizer, see api.Pin
	Sched        sched.Config
	Tokenizers   int           // actors of the tokenizer pool, 0: 2
	Detokenizers int           // actors of the detokenizer pool, 0: 2
	MaxQueueWait time.Duration // a request that would wait longer until its prompt is begun is refused; 0: none
	MaxRequests  int           // requests of a gateway for each worker; more are refused, but for tenants below their share. 0: no bound
	StallAfter   time.Duration // no step for so long with work at hand is not ready; 0: 30 s
	GiveUpAfter  time.Duration // no step for so long is a failure for good, see Wait; 0: never

	admitPatience time.Duration // see loop.admit; 0: its default

	Cluster Cluster
	Metrics *metrics.Metrics
	Tracer  trace.Tracer // nil: no traces
	Log     zerolog.Logger
}

// Cluster is how a process is one of several.
type Cluster struct {
	Conn          *nats.Conn    // nil: it is alone, with all roles. The pipeline does not close it
	Beat          time.Duration // see cluster.Config
	Dead          time.Duration // as Beat
	ResumeTimeout time.Duration // a request waits so long for a worker to go on with; 0: 60 s
	HTTP          string        // address of health and metrics, for others to see
	Version       string        // as HTTP
}

// Runner runs steps and holds the KV pool: a *compute.Model.
type Runner = compute.Runner

// Pipeline serves requests: an api.Engine where it has the gateway's role.
type Pipeline struct {
	cfg      Config
	key      cluster.Key
	name     string // the node's address
	system   *actor.ActorSystem
	registry *cluster.Registry
	bridge   *bridge.Bridge // nil: alone
	router   router
	watch    *watch
	metrics  *metrics.Model // of ModelID
	cluster  *metrics.Cluster
	stages   stages
	tracer   trace.Tracer
	log      zerolog.Logger
	created  time.Time

	watcher      *actor.PID // of gateway
	worker       *worker    // nil without the role, as the next
	kv           *kvManager
	tokenizers   *tokenizePool // nil without the role, as the next
	detokenizers *detokPool
	texting      gate // of Tokenize and Detokenize

	seqs, turn atomic.Uint64
	health     *health
	quit       chan struct{} // closed at the end, for the goroutines beside the actors
	beside     sync.WaitGroup

	mu       sync.Mutex
	requests map[string]*actor.PID // by api.Request.Key, as in edge
	edge     edge
	closed   bool
}

type stages struct{ tokenize, compute, detok *metrics.Stage }

// New starts the actors.
func New(cfg Config) (*Pipeline, error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	key := cluster.NewKey()
	node := key.Node()
	p := &Pipeline{
		cfg: cfg, key: key, name: node.String(), created: time.Now(),
		log:     cfg.Log.With().Stringer("node", node).Logger(),
		system:  newSystem(cfg.Log),
		metrics: cfg.Metrics.Model(cfg.ModelID),
		cluster: cfg.Metrics.Cluster(),
		tracer:  cfg.Tracer,
		stages: stages{
			tokenize: cfg.Metrics.Stage("tokenize"),
			compute:  cfg.Metrics.Stage("compute"),
			detok:    cfg.Metrics.Stage("detok"),
		},
		texting:  newGate(cmp.Or(cfg.Tokenizers, 2), mostTexts),
		requests: make(map[string]*actor.PID),
		edge:     newEdge(cfg.MaxRequests, cfg.Sched.MaxBatchSize, cfg.MaxQueueWait, time.Now()),
		quit:     make(chan struct{}),
	}
	p.system.ProcessRegistry.Address = p.name
	p.seqs.Store(node.First())
	p.health = newHealth(p.tellAll, p.log)
	p.watch = newWatch(p.name, cfg.Cluster.Dead, cfg.StallAfter)
	p.router.init(cfg)
	p.system.EventStream.Subscribe(func(e any) {
		if f, ok := e.(*actor.SupervisorEvent); ok {
			p.log.Error().Str("actor", f.Child.Id).Interface("reason", f.Reason).
				Stringer("directive", f.Directive).Msg("an actor failed")
		}
	})
	if err := p.spawn(); err != nil {
		return nil, err
	}
	if err := p.join(); err != nil {
		p.stopActors()
		return nil, err
	}
	return p, nil
}

// complete checks a configuration and fills in its defaults.
func (c *Config) complete() error {
	if c.Tokenizers < 0 || c.Detokenizers < 0 || c.MaxRequests < 0 || c.MaxQueueWait < 0 {
		return fmt.Errorf("actors: %d tokenizers, %d detokenizers, %d requests at most, a wait of %s at most: expected 0 or more",
			c.Tokenizers, c.Detokenizers, c.MaxRequests, c.MaxQueueWait)
	}
	if c.Roles == nil {
		c.Roles = cluster.Roles()
	}
	if c.Tracer == nil {
		c.Tracer = tracing.Off()
	}
	if c.Cluster.Conn == nil && len(c.Roles) < len(cluster.Roles()) {
		return fmt.Errorf("actors: roles %v alone, expected all of %v without a NATS connection", c.Roles, cluster.Roles())
	}
	for d, def := range map[*time.Duration]time.Duration{
		&c.StallAfter: 30 * time.Second, &c.Cluster.Beat: cluster.DefaultBeat, &c.Cluster.Dead: cluster.DefaultDead,
		&c.Cluster.ResumeTimeout: time.Minute,
	} {
		if *d == 0 {
			*d = def
		}
	}
	return nil
}

func (p *Pipeline) has(r cluster.Role) bool { return slices.Contains(p.cfg.Roles, r) }

// spawn starts the actors. A failed one is restarted: what it must not lose
// lives outside of it, and every shell answers what it was serving.
func (p *Pipeline) spawn() (err error) {
	restart := actor.WithGuardian(actor.NewOneForOneStrategy(1000, time.Minute, actor.DefaultDecider))
	spawn := func(name string, a actor.Actor) (*actor.PID, error) {
		return p.system.Root.SpawnNamed(actor.PropsFromProducer(func() actor.Actor { return a }, restart), name)
	}
	spawnBusy := func(name string, a actor.Actor) (*actor.PID, error) { // an actor that gets a message with every step or token
		return p.system.Root.SpawnNamed(actor.PropsFromProducer(func() actor.Actor { return a }, restart, actor.WithMailbox(newMailbox)), name)
	}
	if p.has(cluster.Gateway) {
		if p.watcher, err = spawn("watch", &watchActor{p}); err != nil {
			return err
		}
	}
	if p.has(cluster.Tokenize) {
		p.tokenizers, err = newTokenizePool(tokenizeConfig{
			Actors: p.cfg.Tokenizers, Spawn: spawn, Tokenizer: p.cfg.Tokenizer, Text: p.cfg.Text,
			Longest: p.longest, Stage: p.stages.tokenize, Tracer: p.tracer,
		})
	}
	if p.has(cluster.Detok) && err == nil {
		p.detokenizers, err = newDetokPool(detokConfig{
			Actors: p.cfg.Detokenizers, Spawn: spawnBusy, Tokenizer: p.cfg.Tokenizer, Stage: p.stages.detok, Tracer: p.tracer,
		})
	}
	if err != nil || !p.has(cluster.Compute) {
		return err
	}
	model := p.cfg.Model
	p.kv, err = newKVManager(kvConfig{
		Root: p.system.Root, Spawn: spawnBusy, Slabs: model.Slabs(), SlabTokens: model.SlabTokens(), Broken: p.health.Fail, Metrics: p.metrics,
	})
	if err != nil {
		return err
	}
	c := workerConfig{
		Node: p.name, Root: p.system.Root, Spawn: spawnBusy, KV: p.kv.PID(), Runner: model, Sched: p.cfg.Sched, Numerics: p.cfg.Numerics,
		AdmitPatience: p.cfg.admitPatience, GiveUpAfter: p.cfg.GiveUpAfter, Faults: p.health,
		Metrics: p.metrics, Stage: p.stages.compute, Detok: p.stages.detok, Tracer: p.tracer, Log: p.log,
	}
	if p.worker, err = newWorker(c); err != nil {
		return err
	}
	p.worker.Start()
	return nil
}

// join makes this process one of its cluster, and starts what looks after it.
func (p *Pipeline) join() (err error) {
	if conn := p.cfg.Cluster.Conn; conn != nil {
		if p.bridge, err = bridge.New(p.system, msg.Codec{}, conn, p.arrived, p.cluster, p.log); err != nil {
			return err
		}
	}
	p.registry, err = cluster.Join(cluster.Config{
		Conn: p.cfg.Cluster.Conn, Beat: p.cfg.Cluster.Beat, Dead: p.cfg.Cluster.Dead, Key: p.key,
		Self: p.Member, Metrics: p.cluster, Log: p.log,
	})
	if err != nil {
		return err
	}
	if p.has(cluster.Gateway) {
		p.beside.Go(p.look)
	}
	p.beside.Go(p.care)
	return nil
}

// arrived counts what came from another process into a stage.
func (p *Pipeline) arrived(m any) {
	switch m.(type) {
	case *msg.Tokenize, *msg.Detokenize:
		if p.tokenizers != nil {
			p.tokenizers.Enqueued()
		}
	case *msg.Tokens:
		p.stages.detok.Enqueued()
	}
}

func (p *Pipeline) nextSeq() msg.SeqID { return msg.SeqID(p.seqs.Add(1)) }

// Submit starts a request.
func (p *Pipeline) Submit(ctx context.Context, r *api.Request) (api.Stream, error) {
	m, err := p.check(r)
	if err != nil {
		return nil, err
	}
	j := newJournal()
	a := &requestActor{
		p: p, journal: j, places: make(map[msg.SeqID]*place),
		state: newRequest(r, modelLimits{
			context: m.context, pool: m.slabs * m.slabTokens, slabTokens: m.slabTokens, vocab: m.vocab,
		}),
		log: p.log.With().Str("request", r.ID).Logger(),
	}
	pid, err := p.admit(ctx, r, a)
	if err != nil {
		return nil, err
	}
	return &stream{journal: j, next: 1, cancel: func() {
		p.system.Root.Send(pid, &msg.CancelRequest{Moved: errors.Is(context.Cause(ctx), api.ErrMoved)})
	}}, nil
}

func (p *Pipeline) check(r *api.Request) (*model, error) {
	m, err := p.model(r.Model)
	if err != nil {
		return nil, err
	}
	if r.N < 1 {
		return nil, api.Invalid("n", "n is %d, expected at least 1", r.N)
	}
	if err := checkBeams(r, m.capacity); err != nil {
		return nil, err
	}
	return m, p.serves(r.Model)
}

// admit lets a request in while there is room. The bound is at the edge: from
// here on every queue holds at most what was admitted.
func (p *Pipeline) admit(ctx context.Context, r *api.Request, a *requestActor) (*actor.PID, error) {
	limit, batch := p.mostRequests()
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.closed:
		p.metrics.Rejected("shutdown")
		return nil, errShutdown()
	case p.requests[r.Key()] != nil:
		return nil, api.Invalid("id", "request id %q is in use", r.ID)
	}
	// Whoever is let in before an outage hears of it by tellAll, others are not let in.
	if err := p.health.Err(); err != nil && !p.elsewhere(&route.Query{Model: r.Model}, p.name) {
		return nil, api.Unavailable(err)
	}
	p.edge.resize(limit, batch)
	if err := p.edge.enter(r, time.Now()); err != nil {
		p.metrics.Rejected(err.Reason)
		return nil, err
	}
	a.series = p.series(r.Model).Queued(r.Arrival, r.N)
	a.span = p.requestSpan(ctx, r)
	pid := p.system.Root.Spawn(actor.PropsFromProducer(func() actor.Actor { return a }, actor.WithMailbox(newMailbox),
		actor.WithGuardian(endOnFailure)))
	p.requests[r.Key()] = pid
	return pid, nil
}

// begun says that a request's prompt is begun: it waits no more.
func (p *Pipeline) begun(key string, at time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.edge.begun(key, at)
}

// ended forgets a request.
func (p *Pipeline) ended(key string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.requests, key)
	p.edge.leave(key)
}

func errShutdown() error {
	return &api.Error{Code: api.CodeUnavailable, Reason: "stopping", RetryAfter: 5 * time.Second, Message: "the server is shutting down"}
}

// Ready is nil while this process can do its part.
func (p *Pipeline) Ready() error {
	if p.isClosed() {
		return errShutdown()
	}
	if p.has(cluster.Compute) {
		if err := p.computes(); err == nil || !p.has(cluster.Gateway) || !p.elsewhere(&route.Query{Model: p.cfg.ModelID}, p.name) {
			return err
		}
	}
	if p.has(cluster.Gateway) {
		return p.servesAny()
	}
	return nil
}

// computes is nil while steps make progress.
func (p *Pipeline) computes() error {
	if err := p.health.Err(); err != nil {
		return api.Unavailable(err)
	}
	if d := p.worker.Stalled(time.Now()); d > p.cfg.StallAfter {
		return api.Unavailable(fmt.Errorf("the device has made no step for %s", d.Round(time.Millisecond)))
	}
	return nil
}

func (p *Pipeline) isClosed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.closed
}

// KVState is the KV manager's books, for /debug/kv.
func (p *Pipeline) KVState(ctx context.Context) (*KVState, error) {
	if p.kv == nil {
		return nil, errors.New("actors: this process has no KV memory: it does not compute")
	}
	return p.kv.State(ctx)
}

// Wait blocks until ctx ends, and returns nil, or until the process has failed
// for good, and returns why: it should end then.
func (p *Pipeline) Wait(ctx context.Context) error { return p.health.Wait(ctx) }

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

// longest is the context of this process's model, in tokens: the least of its workers'. 0: it is not known.
func (p *Pipeline) longest() int {
	least := p.cfg.Context
	for _, m := range p.registry.Others() {
		if w := m.Worker; w != nil && m.Model == p.cfg.ModelID && (least == 0 || w.Context < least) {
			least = w.Context
		}
	}
	return least
}
