package explain

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/compute/sim"
)

func TestThePoolOfAServerIsWhatItsSequencesNeedOrAQuarterOfTheFreeMemory(t *testing.T) {
	p, err := compute.ReadProgram("../../models/tiny-chat")
	require.NoError(t, err)
	weights, need := sim.WeightBytes(p), uint64(64*2048/16*65536)
	for _, c := range []struct{ free, reserved, start uint64 }{
		{1 << 40, need, 64 << 20},
		{weights + 4*need, need, 64 << 20},
		{weights + 1<<30, 256 << 20, 64 << 20},
		{weights + 1<<20, 256 << 10, 256 << 10},
		{weights - 1, 0, 0},
	} {
		got := NewPool(p, 64, 64<<20, c.free)
		require.Equal(t, Pool{Sequences: 64, Tokens: 2048, Need: need, Reserved: c.reserved, Start: c.start}, *got)
	}
	var out bytes.Buffer
	require.NoError(t, NewPool(p, 64, 64<<20, 1<<40).Print(&out))
	require.Contains(t, out.String(), "0.54 GB reserved, what 64 sequences of 2048 tokens need\n  committed at start  67.11 MB,")
	out.Reset()
	require.NoError(t, NewPool(p, 64, 64<<20, weights+1<<30).Print(&out))
	require.Contains(t, out.String(),
		"0.27 GB reserved, 0.25 of the memory that is free now (64 sequences of 2048 tokens would need 0.54 GB)")
}
