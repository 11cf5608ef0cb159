// Package gateway takes requests: admission, a state machine and an actor for each request,
// the choice of its tokenizer, worker and detokenizer, and the watch over the workers that
// have its sequences.
//
// It must not know how a stage works, or whether it is in this process: an actor.PID says
// where to send a message, and nothing else does.
package gateway

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"github.com/rs/zerolog"
	"go.opentelemetry.io/otel/trace"

	"github.com/millrace/millrace/actors/msg"
	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/cluster"
	"github.com/millrace/millrace/cluster/route"
	"github.com/millrace/millrace/metrics"
)

// Gateway runs requests: an api.Engine, but for its end.
type Gateway struct {
	cfg      Config
	routes   *routing
	models   *models
	watch    *watch
	caches   *prefixes
	prefixes *actor.PID // gets snapshots for caches
	requests *requests
	calls    gate // of Tokenize and Detokenize
	series   *modelSeries
	history  history
	seqs     atomic.Uint64
	shared   requestDeps
}

// Config is what a gateway needs.
type Config struct {
	Node         string // name of this process
	FirstSeq     uint64 // numbers of sequences come after it
	System       *actor.ActorSystem
	Spawn        func(name string, a actor.Actor) (*actor.PID, error)
	SpawnRequest func(a actor.Actor) *actor.PID // a failure ends it
	Cluster      Membership
	Local        Local
	MaxRequests  int           // see Config
	MaxQueueWait time.Duration // as MaxRequests
	MaxCalls     int           // of Tokenize and Detokenize that are at tokenizers at once
	Dead         time.Duration // a worker that reports nothing of a sequence for this time has lost it
	StallAfter   time.Duration // as Dead, for a step
	Failover     time.Duration // a request without a place ends with an error after it
	Follow       Follow        // nil: this process is alone
	Metrics      *metrics.Metrics
	Tracer       trace.Tracer
	Log          zerolog.Logger
}

// Membership is what a gateway knows of the processes around it.
type Membership interface {
	Members() []*cluster.Member // the live ones, this process among them
	Others() []*cluster.Member  // without this process
	Alive(node string) bool
	Finished(node string) bool           // it left, and had none of this process's sequences in hand
	Probe(node string) uint64            // sends a probe and returns its number
	Died(node string, probe uint64) bool // it was there at that probe, and ended since without a goodbye
	Changed() <-chan struct{}            // receives a value after a node has joined, or a probe found a dead one; for one reader
	Partitioned() bool                   // no other process can be reached: judge nobody
}

// Local is what this process has itself of what a request needs.
type Local struct {
	Model        string         // "": none
	Text         string         // digest of Model's tokenizer
	Series       *metrics.Model // of Model
	Worker       *actor.PID     // nil: none
	MaxBatchSize int            // of Worker
	Err          func() error   // why Worker accepts nothing: its device failed
	Computes     func() error   // as Err, or no step makes progress
	Tokenizers   Pool           // nil: none
	Detokenizers Pool           // as Tokenizers
}

// err is why the worker accepts nothing.
func (l *Local) err() error {
	if l.Worker == nil {
		return nil
	}
	return l.Err()
}

// Pool is the actors of a stage.
type Pool interface {
	Next() *actor.PID
	Load() int // messages or sequences in hand
}

// New spawns the watch of a gateway. Its requests are spawned as they come.
func New(cfg Config) (*Gateway, error) {
	g := &Gateway{
		cfg:      cfg,
		models:   newModels(cfg.Cluster),
		watch:    newWatch(cfg.Node, cfg.Dead, cfg.StallAfter),
		caches:   newPrefixes(&cfg),
		calls:    newGate(cfg.MaxCalls, mostTexts),
		series:   newModelSeries(cfg.Metrics, cfg.Local.Model, cfg.Local.Series),
		requests: newRequests(newAdmission(cfg.MaxRequests, cfg.Local.MaxBatchSize, cfg.MaxQueueWait, time.Now())),
	}
	g.seqs.Store(cfg.FirstSeq)
	g.routes = newRouting(&cfg, g.watch, g.caches)
	var err error
	if g.prefixes, err = cfg.Spawn("prefixes", g.caches); err != nil {
		return nil, err
	}
	watcher, err := cfg.Spawn("watch", &watchActor{node: cfg.Node, stall: cfg.StallAfter, watch: g.watch, routes: g.routes})
	if err != nil {
		return nil, err
	}
	g.shared = requestDeps{
		node: cfg.Node, routes: g.routes, models: g.models, watch: g.watch, watcher: watcher, requests: g.requests, cluster: cfg.Cluster,
		serves: g.serves, nextSeq: func() msg.SeqID { return msg.SeqID(g.seqs.Add(1)) },
		moved: cfg.Metrics.Cluster().Moved, failover: cfg.Failover,
	}
	return g, nil
}

