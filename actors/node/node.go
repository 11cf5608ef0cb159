// Package node is one process of a cluster: it starts the actors of the roles that the process
// has, connects them, and owns what they share. Membership, readiness, the end of the
// device and the drain are here.
//
// It is the only package below actors that imports the others. It must not know what a request
// or a step is: gateway, tokenize, worker, kv and detok do, and meet in package msg alone.
package node

import (
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

	"github.com/millrace/millrace/actors/detok"
	"github.com/millrace/millrace/actors/gateway"
	"github.com/millrace/millrace/actors/kv"
	"github.com/millrace/millrace/actors/msg"
	"github.com/millrace/millrace/actors/tokenize"
	"github.com/millrace/millrace/actors/worker"
	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/tools"
	"github.com/millrace/millrace/cluster"
	"github.com/millrace/millrace/cluster/bridge"
	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/compute/grammar"
	"github.com/millrace/millrace/compute/sched"
	"github.com/millrace/millrace/kvmgr/kvdisk"
	"github.com/millrace/millrace/kvmgr/kvfile"
	"github.com/millrace/millrace/kvmgr/tier"
	"github.com/millrace/millrace/metrics"
	"github.com/millrace/millrace/tokenizer"
	"github.com/millrace/millrace/tracing"
)

// Config of a pipeline: the part of it that this process has.
type Config struct {
	Roles   []cluster.Role  // nil: all
	ModelID string          // of tokenize, compute and detok
	Model   Runner          // of compute, opened by compute.Open; the pipeline does not close it
	Drafter compute.Drafter // of compute: the first layers of Model, which make draft tokens; nil: these are looked up
	// of compute: where workers of this host leave their KV pools; nil: nowhere. The pipeline does not close it
	Pools     *kvfile.Dir
	Pool      func() *kvfile.File  // of compute: the one of Model; nil: it leaves none
	Pages     kv.Pages             // of compute: the memory of Model's slabs; nil: all have theirs from the start
	WholePool bool                 // of compute, with Pages: all slabs are to have memory soon, and keep it
	Tokenizer *tokenizer.Tokenizer // of tokenize and detok, and of compute for grammars; a worker without it follows none

	Facts        api.WeightFacts // of compute; New adds those that Model and Sched say
	Backend      string          // what computes, for others to see
	Weights      string          // as Backend
	Numerics     string          // of compute: digest, see api.Pin
	Class        string          // of compute: name of the numerics class, for others to see
	Format       tools.Format    // of tokenize: how the model writes reasoning and tool calls
	Text         string          // of tokenize, compute and detok: digest of the checkpoint's tokenizer, see api.Pin
	KVDisk       KVDisk          // where keys and values outlive the process
	KVSpill      KVDisk          // where those of paused sequences wait
	Sched        sched.Config    // its KV is that of Model, and it spills with KVSpill
	Tokenizers   int             // actors of the tokenizer pool, 0: 2
	Detokenizers int             // actors of the detokenizer pool, 0: 2
	MaxQueueWait time.Duration   // a request that would wait longer until its prompt is begun is refused; 0: none
	MaxRequests  int             // requests of a gateway for each worker; more are refused, but for tenants below their share. 0: no bound
	StallAfter   time.Duration   // without a step for this time, with work at hand, the process is not ready; 0: 30 s
	GiveUpAfter  time.Duration   // no step for this time is a failure for good, see Wait; 0: never

	admitPatience time.Duration // see loop.hold; 0: its default
	mapTime       time.Duration // see loop.remap; 0: its default
	mapSlabs      int           // see loop.piece; 0: its default
	maskPatience  time.Duration // see loop.awaitMasks; 0: its default

	openGrammars func() (grammar.Engine, error) // nil: of Tokenizer

	Cluster Cluster
	Metrics *metrics.Metrics
	Tracer  trace.Tracer // nil: no traces
	Log     zerolog.Logger
}

// KVDisk is a file for keys and values.
type KVDisk struct {
	Dir  string // "": there is none
	Size int64  // largest size of the process's file there, in bytes
}

// Cluster is how a process is one of several.
type Cluster struct {
	Conn            *nats.Conn    // nil: it is alone, with all roles. The pipeline does not close it
	Beat            time.Duration // see cluster.Config
	Dead            time.Duration // as Beat
	Unheard         func() bool   // see cluster.Config
	FailoverTimeout time.Duration // longest wait of a request for a worker to continue at; 0: 60 s
	HTTP            string        // address of health and metrics, for others to see
	Version         string        // as HTTP
}

// Runner runs steps and holds the KV pool: a *compute.Model.
type Runner = compute.Runner

