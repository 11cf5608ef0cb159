package node

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/millrace/millrace/actors/kv"
	"github.com/millrace/millrace/actors/worker"
	"github.com/millrace/millrace/kvmgr"
)

// briefRegions bounds the regions of a brief KVState.
const briefRegions = 200

// KVState is the state of the KV cache, for /debug/kv.
type KVState struct {
	kv.State
	Prefix  Prefix     `json:"prefix"`
	Waiting int        `json:"waiting"` // sequences without a region
	Tenants []KVTenant `json:"tenants"` // that have regions, by name
	Regions []KVRegion `json:"regions"` // by sequence; of a brief state, the largest ones
}

// Prefix counts the tokens of prompts since the start.
type Prefix struct {
	Tokens uint64 `json:"tokens"`
	Hits   uint64 `json:"hits"` // those found in the prefix cache
}

// KVTenant is the sum of a tenant's regions. A slab that several regions share counts for each.
type KVTenant struct {
	Tenant        string `json:"tenant"` // "": requests without a key
	Sequences     int    `json:"sequences"`
	LeasedSlabs   int    `json:"leased_slabs"`
	ReservedSlabs int    `json:"reserved_slabs"`
}

// KVRegion is a sequence's part of the pool, and its progress.
type KVRegion struct {
	kvmgr.Region
	Tenant    string `json:"tenant"`
	Prompt    int    `json:"prompt_tokens"`
	Computed  int    `json:"computed_tokens"` // found in the prefix cache, or computed
	Generated int    `json:"generated_tokens"`
}

// KVState returns the state of the KV cache. A brief one costs the KV manager little: see kv.Manager.State.
func (p *Node) KVState(ctx context.Context, brief bool) (*KVState, error) {
	if p.kv == nil {
		return nil, errors.New("node: this process has no KV memory: it does not compute")
	}
	state, err := p.kv.State(ctx, brief)
	if err != nil {
		return nil, err
	}
	s := joinKV(state, p.worker.Sequences())
	counts := p.worker.Counts()
	s.Prefix = Prefix{Tokens: counts.PrefixTokens, Hits: counts.PrefixHits}
	if brief {
		s.Regions = largest(s.Regions, briefRegions)
	}
	return s, nil
}

// largest returns the n regions with the most slabs, by sequence.
func largest(regions []KVRegion, n int) []KVRegion {
	if len(regions) <= n {
		return regions
	}
	slices.SortFunc(regions, func(a, b KVRegion) int {
		return cmp.Or(cmp.Compare(b.LeasedSlabs, a.LeasedSlabs), cmp.Compare(a.Seq, b.Seq))
	})
	slices.SortFunc(regions[:n], func(a, b KVRegion) int { return cmp.Compare(a.Seq, b.Seq) })
	return regions[:n]
}

// joinKV adds the worker's view of each sequence. A region whose sequence has just ended has none, and no tenant.
func joinKV(state *kv.State, inFlight []worker.Sequence) *KVState {
	s := &KVState{State: *state, Tenants: []KVTenant{}, Regions: make([]KVRegion, len(state.Regions))}
	known := make(map[kvmgr.Seq]worker.Sequence, len(inFlight))
	for _, q := range inFlight {
		known[kvmgr.Seq(q.Seq)] = q
	}
	s.Waiting = len(known)
	tenants := make(map[string]KVTenant)
	for i, r := range state.Regions {
		q, ok := known[r.Seq]
		s.Regions[i] = KVRegion{Region: r, Tenant: q.Tenant, Prompt: q.Prompt, Computed: q.Computed, Generated: q.Generated}
		if !ok {
			continue
		}
		s.Waiting--
		t := tenants[q.Tenant]
		tenants[q.Tenant] = KVTenant{q.Tenant, t.Sequences + 1, t.LeasedSlabs + r.LeasedSlabs, t.ReservedSlabs + r.ReservedSlabs}
	}
	for _, t := range tenants {
		s.Tenants = append(s.Tenants, t)
	}
	slices.SortFunc(s.Tenants, func(a, b KVTenant) int { return cmp.Compare(a.Tenant, b.Tenant) })
	return s
}