// Submit starts a request.
func (g *Gateway) Submit(ctx context.Context, r *api.Request) (api.Stream, error) {
	m, err := g.check(r)
	if err != nil {
		return nil, err
	}
	a, pid, err := g.admit(ctx, r, m)
	if err != nil {
		return nil, err
	}
	return newStream(a.events, func() {
		g.cfg.System.Root.Send(pid, &msg.CancelRequest{Moved: errors.Is(context.Cause(ctx), api.ErrTakenOver)})
	}), nil
}

func (g *Gateway) newRequestActor(r *api.Request, m *model) *requestActor {
	return &requestActor{
		requestDeps: &g.shared, events: api.NewBuffer(), places: make(map[msg.SeqID]*place), handovers: make(map[int]handover),
		state: newRequest(r, modelLimits{
			context: m.ContextLength, shortened: m.Shortened, pool: m.slabs * m.slabTokens, single: m.longest * m.slabTokens,
			slabTokens: m.slabTokens, vocab: m.Vocab, rows: m.Embedding.Rows,
		}),
		log: g.cfg.Log.With().Str("request", r.ID).Logger(),
	}
}

func (g *Gateway) check(r *api.Request) (*model, error) {
	m, err := g.models.get(r.Model)
	if err != nil {
		return nil, err
	}
	if r.N < 1 {
		return nil, api.Invalid("n", "n is %d, expected at least 1", r.N)
	}
	if err := checkBeams(r, m); err != nil {
		return nil, err
	}
	if err := checkGrammar(r); err != nil {
		return nil, err
	}
	if err := checkPool(r, m); err != nil {
		return nil, err
	}
	if err := g.serves(r.Model); err != nil || r.Equal == nil {
		return m, err
	}
	return m, g.routes.equals(r.Model, r.Equal)
}

// admit lets a request in while there is room. The bound is here: from
// here on every queue holds at most the admitted requests. A refused request has no actor and no
// buffer: under overload most requests are refused.
func (g *Gateway) admit(ctx context.Context, r *api.Request, m *model) (*requestActor, *actor.PID, error) {
	limit, batch := g.mostRequests()
	gateways := g.gateways()
	t := g.requests
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.closed:
		g.cfg.Local.Series.Rejected("shutdown")
		return nil, nil, ErrStopping()
	case t.pids[r.Key()] != nil:
		return nil, nil, api.Invalid("id", "request id %q is in use", r.ID)
	}
	// Tell notifies the requests that were admitted before an outage. Others are refused.
	if err := g.cfg.Local.err(); err != nil && !g.Elsewhere(r.Model) {
		return nil, nil, api.Unavailable(err)
	}
	t.admission.resize(limit, batch, gateways)
	if err := t.admission.enter(r, time.Now()); err != nil {
		g.cfg.Local.Series.Rejected(err.Reason)
		return nil, nil, err
	}
	a := g.newRequestActor(r, m)
	arrival := r.Arrival
	if r.Priority == api.PriorityIdle { // its arrival may be that of a batch, hours ago
		arrival = time.Now()
	}
	a.series = g.series.of(r.Model).Queued(arrival, r.N)
	a.span = requestSpan(ctx, g.cfg.Tracer, r)
	a.record = g.history.begin(r)
	pid := g.cfg.SpawnRequest(a)
	t.pids[r.Key()] = pid
	return a, pid, nil
}

// Elsewhere says whether a worker of another process could take a request for a model.
func (g *Gateway) Elsewhere(model string) bool {
	return g.routes.elsewhere(&route.Query{Model: model}, g.cfg.Node)
}

