package compute_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/compute/device"
	"github.com/millrace/millrace/compute/model"
	"github.com/millrace/millrace/compute/sim"
	"github.com/millrace/millrace/kvmgr"
)

// TestAModelSaysWhatItsSequencesKeep, of each kind of layer, type and eviction. What the options alone say of it is the same.
func TestAModelSaysWhatItsSequencesKeep(t *testing.T) {
	const rows, pool = 32, 1 << 20
	window := func(tokens int) kvmgr.Window {
		return kvmgr.Window{Tokens: tokens, Live: kvmgr.LiveSlabs(tokens, 2*rows, 16)}
	}
	sinks := window(28)
	sinks.Live, sinks.Sinks = sinks.Live+1, 1
	for _, c := range []struct {
		dir     string
		options compute.Options
		want    []kvmgr.Group
	}{
		{"llama-gqa", compute.Options{}, []kvmgr.Group{kvmgr.Full{}}},
		{"llama-gqa", compute.Options{KV: model.KVInt8}, []kvmgr.Group{kvmgr.Full{}}},
		{"llama-gqa", compute.Options{KV: model.KVKivi}, []kvmgr.Group{kvmgr.Full{Head: 22}}},
		{"llama-gqa", compute.Options{Eviction: model.Eviction{H2O: true, Heavy: 20, Recent: 12}}, []kvmgr.Group{kvmgr.Bounded{Slabs: 6}}},
		{"llama-gqa", compute.Options{Eviction: model.Eviction{Sinks: 4, Window: 28, Context: 2048}}, []kvmgr.Group{sinks}},
		{"mistral-window", compute.Options{}, []kvmgr.Group{window(11)}},
		{"qwen2-window", compute.Options{}, []kvmgr.Group{kvmgr.Full{}, window(7), window(7)}},
		{"qwen2-window", compute.Options{OneGroup: true}, []kvmgr.Group{kvmgr.Full{}}},
		{"yoco", compute.Options{}, []kvmgr.Group{kvmgr.Full{}, window(9), window(9)}},
	} {
		o := c.options
		o.Dir, o.MaxRows, o.KVMemory = "../testdata/models/"+c.dir, rows, pool
		m := open(t, o)
		want := kvmgr.NewSpec(16, c.want...)
		require.Equal(t, want, m.KV(), "%s with %s and %s", c.dir, o.KV, o.Eviction)
		require.NoError(t, m.KV().Validate(kvmgr.Wants{}))
		require.Equal(t, model.KVUses(o.KV, o.Eviction), m.KV().Uses)
		require.Equal(t, want.Copies, m.SlabLayout() != "")
		require.Equal(t, want.Copies, m.Program.Lossy() == "")
		if o.Eviction.H2O || o.KV == model.KVKivi { // the simulated device has neither
			continue
		}
		d, _, err := sim.Find("flex-170")
		require.NoError(t, err)
		r, err := sim.Open(sim.Options{Program: m.Program, Device: d, MaxRows: rows, MaxOutputs: 1, MaxSequences: 4, KVMemory: pool})
		require.NoError(t, err)
		require.Equal(t, want, r.KV())
	}
}

// TestAWindowIsShorterInASmallPool, as the steps of a prompt are.
func TestAWindowIsShorterInASmallPool(t *testing.T) {
	p, err := compute.ReadProgram("../testdata/models/qwen2-window")
	require.NoError(t, err)
	least := kvmgr.Window{Tokens: 7, Live: kvmgr.LiveSlabs(7, 16, 16)}
	require.Equal(t, kvmgr.NewSpec(16, kvmgr.Full{}, least, least), compute.KV(p, device.ProgramInfo{}, 512, 3))
}

// TestSnapshotsTakeAtMostAsMuchAsTokens, and do not cut the rows of a step.
func TestSnapshotsTakeAtMostAsMuchAsTokens(t *testing.T) {
	for _, c := range []struct{ slabs, rows, every int }{{1, 512, 512}, {3, 20, 48}, {3, 50, 64}, {192, 512, 3072}} {
		s := compute.StateKV(c.slabs, c.rows, false)
		require.Equal(t, kvmgr.NewSpec(16, kvmgr.Full{}, kvmgr.State{Slabs: c.slabs, Every: c.every}), s)
		require.NoError(t, s.Validate(kvmgr.Wants{}))
		require.Equal(t, c.slabs, s.Head())
	}
}

// TestSlabsOfTokensHoldNothingWhereNoLayerHasKeys.
func TestSlabsOfTokensHoldNothingWhereNoLayerHasKeys(t *testing.T) {
	for dir, hollow := range map[string]bool{"mamba2": true, "falcon-mamba": true, "qwen3_5": false, "yoco-retention": false,
		"llama-gqa": false} {
		p, err := compute.ReadProgram("../testdata/models/" + dir)
		require.NoError(t, err)
		s := compute.KV(p, device.ProgramInfo{}, 32, 100)
		require.Equal(t, hollow, s.Hollow(), dir)
		require.NoError(t, s.Validate(kvmgr.Wants{Disk: true}), dir)
	}
}
