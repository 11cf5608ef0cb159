package node

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/actors/kv"
	"github.com/millrace/millrace/actors/worker"
	"github.com/millrace/millrace/kvmgr"
)

func TestTheStateOfTheKVCacheNamesTenantsAndProgress(t *testing.T) {
	d := newTestDevice(64)
	p := start(t, testConfig(t, d))
	prompt := make([]int32, 40)
	for i := range prompt {
		prompt[i] = int32(i)
	}
	for i := range 2 {
		r := tokensRequest(fmt.Sprint(i), prompt, 20)
		s, err := p.Submit(context.Background(), r)
		require.NoError(t, err)
		_, _, err = read(s)
		require.NoError(t, err)
	}
	requireClean(t, p, d)
	s, err := p.KVState(t.Context(), true)
	require.NoError(t, err)
	require.Equal(t, Prefix{Tokens: 80, Hits: 39}, s.Prefix, "the last token is always computed")
	require.Positive(t, s.Stats.Cached)
	require.Empty(t, s.Check)
	require.Empty(t, s.Regions)
	w := p.Member().Worker
	require.Equal(t, []uint64{40, 80, 39}, []uint64{w.Generated, w.PrefixTokens, w.PrefixHits})
	require.Equal(t, []int{0, s.Stats.Cached, 0, 64}, []int{w.UsedSlabs, w.Cached, w.Promised, w.FreeSlabs})
}

func TestAStreamThatRunsIsInTheStateOfTheKVCache(t *testing.T) {
	d := newTestDevice(64)
	d.gate = make(chan struct{})
	p := start(t, testConfig(t, d))
	t.Cleanup(func() { close(d.gate) })
	r := tokensRequest("a", make([]int32, 70), 20) // prompt rows of a step: 64
	r.Tenant = "acme"
	_, err := p.Submit(context.Background(), r)
	require.NoError(t, err)
	for range 3 { // two of the prompt, one of the answer; the fourth waits
		d.gate <- struct{}{}
	}
	var s *KVState
	require.Eventually(t, func() bool {
		s, err = p.KVState(t.Context(), false)
		return err == nil && len(s.Regions) == 1 && s.Regions[0].Generated == 2 && s.Regions[0].Computed == 71
	}, patience, time.Millisecond)
	require.Equal(t, "ok", s.Check)
	got := s.Regions[0]
	require.Equal(t, []any{"acme", 70}, []any{got.Tenant, got.Prompt})
	require.NotEmpty(t, got.Slabs)
	require.Equal(t, []KVTenant{{"acme", 1, got.LeasedSlabs, got.ReservedSlabs}}, s.Tenants)
	require.Zero(t, s.Waiting)
}

func TestTheTenantsOfTheKVCacheAreSums(t *testing.T) {
	s := joinKV(&kv.State{Regions: []kvmgr.Region{
		{Seq: 1, LeasedSlabs: 2, ReservedSlabs: 3}, {Seq: 2, LeasedSlabs: 4, ReservedSlabs: 5},
		{Seq: 3, LeasedSlabs: 6, ReservedSlabs: 7}, {Seq: 4, LeasedSlabs: 8, ReservedSlabs: 9},
	}}, []worker.Sequence{
		{Seq: 1, Tenant: "b"}, {Seq: 2, Tenant: "a"}, {Seq: 3, Tenant: "b"}, {Seq: 5, Tenant: "a"},
	})
	require.Equal(t, []KVTenant{{"a", 1, 4, 5}, {"b", 2, 8, 10}}, s.Tenants, "sequence 4 has just ended")
	require.Equal(t, 1, s.Waiting)
	seqs := []kvmgr.Seq{}
	for _, r := range largest(s.Regions, 2) {
		seqs = append(seqs, r.Seq)
	}
	require.Equal(t, []kvmgr.Seq{3, 4}, seqs)
}