// mostRequests is what this gateway holds at most, and how many of them run at
// once: what the workers that are there can. size 0: no bound.
func (g *Gateway) mostRequests() (size, batch int) {
	if l := &g.cfg.Local; l.Worker != nil {
		size, batch = g.cfg.MaxRequests, l.MaxBatchSize
	}
	for _, m := range g.cfg.Cluster.Others() {
		if w := m.Worker; w != nil && !m.Draining {
			size, batch = size+w.Capacity+w.Queue, batch+w.Capacity
		}
	}
	if g.cfg.MaxRequests == 0 {
		return 0, batch
	}
	return max(size, 1), batch
}

// gateways is the number of gateways, with this one.
func (g *Gateway) gateways() int {
	n := 1
	for _, m := range g.cfg.Cluster.Others() {
		if m.Has(cluster.Gateway) && !m.Draining {
			n++
		}
	}
	return n
}

// IdleRoom is how many sequences of api.PriorityIdle this gateway may have now. It is 0 while another request waits.
func (g *Gateway) IdleRoom() int {
	_, batch := g.mostRequests()
	gateways := g.gateways()
	t := g.requests
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed || batch == 0 || t.admission.waits.Inside() > 0 {
		return 0
	}
	return idleShare(batch, gateways)
}

// Ready is nil when at least one model can be served.
func (g *Gateway) Ready() error {
	g.models.refresh()
	var err error = api.Unavailable(fmt.Errorf("no worker is there"))
	for _, m := range g.Models() {
		if err = g.serves(m.ID); err == nil {
			return nil
		}
	}
	return err
}

// serves is nil when a model can be served here.
func (g *Gateway) serves(model string) error {
	if g.requests.isClosed() {
		return ErrStopping()
	}
	return g.routes.serves(model)
}

// Models lists what the cluster serves.
func (g *Gateway) Models() []api.Model { return g.models.list() }

// Watch checks for losses until quit is closed.
func (g *Gateway) Watch(quit <-chan struct{}) {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	ctx, cancel := context.WithCancel(context.Background())
	defer g.caches.done.Wait()
	defer cancel()
	rests := false
	for {
		select {
		case <-quit:
			return
		case <-g.cfg.Cluster.Changed():
			g.look(time.Now())
		case <-g.watch.idle.Woken():
		case now := <-tick.C:
			g.models.refresh()
			for _, node := range g.caches.refresh(ctx, now, g.cfg.Cluster.Members()) {
				g.cfg.System.Root.Send(actor.NewPID(node, msg.BlocksActor), &msg.ListBlocks{Reply: g.prefixes})
			}
			g.look(now)
			for _, node := range g.watch.nodes() { // NATS knows of a death before a beat is late
				g.cfg.Cluster.Probe(node)
			}
		}
		idle := len(g.cfg.Cluster.Others()) == 0 && g.watch.rest(time.Now())
		switch {
		case idle && !rests:
			tick.Reset(restEvery)
		case !idle && rests:
			tick.Reset(watchEvery)
		}
		rests = idle
	}
}

// look makes requests continue whose sequences are lost, and try again what they wait for.
func (g *Gateway) look(now time.Time) {
	losses, again := g.watch.tick(now, clusterView{g.cfg.Cluster, g.routes})
	for _, t := range losses {
		g.cfg.System.Root.Send(t.request, t.lost)
	}
	for _, request := range again {
		g.cfg.System.Root.Send(request, &msg.Retry{})
	}
}

// Refuse ends the admission of requests.
func (g *Gateway) Refuse() { g.requests.close() }

// Tell sends a message to every request.
func (g *Gateway) Tell(m any) { g.requests.tell(g.cfg.System.Root, m) }

// Running is the number of requests.
func (g *Gateway) Running() int { return g.requests.len() }

// Waiting is the number of requests whose prompt is not begun.
func (g *Gateway) Waiting() int { return g.requests.waiting() }

// Sequences is the number of sequences that run at a worker.
func (g *Gateway) Sequences(node string) int { return g.watch.sequences(node) }

// Texts is the number of sequences whose text is made at a node.
func (g *Gateway) Texts(node string) int { return g.watch.texts(node) }
