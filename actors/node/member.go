package node

import (
	"os"
	"slices"
	"sync"
	"time"

	"github.com/millrace/millrace/actors/msg"
	"github.com/millrace/millrace/api/tools"
	"github.com/millrace/millrace/cluster"
	"github.com/millrace/millrace/tokenizer"
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

// Member is what this process says of itself.
func (p *Node) Member() cluster.Member {
	m := p.offer()
	m.Host, m.Process, m.HTTP, m.Version = hostname(), os.Getpid(), p.cfg.Cluster.HTTP, p.cfg.Cluster.Version
	m.Started, m.Draining, m.Requests = p.created, p.closed.Load(), p.Running()
	if m.Worker != nil {
		m.Worker.Gateways = p.worker.Owners()
	}
	return m
}

// offer is the part of it that placement needs.
func (p *Node) offer() cluster.Member {
	m := cluster.Member{Node: p.name, Roles: p.cfg.Roles, Model: p.cfg.ModelID, Text: p.cfg.Text}
	if p.has(cluster.Tokenize) {
		m.Tokenizer = &cluster.Tokenizer{
			Pool: cluster.Pool{Actors: p.tokenizers.Names(), Load: p.tokenizers.Load()}, EOS: p.cfg.Tokenizer.EOS(),
			Format: p.cfg.Format.String(), Special: p.special,
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
	c, slabs, counts := &p.cfg, p.kv.Stats(), p.worker.Counts()
	w := &cluster.Worker{
		Actor: msg.ComputeActor, Backend: c.Backend, Weights: c.Weights, Numerics: c.Numerics, Class: c.Class, Created: p.created,
		Context: c.Context, Vocab: c.Model.Vocab(), Sampling: c.Sampling,
		Slabs: c.Model.Slabs(), FreeSlabs: slabs.Free, UsedSlabs: slabs.Used, Cached: slabs.Cached, Promised: slabs.Promised,
		SlabTokens: c.Model.SlabTokens(), LiveSlabs: c.Sched.LiveTokens / max(c.Sched.SlabTokens, 1), Layout: c.Model.SlabLayout(),
		Generated: counts.Generated, PrefixTokens: counts.PrefixTokens, PrefixHits: counts.PrefixHits,
		Capacity: c.Sched.MaxBatchSize, Queue: c.Sched.MaxWaiting,
		Running: p.worker.Running(), Steps: p.worker.Steps(), InStep: p.worker.Stalled(time.Now()),
	}
	w.Waiting = max(0, p.worker.InFlight()-w.Running)
	if err := p.health.Err(); err != nil {
		w.Down = err.Error()
	}
	return w
}

// specialMarkers returns the ids of the special tokens by which a model marks reasoning and calls, also those that
// a request forces.
func specialMarkers(t *tokenizer.Tokenizer, f tools.Format) map[string]int32 {
	if t == nil {
		return nil
	}
	ids := make(map[string]int32)
	for _, marker := range slices.Concat(f.Markers(true), f.ForCalls().Markers(true)) {
		if id, ok := t.Special(marker); ok {
			ids[marker] = id
		}
	}
	return ids
}