// Node is the part of a pipeline that this process has: an api.Engine where it has the gateway's role.
type Node struct {
	cfg     Config
	key     cluster.Key
	name    string // the node's address
	created time.Time
	text    api.TextFacts
	weights api.WeightFacts
	system  *actor.ActorSystem
	members *members
	bridge  *bridge.Bridge // nil: alone
	metrics *metrics.Model // of ModelID
	stages  stages
	log     zerolog.Logger

	grammars     *grammar.Compiler // of tokenizers and worker
	gateway      *gateway.Gateway  // nil without its role, as the next
	tokenizers   *tokenize.Pool
	worker       *worker.Worker
	kv           *kv.Manager   // with worker
	disk         *kvdisk.Store // nil: none
	tier         *tier.File    // nil: none
	detokenizers *detok.Pool

	health *health
	closed atomic.Bool
	quit   chan struct{} // closed at the end, for the goroutines beside the actors
	beside sync.WaitGroup
}

type stages struct{ tokenize, compute, detok *metrics.Stage }

// New starts the actors.
func New(cfg Config) (*Node, error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	key := cluster.NewKey()
	node := key.Node()
	p := &Node{
		cfg: cfg, key: key, name: node.String(), created: time.Now(),
		log:     cfg.Log.With().Stringer("node", node).Logger(),
		system:  newSystem(cfg.Log),
		metrics: cfg.Metrics.Model(cfg.ModelID),
		stages: stages{
			tokenize: cfg.Metrics.Stage("tokenize"),
			compute:  cfg.Metrics.Stage("compute"),
			detok:    cfg.Metrics.Stage("detok"),
		},
		quit: make(chan struct{}),
	}
	p.members = &members{self: p.offer}
	open := p.openGrammars
	if cfg.openGrammars != nil {
		open = cfg.openGrammars
	}
	p.grammars = grammar.NewCompiler(open)
	p.text = textFacts(cfg.Tokenizer, cfg.Format)
	p.weights = p.weightFacts()
	p.health = newHealth(p.tell, p.log)
	p.system.ProcessRegistry.Address = p.name
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
		return fmt.Errorf("node: %d tokenizers, %d detokenizers, %d requests at most, a wait of %s at most: expected 0 or more",
			c.Tokenizers, c.Detokenizers, c.MaxRequests, c.MaxQueueWait)
	}
	if c.Roles == nil {
		c.Roles = cluster.Roles()
	}
	if c.Tracer == nil {
		c.Tracer = tracing.Off()
	}
	if c.Cluster.Conn == nil && len(c.Roles) < len(cluster.Roles()) {
		return fmt.Errorf("node: roles %v alone, expected all of %v without a NATS connection", c.Roles, cluster.Roles())
	}
	for d, def := range map[*time.Duration]time.Duration{
		&c.StallAfter: 30 * time.Second, &c.Cluster.Beat: cluster.DefaultBeat, &c.Cluster.Dead: cluster.DefaultDead,
		&c.Cluster.FailoverTimeout: time.Minute,
	} {
		if *d == 0 {
			*d = def
		}
	}
	return nil
}

// errNoVocabulary is why a worker follows no grammar.
var errNoVocabulary = errors.New("this process has not the model's vocabulary")

func (p *Node) openGrammars() (grammar.Engine, error) {
	if p.cfg.Tokenizer == nil {
		return nil, errNoVocabulary
	}
	return p.cfg.Tokenizer.Grammars()
}

func (p *Node) has(r cluster.Role) bool { return slices.Contains(p.cfg.Roles, r) }

// join makes this process one of its cluster, and starts the watch and the reports.
func (p *Node) join() (err error) {
	series := p.cfg.Metrics.Cluster()
	if conn := p.cfg.Cluster.Conn; conn != nil {
		if p.bridge, err = bridge.New(p.system, msg.Codec{}, conn, p.arrived, series, p.log); err != nil {
			return err
		}
	}
	p.members.Registry, err = cluster.Join(cluster.Config{
		Conn: p.cfg.Cluster.Conn, Beat: p.cfg.Cluster.Beat, Dead: p.cfg.Cluster.Dead, Unheard: p.cfg.Cluster.Unheard, Key: p.key,
		Self: p.Member, Metrics: series, Log: p.log,
	})
	if err != nil {
		return err
	}
	if p.worker != nil {
		p.worker.Start()
	}
	if p.gateway != nil {
		p.beside.Go(func() { p.gateway.Watch(p.quit) })
	}
	p.beside.Go(p.care)
	return nil
}

// arrived counts a message from another process in its stage.
func (p *Node) arrived(m any) {
	switch m.(type) {
	case *msg.Tokenize, *msg.Detokenize:
		if p.tokenizers != nil {
			p.tokenizers.Enqueued()
		}
	case *msg.Tokens:
		p.stages.detok.Enqueued()
	}
}

