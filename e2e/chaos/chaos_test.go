//go:build chaos

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/e2e/chaos/cluster"
	"github.com/millrace/millrace/e2e/chaos/workload"
)

// TestNoStreamIsLostWhenAProcessOfEachRoleIsKilled is the part of the suite that
// CI runs (make chaos-quick): kill -9 of one process of each role while streams run. The
// moments of the kills are counts of tokens, which do not depend on the speed of the machine.
func TestNoStreamIsLostWhenAProcessOfEachRoleIsKilled(t *testing.T) {
	s := quick(t, "quick")
	r, err := s.disturbed(t.Context(), "quick", s.config("quick"), func(ctx context.Context, tr *trial) error {
		return tr.killEach(ctx, func() error { return tr.run.WaitTokens(ctx, 100+tr.random.Int64N(600)) })
	})
	require.NoError(t, judged(t, r, err))
	require.Len(t, r.Faults, len(cluster.Roles))
}

// TestNoStreamIsSplicedInAMixedPool is the smallest of the mixed scenarios. It kills workers with weights in
// bf16 and in int8 in turn, and then all workers of one kind.
func TestNoStreamIsSplicedInAMixedPool(t *testing.T) {
	s := quick(t, "quick-mixed")
	s.kills, s.resume = 7, 3*time.Second
	r, err := s.mixed(t.Context(), &variant{name: "weights", args: []string{"--weights=int8"}})
	require.NoError(t, judged(t, r, err))
}

// quick returns a small suite with a stream of each kind over HTTP and over NATS. Its logs stay in build/chaos.
func quick(t *testing.T, name string) *suite {
	dir := filepath.Join("..", "..", "build", "chaos", name)
	require.NoError(t, os.RemoveAll(dir))
	absolute, err := filepath.Abs(dir)
	require.NoError(t, err)
	programs, err := cluster.Build(t.Context(), absolute)
	require.NoError(t, err)
	return &suite{
		out: t.Output(), dir: absolute, programs: programs, model: "../../models/tiny-chat", accounts: "../../deploy/nats/millrace.conf",
		args: []string{"--kv-memory=64MiB", "--threads=1"}, oracles: map[string]*workload.Oracle{},
		seed: 1, streams: 22, tokens: 60, concurrent: 20, kills: len(cluster.Roles), victims: cluster.Roles,
	}
}

// judged prints a report. It returns an error unless the report passes.
func judged(t *testing.T, r *report, err error) error {
	if r == nil {
		return err
	}
	r.finish(t.Context(), err)
	r.print(t.Output())
	if !r.Pass {
		return fmt.Errorf("the scenario failed: %s", r.Error)
	}
	return nil
}
