package gateway

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"github.com/rs/zerolog"

	"github.com/millrace/millrace/actors/msg"
	"github.com/millrace/millrace/cluster"
	"github.com/millrace/millrace/cluster/prefix"
	"github.com/millrace/millrace/cluster/route"
	"github.com/millrace/millrace/kvmgr/chain"
	"github.com/millrace/millrace/metrics"
)

// Follow calls began, and then handle with all events of workers' prefix caches from there on, until ctx ends.
type Follow func(ctx context.Context, began func(), handle func(node string, e prefix.Event))

// prefixes is what this gateway knows of the workers' prefix caches. Nothing of it runs before two workers serve one model.
type prefixes struct {
	follow  Follow // nil: this process is alone
	metrics *metrics.Cluster
	log     zerolog.Logger
	started bool
	done    sync.WaitGroup
	reads   atomic.Bool // events are followed
	any     atomic.Bool // a worker's snapshot is here, or was
	placing sync.Mutex  // held from the choice of a worker until its sequence is noted: equal prompts meet

	mu    sync.Mutex
	index *prefix.Index
	gaps  int // of the index that are counted
}

func newPrefixes(cfg *Config) *prefixes {
	return &prefixes{follow: cfg.Follow, metrics: cfg.Metrics.Cluster(), log: cfg.Log, index: prefix.NewIndex()}
}

// caches are the workers that share a model with another one, with the slabs of their pools.
func caches(members []*cluster.Member) map[string]int {
	workers := make(map[string]int)
	for _, m := range members {
		if m.Worker != nil {
			workers[m.Model]++
		}
	}
	list := make(map[string]int)
	for _, m := range members {
		if m.Worker != nil && workers[m.Model] > 1 {
			list[m.Node] = m.Worker.Slabs
		}
	}
	return list
}

// refresh follows the members' caches, and returns those whose snapshots to request. The goroutine that reads events ends with ctx.
func (p *prefixes) refresh(ctx context.Context, now time.Time, members []*cluster.Member) (ask []string) {
	if p.follow == nil {
		return nil
	}
	list := caches(members)
	if !p.started {
		if len(list) == 0 {
			return nil
		}
		p.started = true
		p.done.Go(func() { p.follow(ctx, func() { p.reads.Store(true) }, p.event) })
	}
	if !p.reads.Load() {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.index.Follow(list)
	p.metrics.PrefixIndex(p.index.Size(), p.index.Gaps()-p.gaps)
	p.gaps = p.index.Gaps()
	return p.index.Ask(now)
}

func (p *prefixes) event(node string, e prefix.Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.index.Event(node, e)
}

// Receive takes the snapshots that were requested.
func (p *prefixes) Receive(ctx actor.Context) {
	m, ok := ctx.Message().(*msg.Blocks)
	if !ok {
		return
	}
	s := prefix.Snapshot{Number: m.Number, Blocks: make([]prefix.ID, len(m.IDs))}
	copy(s.Salt[:], m.Salt)
	for i, id := range m.IDs {
		s.Blocks[i] = prefix.ID(id)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.index.Load(m.Node, &s); err != nil {
		p.log.Warn().Err(err).Str("member", m.Node).Msg("a snapshot of a prefix cache was ignored")
		return
	}
	p.any.Store(true)
	p.metrics.PrefixSnapshot()
}

// known says whether requests are placed by what workers have.
func (p *prefixes) known() bool { return p.any.Load() }

// fill says of each worker what it has of a prompt, by its events or because a sequence of this gateway has it there.
func (p *prefixes) fill(q *route.Query, workers []route.Worker, prompt []chain.Hash, sent *watch) {
	if !p.known() {
		return
	}
	q.Blocks = len(prompt)
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range workers {
		w := &workers[i]
		if w.Model != q.Model {
			continue
		}
		if p.index.Fresh(w.Node) {
			q.ByOverlap = true
		}
		w.Blocks = p.index.Blocks(w.Node)
		w.Overlap = max(p.index.Overlap(w.Node, prompt), sent.overlap(w.Node, prompt))
	}
}
