package model

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// layered is a program of layers with these windows.
func layered(windows ...int) *Program {
	p := &Program{Layers: len(windows), MaxPositions: 1000}
	for i, w := range windows {
		p.Ops = append(p.Ops, Op{Kind: OpRopeStore, Layer: i}, Op{Kind: OpAttention, Layer: i, Window: w})
	}
	return p
}

// repeated is layers with windows, of which each every-th sees all tokens.
func repeated(layers, every int) (windows []int) {
	for i := range layers {
		if i%every == every-1 {
			windows = append(windows, 0)
		} else {
			windows = append(windows, 100)
		}
	}
	return windows
}

// TestGroupsHaveLayersOfOneKind, all as many, and as few unused places as the number of groups allows.
func TestGroupsHaveLayersOfOneKind(t *testing.T) {
	for name, c := range map[string]struct {
		windows []int
		want    Groups
		window  int
	}{
		"all see all":             {[]int{0, 0, 0}, Groups{3, 1, 0}, 0},
		"all see a window":        {[]int{9, 5, 1}, Groups{3, 0, 1}, 9},
		"a window of one":         {[]int{1}, Groups{1, 0, 1}, 2},
		"half of the layers":      {repeated(24, 2), Groups{12, 1, 1}, 100},
		"one of six":              {repeated(48, 6), Groups{8, 1, 5}, 100},
		"one of six and the rest": {repeated(62, 6), Groups{10, 1, 6}, 100}, // eight places are unused
		"the first 28 of 36":      {append(make([]int, 28), repeated(8, 9)...), Groups{14, 2, 1}, 100},
		"different windows":       {[]int{0, 5, 0, 9}, Groups{2, 1, 1}, 9},
		"longer than the context": {[]int{0, 1000, 0, 9}, Groups{1, 3, 1}, 9},
		"all are longer":          {[]int{0, 1000}, Groups{2, 1, 0}, 0},
		"one of a hundred":        {repeated(100, 100), Groups{15, 1, 7}, 100},
	} {
		p := layered(c.windows...)
		require.Equal(t, c.want, p.Groups(), name)
		require.Equal(t, c.window, p.Window(), name)
		used := map[Place]bool{}
		for layer, place := range p.Places() {
			require.False(t, used[place], "%s: layer %d", name, layer)
			used[place] = true
			require.Less(t, place.Layer, c.want.Layers, name)
			sees := c.windows[layer] > 0 && c.windows[layer] < p.MaxPositions
			require.Equal(t, sees, place.Group >= c.want.Full, "%s: layer %d", name, layer)
			require.Less(t, place.Group, c.want.Count(), name)
		}
	}
}

func TestLayersMayShareSlabsWhateverTheirWindows(t *testing.T) {
	p := layered(0, 9, 9)
	p.OneGroup = true
	require.Equal(t, Groups{3, 1, 0}, p.Groups())
	require.Zero(t, p.Window())
	require.Equal(t, map[int]Place{0: {0, 0}, 1: {0, 1}, 2: {0, 2}}, p.Places())
}

func TestLayersWithoutAttentionHaveNoPlace(t *testing.T) {
	p := layered(0, 9, 0, 0)
	p.Ops = slices.DeleteFunc(p.Ops, func(op Op) bool { return op.Layer == 0 || op.Layer == 2 })
	require.Equal(t, Groups{1, 1, 1}, p.Groups())
	require.Equal(t, map[int]Place{1: {1, 0}, 3: {0, 0}}, p.Places())
	p.Ops = []Op{{Kind: OpNorm}}
	require.Equal(t, Groups{1, 1, 0}, p.Groups(), "a slab has room for a layer all the same")
	require.Empty(t, p.Places())
}

// TestLayersOfOtherLayersHaveNoPlace: of five layers with windows in two of them, the last two read keys of those before. Latents are kept
// once, and a slab is as large as the larger group.
func TestLayersOfOtherLayersHaveNoPlace(t *testing.T) {
	p := layered(100, 0, 100, 100, 0)
	for i := range p.Ops {
		op := &p.Ops[i]
		op.Heads, op.KVHeads, op.HeadDim = 4, 2, 64
		if op.Layer == 1 || op.Layer == 4 {
			op.KVHeads, op.HeadDim, op.ValueDim, op.Latent = 1, 96, 80, true
		}
		if op.Layer >= 3 {
			op.Stored, op.KVLayer = true, op.Layer-3 // layers 0 and 1
		}
	}
	require.Equal(t, map[int]Place{0: {1, 0}, 1: {0, 0}, 2: {2, 0}}, p.Places())
	require.Equal(t, []int{0, 1, 2, 0, 1}, []int{p.Ops[1].CacheLayer(), p.Ops[3].CacheLayer(), p.Ops[5].CacheLayer(), p.Ops[7].CacheLayer(),
		p.Ops[9].CacheLayer()})
	const kept, latent = 2 * 2 * 64 * 2, 96 * 2
	require.EqualValues(t, 2*kept+latent, p.KVBytesPerToken(BF16Sizes()))
	require.EqualValues(t, kept, p.SlabBytesPerToken(BF16Sizes()))
	require.Equal(t, 100, p.Window())
}

func TestEvictionNeedsKeysAndValuesOfEachLayer(t *testing.T) {
	for want, change := range map[string]func(*Op){
		"found latents":                            func(op *Op) { op.Latent = true },
		"found keys of layer 0 in layer 1":         func(op *Op) { op.Stored = op.Layer == 1 },
		"found keys of 8 and values of 4 elements": func(op *Op) { op.ValueDim = 4 },
	} {
		for _, e := range []Eviction{{H2O: true}, {Sinks: 4}} {
			p := layered(0, 0)
			p.Slots = []Slot{{}}
			for i := range p.Ops {
				p.Ops[i].HeadDim, p.Ops[i].RotaryDim = 8, 8
				change(&p.Ops[i])
			}
			err := p.SetEviction(e)
			require.ErrorIs(t, err, ErrEviction)
			require.ErrorContains(t, err, want)
		}
	}
	p := layered(0, 0)
	for i := range p.Ops {
		p.Ops[i].Heads, p.Ops[i].HeadDim, p.Ops[i].RotaryDim = 1, 8+8*p.Ops[i].Layer, 8
	}
	require.ErrorContains(t, p.SetEviction(Eviction{Sinks: 4}), "found queries of 8 and 16 elements")
}
