package actors

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api"
)

func TestWithoutOverlapAStreamIsTheSame(t *testing.T) {
	d := newTestDevice(100)
	cfg := testConfig(t, d)
	cfg.NoOverlap = true
	p := start(t, cfg)
	s, err := p.Submit(context.Background(), tokensRequest("r", []int32{1, 2}, 50))
	require.NoError(t, err)
	tokens, last, err := read(s)
	require.NoError(t, err)
	require.Equal(t, api.FinishLength, last.Finish)
	require.Equal(t, expected(d, []int32{1, 2}, 50), tokens)
	requireClean(t, p, d)
}
