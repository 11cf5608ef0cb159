package node

import (
	"cmp"
	"context"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/millrace/millrace/actors/detok"
	"github.com/millrace/millrace/actors/gateway"
	"github.com/millrace/millrace/actors/kv"
	"github.com/millrace/millrace/actors/tokenize"
	"github.com/millrace/millrace/actors/worker"
	"github.com/millrace/millrace/cluster"
	"github.com/millrace/millrace/cluster/kvevents"
	"github.com/millrace/millrace/cluster/prefix"
	"github.com/millrace/millrace/compute/device"
)

// stateTokens is sched.Config.StateTokens of a worker whose pool outlives it. Another worker computes at most this many tokens of an answer
// again, which takes it a step, and copies are 1/64 of the memory traffic of states.
const stateTokens = 64

// spawn starts the actors of this process's roles.
func (p *Node) spawn() (err error) {
	if p.has(cluster.Tokenize) {
		p.tokenizers, err = tokenize.NewPool(tokenize.Config{
			Actors: p.cfg.Tokenizers, Spawn: p.spawnOne, Tokenizer: p.cfg.Tokenizer, Grammars: p.grammars, Root: p.system.Root,
			Text: p.cfg.Text, Longest: p.longest, Stage: p.stages.tokenize, Tracer: p.cfg.Tracer,
		})
	}
	if p.has(cluster.Detok) && err == nil {
		p.detokenizers, err = detok.NewPool(detok.Config{
			Actors: p.cfg.Detokenizers, Spawn: p.spawnBusy, Tokenizer: p.cfg.Tokenizer, Stage: p.stages.detok, Tracer: p.cfg.Tracer,
		})
	}
	if cluster.ComputingOf(p.cfg.Roles) != "" && err == nil {
		err = p.spawnWorker()
	}
	if p.has(cluster.Gateway) && err == nil {
		err = p.spawnGateway()
	}
	return err
}

func (p *Node) spawnWorker() (err error) {
	model := p.cfg.Model
	var publish func(prefix.Event)
	if conn := p.cfg.Cluster.Conn; conn != nil {
		publish = kvevents.Publisher(conn, p.name, p.log)
	}
	store, err := p.openDisk()
	if err != nil {
		return err
	}
	spill, err := p.openTier()
	if err != nil {
		return err
	}
	s := &p.cfg.Sched
	if s.Spill, s.KV = spill != nil, model.KV(); !s.KV.Rollback {
		s.DraftRows = 0
	}
	if p.cfg.Pool != nil && p.cfg.Pool() != nil {
		s.StateTokens = stateTokens
	}
	p.kv, err = kv.New(kv.Config{
		Disk: store, Tier: spill,
		Node: p.name, Publish: publish, Root: p.system.Root, Spawn: p.spawnBusy, Slabs: model.Slabs(), Mappings: model.Mappings(),
		KV: p.cfg.Sched.KV, Predicted: p.cfg.Sched.Predict, BatchSize: p.cfg.Sched.MaxBatchSize, Broken: p.health.Fail, Metrics: p.metrics,
		Memory: model, Pages: p.cfg.Pages, Whole: p.cfg.WholePool, SlabsOf: slabsOf(p.cfg.Numerics, model.SlabLayout()), Pools: p.cfg.Pools,
		Pool: p.cfg.Pool, Alive: p.members.alive, Log: p.log,
	})
	if err != nil {
		return err
	}
	var inherits func() bool
	if p.cfg.Pools != nil {
		inherits = p.cfg.Pools.Left
	}
	p.worker, err = worker.New(worker.Config{
		Node: p.name, Root: p.system.Root, KV: p.kv.PID(), Inherits: inherits, Runner: model, Drafter: p.cfg.Drafter,
		Encoder: p.cfg.Facts.Embedding.Encoder, OwnThread: device.OnCaller(p.cfg.Backend), Grammars: p.grammars, Sched: p.cfg.Sched,
		Numerics: p.cfg.Numerics, AdmitPatience: p.cfg.admitPatience, MaskPatience: p.cfg.maskPatience, MapTime: p.cfg.mapTime,
		MapSlabs: p.cfg.mapSlabs, GiveUpAfter: p.cfg.GiveUpAfter, Faults: p.health, Metrics: p.metrics, Stage: p.stages.compute,
		Detok: p.stages.detok, Tracer: p.cfg.Tracer, Log: p.log,
	})
	return err
}

// slabsOf names what workers need to have in common to copy slabs from each other; "" where slabs cannot be copied.
func slabsOf(numerics, layout string) string {
	if layout == "" {
		return ""
	}
	return numerics + " " + layout
}

func (p *Node) spawnGateway() (err error) {
	c, l := &p.cfg, gateway.Local{Model: p.cfg.ModelID, Text: p.cfg.Text, Series: p.metrics, MaxBatchSize: p.cfg.Sched.MaxBatchSize}
	if p.worker != nil {
		l.Worker, l.Err, l.Computes = p.worker.PID(), p.health.Err, p.computes
	}
	if p.tokenizers != nil {
		l.Tokenizers = p.tokenizers
	}
	if p.detokenizers != nil {
		l.Detokenizers = p.detokenizers
	}
	var follow gateway.Follow
	if conn := c.Cluster.Conn; conn != nil {
		follow = func(ctx context.Context, began func(), handle func(string, prefix.Event)) {
			kvevents.Follow(ctx, conn, p.log, began, handle)
		}
	}
	p.gateway, err = gateway.New(gateway.Config{
		Node: p.name, FirstSeq: p.key.Node().First(), System: p.system, Spawn: p.spawnOne, SpawnRequest: p.spawnRequest, Cluster: p.members,
		Local: l, MaxRequests: c.MaxRequests, MaxQueueWait: c.MaxQueueWait, MaxCalls: cmp.Or(c.Tokenizers, 2),
		Dead: c.Cluster.Dead, StallAfter: c.StallAfter, Failover: c.Cluster.FailoverTimeout, Follow: follow,
		Metrics: c.Metrics, Tracer: c.Tracer, Log: p.log,
	})
	return err
}

// spawnOne starts an actor. A failed one is restarted: what it must not lose
// lives outside of it, and every shell answers what it was serving.
func (p *Node) spawnOne(name string, a actor.Actor) (*actor.PID, error) {
	return p.system.Root.SpawnNamed(actor.PropsFromProducer(func() actor.Actor { return a }, restartOnFailure), name)
}

// spawnBusy is spawnOne for an actor that gets a message with every step or token.
func (p *Node) spawnBusy(name string, a actor.Actor) (*actor.PID, error) {
	return p.system.Root.SpawnNamed(actor.PropsFromProducer(func() actor.Actor { return a }, restartOnFailure,
		actor.WithMailbox(newMailbox)), name)
}

// spawnRequest starts the actor of a request.
func (p *Node) spawnRequest(a actor.Actor) *actor.PID {
	return p.system.Root.Spawn(actor.PropsFromProducer(func() actor.Actor { return a }, actor.WithMailbox(newMailbox),
		actor.WithGuardian(endOnFailure)))
}