// errNoGateway is what a process answers that has not the gateway's role.
var errNoGateway = errors.New("node: this process takes no requests: it is no gateway")

// Submit starts a request.
func (p *Node) Submit(ctx context.Context, r *api.Request) (api.Stream, error) {
	if p.gateway == nil {
		return nil, errNoGateway
	}
	return p.gateway.Submit(ctx, r)
}

// Models lists what the cluster serves.
func (p *Node) Models() []api.Model {
	if p.gateway == nil {
		return nil
	}
	return p.gateway.Models()
}

// Tokenize turns text or messages into ids, at a tokenizer of the pool.
func (p *Node) Tokenize(ctx context.Context, r *api.TokenizeRequest) ([]int32, error) {
	if p.gateway == nil {
		return nil, errNoGateway
	}
	return p.gateway.Tokenize(ctx, r)
}

// Detokenize turns ids into text.
func (p *Node) Detokenize(ctx context.Context, model string, tokens []int32) (string, error) {
	if p.gateway == nil {
		return "", errNoGateway
	}
	return p.gateway.Detokenize(ctx, model, tokens)
}

// Ready is nil while this process can do its part.
func (p *Node) Ready() error {
	if p.closed.Load() {
		return gateway.ErrStopping()
	}
	if p.worker != nil {
		if err := p.computes(); err == nil || p.gateway == nil || !p.gateway.Elsewhere(p.cfg.ModelID) {
			return err
		}
	}
	if p.gateway != nil {
		return p.gateway.Ready()
	}
	return nil
}

// computes is nil while steps make progress.
func (p *Node) computes() error {
	if err := p.health.Err(); err != nil {
		return api.Unavailable(err)
	}
	if d := p.worker.Stalled(time.Now()); d > p.cfg.StallAfter {
		return api.Unavailable(fmt.Errorf("the device has made no step for %s", d.Round(time.Millisecond)))
	}
	return nil
}

// Wait blocks until ctx ends, and returns nil, or until the process has failed
// for good, and returns why: it should end then.
func (p *Node) Wait(ctx context.Context) error { return p.health.Wait(ctx) }

// Running is the number of requests in the pipeline.
func (p *Node) Running() int {
	if p.gateway == nil {
		return 0
	}
	return p.gateway.Running()
}

// IdleRoom is how many sequences of api.PriorityIdle the process may have in the pipeline now.
func (p *Node) IdleRoom() int {
	if p.gateway == nil {
		return 0
	}
	return p.gateway.IdleRoom()
}

// tell sends a message to every request.
func (p *Node) tell(m any) {
	if p.gateway != nil {
		p.gateway.Tell(m)
	}
}

// Partitioned says whether this process receives no beats, not even its own.
func (p *Node) Partitioned() bool { return p.members.Partitioned() }

// longest is the context of this process's model, in tokens: the least of its workers'. 0: it is not known.
func (p *Node) longest() int {
	least := p.cfg.Facts.ContextLength
	for _, m := range p.members.Others() {
		if w := m.Worker; w != nil && m.Model == p.cfg.ModelID && (least == 0 || w.ContextLength < least) {
			least = w.ContextLength
		}
	}
	return least
}

// care reports what this process does for others, and ends what it did for those
// that are gone.
func (p *Node) care() {
	const rest = time.Second // between two ticks after a time without a sequence in flight
	tick := time.NewTicker(msg.ProgressEvery)
	defer tick.Stop()
	var begun <-chan struct{}
	if p.worker != nil {
		begun = p.worker.Begun()
	}
	swept, removed := time.Now(), time.Now()
	for {
		select {
		case <-p.quit:
			return
		case <-begun:
			tick.Reset(msg.ProgressEvery)
		case now := <-tick.C:
			if p.worker == nil || p.worker.Rest(rest) {
				tick.Reset(rest)
			}
			if p.worker != nil {
				p.worker.Report(now)
			}
			if p.cfg.Pools != nil && now.Sub(removed) >= time.Second {
				removed = now
				p.cfg.Pools.Sweep(now, p.cfg.Cluster.FailoverTimeout)
			}
			if p.bridge != nil && !p.members.Partitioned() && now.Sub(swept) >= time.Second {
				swept = now
				p.sweepOrphans(now)
			}
		}
	}
}

// sweepOrphans ends what runs here for processes that are gone.
func (p *Node) sweepOrphans(now time.Time) {
	if p.worker != nil {
		p.worker.SweepOrphans(now, p.members.Alive)
	}
	if p.detokenizers != nil && p.detokenizers.Load() > 0 {
		p.detokenizers.Sweep(p.system.Root, now, p.members.Alive)
	}
}
