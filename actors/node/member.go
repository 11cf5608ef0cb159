package node

import (
	"cmp"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/millrace/millrace/actors/msg"
	"github.com/millrace/millrace/api"
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
			Pool: cluster.Pool{Actors: p.tokenizers.Names(), Load: p.tokenizers.Load()}, EOS: p.cfg.Tokenizer.EOS(),
			Format: p.cfg.Format.String(), Special: p.special, Judge: p.judge, Infill: p.infill, Think: p.think,
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
		Actor: msg.ComputeActor, Backend: c.Backend, Weights: c.Weights, Numerics: c.Numerics, Class: c.Class, Created: p.created,
		Context: c.Context, Vocab: c.Model.Vocab(), Sampling: c.Sampling,
		Slabs: c.Model.Slabs(), FreeSlabs: slabs.Free, UsedSlabs: slabs.Used, Cached: slabs.Cached, Promised: slabs.Promised,
		Need: c.Sched.KV.Need(), Layout: c.Model.SlabLayout(),
		Capacity: c.Sched.MaxBatchSize, Queue: c.Sched.MaxWaiting,
		Running: p.worker.Running(), Steps: p.worker.Steps(), InStep: p.worker.Stalled(time.Now()),
	}
	e := &c.Embedding
	w.Embedding = cluster.Embedding{
		Width: c.Model.HiddenWidth(), Pooling: string(cmp.Or(e.Pooling, api.PoolLast)), Normalize: e.Normalize, Named: e.Named, Problem: e.Problem,
		Prompts: e.Prompts, Default: e.Default, Encoder: e.Encoder, Labels: e.Classes.Labels, Classify: e.Classes.Classify, Score: e.Classes.Score,
	}
	if e.Encoder {
		w.Embedding.Rows = c.Sched.MaxBatchTokens
	}
	w.Description = cluster.Description(c.Description)
	w.Waiting = max(0, p.worker.InFlight()-w.Running)
	if err := p.health.Err(); err != nil {
		w.Down = err.Error()
	}
	return w
}

// judge returns the tokens "no" and "yes" of a model with a chat template, nil if one of them is no token of its own.
func judge(t *tokenizer.Tokenizer) []int32 {
	if t == nil || t.Template() == "" {
		return nil
	}
	no, yes := single(t, "no"), single(t, "yes")
	if no < 0 || yes < 0 {
		return nil
	}
	return []int32{no, yes}
}

// single returns the token that is a text, -1 if there is none.
func single(t *tokenizer.Tokenizer, text string) int32 {
	ids, err := t.Encode(text, false)
	if err != nil || len(ids) != 1 {
		return -1
	}
	return ids[0]
}

// think returns the tokens that begin and end a model's reasoning, nil if no token ends it.
func think(t *tokenizer.Tokenizer, f tools.Format) []int32 {
	begin, end := f.ReasoningTags()
	if t == nil || end == "" {
		return nil
	}
	if id := single(t, end); id >= 0 {
		return []int32{single(t, begin), id}
	}
	return nil
}

// infillMarkers are the special tokens of the families that fill gaps: StarCoder and Granite, Qwen Coder, DeepSeek Coder. The prompt
// follows the first one, its suffix the second.
var infillMarkers = [][]string{
	{"<fim_prefix>", "<fim_suffix>", "<fim_middle>"},
	{"<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"},
	{"<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"},
}

// infill returns the markers that a tokenizer has as special tokens, nil if it has none of the families'.
func infill(t *tokenizer.Tokenizer) []string {
	if t == nil {
		return nil
	}
	for _, family := range infillMarkers {
		if !slices.ContainsFunc(family, func(marker string) bool { _, ok := t.Special(marker); return !ok }) {
			return family
		}
	}
	return nil
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
