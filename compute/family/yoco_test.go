package family

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/compute/model"
)

func yocoJSON(changes object) object {
	return with(object{
		"architectures": []string{"YOCO"}, "vocab_size": 131, "dim": 48, "hidden_dim": 104, "n_layers": 6, "n_self_heads": 4,
		"n_attn_heads": 3, "n_attn_kv_heads": 1, "max_seq_len": 128, "sliding_window": 9,
	}, changes)
}

// TestYOCOKeepsTheKeysOfOneLayerForItsSecondHalf, and of each layer of the first half those of a window.
func TestYOCOKeepsTheKeysOfOneLayerForItsSecondHalf(t *testing.T) {
	c, err := parse(t, yocoJSON(nil))
	require.NoError(t, err)
	require.Equal(t, []int{9, 9, 9, 0, 0, 0}, c.Windows)
	p, err := Build(c, nil)
	require.NoError(t, err)
	sources := map[int]int{}
	var stored []int
	for i := range p.Ops {
		switch op := &p.Ops[i]; {
		case op.Kind == model.OpAttention:
			sources[op.Layer] = op.CacheLayer()
			require.Equal(t, c.Windows[op.Layer], op.Window)
		case op.Kind == model.OpRopeStore && !op.Stored:
			stored = append(stored, op.Layer)
		}
	}
	require.Equal(t, map[int]int{0: 0, 1: 1, 2: 2, 3: 3, 4: 3, 5: 3}, sources)
	require.Equal(t, []int{0, 1, 2, 3}, stored)
	require.Equal(t, model.Groups{Layers: 1, Full: 1, Windowed: 3}, p.Groups())
	require.Equal(t, 9, p.Window())
}

// TestYOCOWithoutAWindowKeepsStates, and the keys of one layer alone. What turns queries and keys stores none.
func TestYOCOWithoutAWindowKeepsStates(t *testing.T) {
	c, err := parse(t, yocoJSON(object{"sliding_window": nil}))
	require.NoError(t, err)
	p, err := Build(c, nil)
	require.NoError(t, err)
	var states, stored []int
	for i := range p.Ops {
		switch op := &p.Ops[i]; {
		case op.Kind == model.OpRecur:
			states = append(states, op.Layer)
			require.Equal(t, model.RecurRetain, op.Recur.Rule)
		case op.Kind == model.OpRopeStore && !op.Stored:
			stored = append(stored, op.Layer)
		case op.Kind == model.OpAttention:
			require.GreaterOrEqual(t, op.Layer, 3)
		}
	}
	require.Equal(t, []int{0, 1, 2}, states)
	require.Equal(t, []int{3}, stored)
	require.Equal(t, int64(3*4*12*16*4), p.StateBytes(), "4 heads of 12 keys, and 12 values rounded up")
	require.Equal(t, model.Groups{Layers: 1, Full: 1}, p.Groups())
	require.Zero(t, p.Window())
}

// TestYOCOTurnsPairsFromOneToTheBase: the last pair's frequency is 1 / theta, which other models do not reach.
func TestYOCOTurnsPairsFromOneToTheBase(t *testing.T) {
	r := Rope{Type: "default", Theta: 10000}
	requireTable(t, []float32{1, 0.046415888, 0.0021544348, 1e-4}, r.toTheta(8)) // torch: 1 / 10000 ** linspace(0, 1, 4)
	require.Equal(t, []float32{1}, r.toTheta(2))
}

func TestYOCORefusesWhatItDoesNotHave(t *testing.T) {
	for want, changes := range map[string]object{
		"n_layers: found 5, expected an even number: two halves":           {"n_layers": 5},
		"n_attn_heads: found 3, expected a multiple of n_attn_kv_heads, 2": {"n_attn_kv_heads": 2},
		"dim: found 50, expected an even multiple of n_self_heads, 4":      {"dim": 50},
		"dim: found 56, expected an even multiple of n_attn_heads, 3":      {"dim": 56},
		"max_seq_len: found nothing, expected an integer in 1..":           {"max_seq_len": "absent"},
		"sliding_window: found 0, expected":                                {"sliding_window": 0},
	} {
		_, err := parse(t, yocoJSON(changes))
		require.ErrorContains(t, err, want)
	}
}
