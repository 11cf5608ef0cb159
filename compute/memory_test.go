package compute_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/compute/device"
)

func TestSlabsHaveTheMemoryThatTheirUserCommits(t *testing.T) {
	const most = 100
	for _, o := range []compute.Options{{}, {KVStart: 1}, {KVStart: 10 << 10}, {KVStart: math.MaxInt64}} {
		o.Dir, o.MaxRows, o.MaxOutputs, o.NoPacked = fixture, 32, 4, true
		slab := slabBytes(t, o)
		o.KVMemory = int64(most * slab)
		m := open(t, o)
		committed := func() int { return int(m.PoolBytes()) / slab }
		if o.KVStart == 0 {
			require.Zero(t, m.CommittedSlabs(), "slabs have memory from their first use on")
			require.ErrorIs(t, m.CommitSlabs(0, 1), device.ErrDevice)
			continue
		}
		start := min(most, max(1, int(o.KVStart)/slab))
		require.Equal(t, start, m.CommittedSlabs())
		require.Equal(t, start, committed())
		if start == most {
			continue
		}
		require.NoError(t, m.CommitSlabs(most-10, 10))
		require.Equal(t, start+10, committed())
		data := make([]byte, slab)
		data[5] = 7
		require.NoError(t, m.WriteSlab(most-1, data))
		require.NoError(t, m.DiscardSlabs(most-10, 5))
		require.Equal(t, start+5, committed())
		got := make([]byte, slab)
		require.NoError(t, m.ReadSlab(most-1, got))
		require.Equal(t, data, got)
		require.NoError(t, m.Reload())
		require.Equal(t, start+5, committed(), "a new pool has as much memory")
		for _, c := range [][2]int{{-1, 1}, {0, 0}, {most, 1}, {most - 1, 2}, {1, math.MaxInt}} {
			require.ErrorIs(t, m.CommitSlabs(int32(c[0]), c[1]), device.ErrInvalid)
		}
		available, total, err := m.FreeMemory()
		require.NoError(t, err)
		require.Less(t, available, total)
		m.Close()
		require.ErrorIs(t, m.CommitSlabs(0, 1), device.ErrDevice)
	}
}

// slabBytes is the size of a slab of a model.
func slabBytes(t *testing.T, o compute.Options) int {
	t.Helper()
	o.KVStart, o.KVMemory = 0, 1<<20
	m := open(t, o)
	defer m.Close()
	return m.SlabBytes()
}

func TestAPoolLeavesATenthOfADevicesMemory(t *testing.T) {
	const gib = 1 << 30
	for name, c := range map[string]struct{ available, total, used, want uint64 }{
		"what weights leave":                   {60 * gib, 80 * gib, 20 * gib, 52 * gib},
		"others use it too":                    {30 * gib, 80 * gib, 20 * gib, 22 * gib},
		"it does not say what is available":    {16 * gib, 16 * gib, 6 * gib, 10*gib - 16*gib/10},
		"nothing is left":                      {7 * gib, 80 * gib, 72 * gib, 0},
		"it does not say, and nothing is left": {16 * gib, 16 * gib, 17 * gib, 0},
	} {
		require.Equal(t, c.want, compute.LeftOnDevice(c.available, c.total, c.used), name)
	}
}
