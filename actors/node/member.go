package node

import (
	"os"
	"sync"
	"time"

	"github.com/millrace/millrace/actors/msg"
	"github.com/millrace/millrace/cluster"
)

var hostname = sync.OnceValue(func() string {
	name, _ := os.Hostname() // for people to read
	return name
})

// members are the processes that this one serves with.
type members struct {
	*cluster.Registry
	self func() cluster.Member // of this process, as far as placement needs it
}

// Members are the other live processes and, at the end, this one.
func (m *members) Members() []*cluster.Member {
	self := m.self()
	return append(m.Others(), &self)
}

// alive is Registry.Alive. Before this process has joined, no other one lives.
func (m *members) alive(node string) bool { return m.Registry != nil && m.Alive(node) }

// Member is what this process says of itself.
func (p *Node) Member() cluster.Member {
	m := p.offer()
	m.Host, m.Process, m.HTTP, m.Version = hostname(), os.Getpid(), p.cfg.Cluster.HTTP, p.cfg.Cluster.Version
	m.Started, m.Draining, m.Requests = p.created, p.closed.Load(), p.Running()
	if m.Worker != nil {
		m.Worker.Gateways = p.worker.Owners()
		counts := p.worker.Counts()
		m.Worker.Generated, m.Worker.PrefixTokens, m.Worker.PrefixHits = counts.Generated, counts.PrefixTokens, counts.PrefixHits
	}
	return m
}

// offer is the part of it that placement needs, several times for each request.
func (p *Node) offer() cluster.Member {
	m := cluster.Member{Node: p.name, Roles: p.cfg.Roles, Model: p.cfg.ModelID, Text: p.cfg.Text}
	if p.has(cluster.Tokenize) {
		m.Tokenizer = &cluster.Tokenizer{
			Pool: cluster.Pool{Actors: p.tokenizers.Names(), Load: p.tokenizers.Load()}, TextFacts: p.text,
		}
	}
	if p.has(cluster.Detok) {
		m.Detok = &cluster.Pool{Actors: p.detokenizers.Names(), Load: p.detokenizers.Load()}
	}
	if cluster.ComputingOf(p.cfg.Roles) != "" {
		m.Worker = p.offerWorker()
	}
	return m
}

func (p *Node) offerWorker() *cluster.Worker {
	c, slabs := &p.cfg, p.kv.Stats()
	w := &cluster.Worker{
		Actor: msg.ComputeActor, Backend: c.Backend, Weights: c.Weights, Numerics: c.Numerics, Class: c.Class,
		WeightFacts: p.weights,
		Slabs:       c.Model.Slabs(), FreeSlabs: slabs.Free, UsedSlabs: slabs.Used, Cached: slabs.Cached, Promised: slabs.Promised,
		Need: c.Sched.KV.Need(), Layout: c.Model.SlabLayout(),
		Capacity: c.Sched.MaxBatchSize, Queue: c.Sched.MaxWaiting,
		Running: p.worker.Running(), Steps: p.worker.Steps(), InStep: p.worker.Stalled(time.Now()),
	}
	w.Waiting = max(0, p.worker.InFlight()-w.Running)
	if err := p.health.Err(); err != nil {
		w.Down = err.Error()
	}
	return w
}
