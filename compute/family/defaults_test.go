package family

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestMembersThatAreAbsentHaveTheDefaultsOfTheClass in transformers.
func TestMembersThatAreAbsentHaveTheDefaultsOfTheClass(t *testing.T) {
	type defaults struct {
		KVHeads, HeadDim, Positions                  int
		Theta                                        float64
		Eps                                          float32
		TieEmbeddings, QKVBias, OutBias, MLPBias, QK bool
	}
	for class, want := range map[string]defaults{
		"SeedOssForCausalLM":  {KVHeads: 8, HeadDim: 128, Positions: 524288, Theta: 10000, Eps: 1e-6, QKVBias: true},
		"Ernie4_5ForCausalLM": {KVHeads: 2, HeadDim: 128, Positions: 131072, Theta: 500000, Eps: 1e-5, TieEmbeddings: true},
		"GlmForCausalLM":      {KVHeads: 2, HeadDim: 128, Positions: 131072, Theta: 10000, Eps: 1.5625e-7, QKVBias: true},
		"Glm4ForCausalLM":     {KVHeads: 2, HeadDim: 128, Positions: 131072, Theta: 10000, Eps: 1.5625e-7, QKVBias: true},
		"Exaone4ForCausalLM":  {KVHeads: 32, HeadDim: 40, Positions: 2048, Theta: 10000, Eps: 1e-5, QK: true},
		"GraniteForCausalLM":  {KVHeads: 32, HeadDim: 40, Positions: 2048, Theta: 10000, Eps: 1e-6},
		"GemmaForCausalLM":    {KVHeads: 16, HeadDim: 256, Positions: 8192, Theta: 10000, Eps: 1e-6, TieEmbeddings: true},
		"SmolLM3ForCausalLM":  {KVHeads: 4, HeadDim: 40, Positions: 32768, Theta: 2e6, Eps: 1e-6, TieEmbeddings: true},
	} {
		t.Run(class, func(t *testing.T) {
			c, err := parse(t, object{"architectures": []string{class}, "vocab_size": 131, "hidden_size": 1280, "intermediate_size": 104,
				"num_hidden_layers": 5, "num_attention_heads": 32})
			require.NoError(t, err)
			require.Equal(t, want, defaults{c.KVHeads, c.HeadDim, c.MaxPositions, c.Rope.Theta, c.Eps, c.TieEmbeddings, c.QKVBias,
				c.OutBias, c.MLPBias, c.QKNorm})
		})
	}
}

func TestSmolLM3RotatesLayersByTheListOrTheInterval(t *testing.T) {
	smol := func(changes object) object {
		return with(with(llamaJSON(), object{"architectures": []string{"SmolLM3ForCausalLM"}, "num_hidden_layers": 4}), changes)
	}
	for _, c := range []struct {
		name      string
		changes   object
		unrotated []bool
		windows   []int
	}{
		{"default", object{"sliding_window": 7}, []bool{false, false, false, true}, nil},
		{"interval", object{"no_rope_layer_interval": 2, "use_sliding_window": true}, []bool{false, true, false, true}, nil},
		{"list", object{"no_rope_layers": []int{0, 1, 1, 1, 0}, "use_sliding_window": true, "sliding_window": 7},
			[]bool{true, false, false, false}, []int{7, 0, 0, 0}},
		{"types go first", object{"use_sliding_window": true, "sliding_window": 7, "layer_types": []string{sliding, full, full, full}},
			[]bool{false, false, false, true}, []int{7, 0, 0, 0}},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg, err := parse(t, smol(c.changes))
			require.NoError(t, err)
			require.Equal(t, c.unrotated, cfg.plan.(llamaPlan).unrotated)
			require.Equal(t, c.windows, cfg.Windows)
		})
	}
	for want, changes := range map[string]object{
		"no_rope_layers: found [1,0], expected a list of 0 and 1, one for each of 4 layers":     {"no_rope_layers": []int{1, 0}},
		"no_rope_layers: found [1,0,2,1], expected a list of 0 and 1, one for each of 4 layers": {"no_rope_layers": []int{1, 0, 2, 1}},
		"no_rope_layer_interval: found 0, expected an integer in 1..":                           {"no_rope_layer_interval": 0},
	} {
		_, err := parse(t, smol(changes))
		require.ErrorContains(t, err, want)
	}
}

func TestExaone4RotatesLayersWithAWindowIfAnyHasOne(t *testing.T) {
	for _, c := range []struct {
		name      string
		changes   object
		windows   []int
		unrotated []bool
	}{
		{"default", object{"sliding_window": "absent"}, []int{4096, 4096, 4096, 0}, []bool{false, false, false, true}},
		{"pattern", object{"sliding_window": 7, "sliding_window_pattern": 2}, []int{7, 0, 7, 0}, []bool{false, true, false, true}},
		{"types go first", object{"sliding_window": 7, "sliding_window_pattern": "LLLG",
			"layer_types": []string{full, full, full, sliding}},
			[]int{0, 0, 0, 7}, []bool{true, true, true, false}},
		{"all full", object{"sliding_window": 7, "layer_types": []string{full, full, full, full}}, []int{0, 0, 0, 0},
			[]bool{true, true, true, true}},
		{"null", object{"sliding_window": nil, "sliding_window_pattern": nil}, nil, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg, err := parse(t, with(with(llamaJSON(), object{"architectures": []string{"Exaone4ForCausalLM"}, "num_hidden_layers": 4}),
				c.changes))
			require.NoError(t, err)
			require.Equal(t, c.windows, cfg.Windows)
			require.Equal(t, c.unrotated, cfg.plan.(llamaPlan).unrotated)
		})
	}
}
