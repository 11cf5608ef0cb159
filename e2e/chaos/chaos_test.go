//go:build chaos

package main

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/e2e/chaos/cluster"
)

// TestNoStreamIsLostWhenAProcessOfEachRoleIsKilled is the part of the suite that
// CI runs (make chaos-quick): kill -9 to one process of each role while streams run. The
// moments are counted in tokens, so that a slow machine changes nothing.
func TestNoStreamIsLostWhenAProcessOfEachRoleIsKilled(t *testing.T) {
	const dir = "../../build/chaos/quick" // logs stay there
	require.NoError(t, os.RemoveAll(dir))
	absolute, err := filepath.Abs(dir)
	require.NoError(t, err)
	programs, err := cluster.Build(t.Context(), absolute)
	require.NoError(t, err)
	s := &suite{
		out: t.Output(), dir: absolute, programs: programs, model: "../../models/tiny-chat",
		args: []string{"--kv-memory=64MiB", "--threads=1"},
		seed: 1, streams: 40, tokens: 60, concurrent: 20, kills: len(cluster.Roles), victims: cluster.Roles,
	}
	r, err := s.disturbed(t.Context(), "quick", s.config("quick"), func(ctx context.Context, tr *trial) error {
		return tr.killEach(ctx, func() error { return tr.run.WaitTokens(ctx, 100+tr.random.Int64N(600)) })
	})
	if r != nil {
		r.Pass = err == nil && r.Good()
		r.print(t.Output())
	}
	require.NoError(t, err)
	require.True(t, r.Good(), "every stream is whole")
	require.Len(t, r.Faults, len(cluster.Roles))
}
