package family

import (
	"fmt"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/compute/model"
)

func gemma4PlanOf(t *testing.T, changes object) (*Config, gemma4Plan) {
	t.Helper()
	c, err := parse(t, plain("Gemma4ForCausalLM", changes))
	require.NoError(t, err)
	return c, c.plan.(gemma4Plan)
}

func TestGemma4Defaults(t *testing.T) {
	c, p := gemma4PlanOf(t, object{"num_hidden_layers": 7})
	require.Equal(t, []int{512, 512, 512, 512, 512, 0, 0}, c.Windows, "the last layer sees all tokens, whatever the pattern")
	require.Equal(t, []int{4, 256, 131072}, []int{c.KVHeads, c.HeadDim, c.MaxPositions})
	require.Equal(t, gemmaLayer{headDim: 256, kvHeads: 4, source: 4, intermediate: 104}, p.layers[4])
	require.Equal(t, gemmaLayer{headDim: 512, kvHeads: 4, source: 5, intermediate: 104}, p.layers[5])
	require.Equal(t, []int{256, 262144}, []int{p.perLayer, p.perVocab})
	require.Equal(t, Rope{Type: "default", Theta: 10000}, p.local)
	require.Equal(t, []any{"proportional", 1e6, 0.25}, []any{c.Rope.Type, c.Rope.Theta, c.Rope.Partial})
	require.True(t, c.TieEmbeddings && c.QKNorm && p.experts == nil && p.softcap == 0)
}

// TestGemma4HeadsOfFullLayers in both spellings.
func TestGemma4HeadsOfFullLayers(t *testing.T) {
	types := []string{sliding, full, sliding, full}
	_, old := gemma4PlanOf(t, object{"layer_types": types, "global_head_dim": 64, "num_global_key_value_heads": 2,
		"attention_k_eq_v": true})
	each := object{}
	for _, layer := range []int{1, 3} {
		each[strconv.Itoa(layer)] = object{"head_dim": 64, "num_key_value_heads": 2}
	}
	_, listed := gemma4PlanOf(t, object{"layer_types": types, "attention_k_eq_v": true, "per_layer_config": each})
	require.Equal(t, old, listed)
	require.Equal(t, gemmaLayer{headDim: 64, kvHeads: 2, source: 3, keysOnly: true, intermediate: 104}, old.layers[3])
	_, p := gemma4PlanOf(t, object{"layer_types": types, "num_global_key_value_heads": 2})
	require.Equal(t, 4, p.layers[1].kvHeads, "without attention_k_eq_v the member has no meaning, as in transformers")
}

// TestSharedKeysAreThoseOfTheLastLayerOfTheType that has its own.
func TestSharedKeysAreThoseOfTheLastLayerOfTheType(t *testing.T) {
	types := []string{sliding, full, sliding, sliding, sliding, full}
	for _, class := range []string{"Gemma3nForCausalLM", "Gemma4ForCausalLM"} {
		c, err := parse(t, plain(class, object{
			"layer_types": types, "num_hidden_layers": 6, "num_kv_shared_layers": 3, "use_double_wide_mlp": true,
		}))
		require.NoError(t, err)
		var layers []gemmaLayer
		wide := 1
		switch p := c.plan.(type) {
		case gemma3nPlan:
			layers = p.layers
		case gemma4Plan:
			layers, wide = p.layers, 2
		}
		var sources []int
		for _, l := range layers {
			sources = append(sources, l.source)
		}
		require.Equal(t, []int{0, 1, 2, 2, 2, 1}, sources, class)
		require.Equal(t, []int{104, 104 * wide}, []int{layers[2].intermediate, layers[3].intermediate}, class)
	}
}

func TestGemma4FaultsNameFieldFoundAndExpected(t *testing.T) {
	for want, change := range map[string]object{
		"use_bidirectional_attention: found \"all\", expected vision or null":        {"use_bidirectional_attention": "all"},
		"num_kv_shared_layers: found 4, expected one that leaves a layer of sliding": {"num_kv_shared_layers": 4},
		"num_kv_shared_layers: found 5, expected an integer in 0..4":                 {"num_kv_shared_layers": 5},
		"vocab_size_per_layer_input: found 100, expected at least vocab_size, 131":   {"vocab_size_per_layer_input": 100},
		"per_layer_config.1.head_dim: found 0, expected an integer in 1..":           {"per_layer_config": object{"1": object{"head_dim": 0}}},
		"per_layer_config: found 4, expected an object":                              {"per_layer_config": 4},
		"num_hidden_layers: found 3 KV heads of 512 elements in layer 3, expected a divis": {"attention_k_eq_v": true,
			"num_global_key_value_heads": 3},
		"num_experts: found nothing, expected an integer in 1..":                       {"enable_moe_block": true},
		"rope_parameters.full_attention.factor: found 0, expected a number in 0.001..": {"rope_parameters": object{full: object{"rope_type": "proportional", "factor": 0}}},
	} {
		requireFault(t, "Gemma4ForCausalLM", want, change)
	}
}

func TestGemma3nDefaults(t *testing.T) {
	c, err := parse(t, plain("Gemma3nForCausalLM", object{"num_hidden_layers": 30}))
	require.NoError(t, err)
	p := c.plan.(gemma3nPlan)
	require.Equal(t, []int{512, 512, 512, 512, 0, 512}, c.Windows[:6])
	require.Equal(t, []int{2, 256, 32768}, []int{c.KVHeads, c.HeadDim, c.MaxPositions})
	require.Equal(t, []int{4, 0, 64}, []int{p.streams, p.active, p.rank})
	require.Equal(t, []float64{0.95, 0.95, 0}, []float64{p.sparsity[0], p.sparsity[9], p.sparsity[10]})
	require.Equal(t, []any{true, float32(30)}, []any{p.activeScale, p.softcap})
	require.Equal(t, []int{13, 14, 13}, []int{p.layers[13].source, p.layers[14].source, p.layers[28].source}, "15 layers share")
	require.Equal(t, []float64{1e6, 10000}, []float64{c.Rope.Theta, p.local.Theta})

	c, err = parse(t, plain("Gemma3nForCausalLM", object{"final_logit_softcapping": nil, "num_kv_shared_layers": 0,
		"intermediate_size": []int{8, 16, 24, 8}}))
	require.NoError(t, err)
	p = c.plan.(gemma3nPlan)
	require.Equal(t, []float32{0}, []float32{p.softcap})
	require.Equal(t, []float64{0, 0, 0, 0}, p.sparsity, "of 10 layers or less none are sparse")
	require.Equal(t, []int{8, 16, 24, 8}, []int{p.layers[0].intermediate, p.layers[1].intermediate, p.layers[2].intermediate,
		p.layers[3].intermediate})
}

func TestGemma3nFaultsNameFieldFoundAndExpected(t *testing.T) {
	for want, change := range map[string]object{
		"intermediate_size: found 2 entries, expected one for each of 4 layers":           {"intermediate_size": []int{8, 8}},
		"intermediate_size: found 0, expected integers in 1..":                            {"intermediate_size": []int{8, 0, 8, 8}},
		"activation_sparsity_pattern: found 1 entries, expected one for each of 4 layers": {"activation_sparsity_pattern": []float64{0.5}},
		"activation_sparsity_pattern: found 1, expected numbers from 0 to below 1": {"activation_sparsity_pattern": []float64{0, 0,
			0, 1}},
		"altup_active_idx: found 4, expected an integer in 0..3":                      {"altup_active_idx": 4},
		"altup_num_inputs: found 9, expected an integer in 2..8":                      {"altup_num_inputs": 9},
		"hidden_size_per_layer_input: found 0, expected the width of a layer's input": {"hidden_size_per_layer_input": 0},
		"hidden_activation: found silu, expected gelu_pytorch_tanh, of sparse gates": {"hidden_activation": "silu",
			"activation_sparsity_pattern": []float64{0.5, 0, 0, 0}},
		"num_kv_shared_layers: found 15, expected an integer in 0..4":                   {"num_kv_shared_layers": 15},
		"rope_parameters.sliding_attention.rope_type: found \"yarn\", expected default": {"rope_parameters": object{sliding: object{"rope_type": "yarn"}}},
		"hidden_size_per_layer_input: found -1, expected an integer in 0..":             {"hidden_size_per_layer_input": -1},
	} {
		requireFault(t, "Gemma3nForCausalLM", want, with(object{"num_kv_shared_layers": 0}, change))
	}
}

// TestProportionalRotationTurnsTheFirstPairsOfAHead by the frequencies of the whole head.
func TestProportionalRotationTurnsTheFirstPairsOfAHead(t *testing.T) {
	whole, _ := Rope{Type: "default", Theta: 1e6}.Table(32)
	part, scale := Rope{Type: "proportional", Theta: 1e6, Factor: 2, Partial: 0.25}.Table(32)
	require.InDelta(t, 1, scale, 0)
	for i, f := range part {
		want := whole[i] / 2
		if i >= 4 {
			want = 0
		}
		require.InDelta(t, want, f, 0, i)
	}
}

// TestGemmaSharesKeysAndReadsTablesRowByRow: what the ops of Gemma 4's fixtures say.
func TestGemmaSharesKeysAndReadsTablesRowByRow(t *testing.T) {
	find := func(p *model.Program, name string, layer int) *model.Op {
		for i := range p.Ops {
			if p.Ops[i].Name == name && p.Ops[i].Layer == layer {
				return &p.Ops[i]
			}
		}
		require.Fail(t, "no op "+name)
		return nil
	}
	build := func(name string) *model.Program {
		c, err := LoadConfig(filepath.Join("../../testdata/models", name))
		require.NoError(t, err)
		w, err := OpenWeights(c)
		require.NoError(t, err)
		defer func() { require.NoError(t, w.Close()) }()
		p, err := Build(c, w)
		require.NoError(t, err)
		return p
	}
	p := build("gemma4-e")
	for layer, source := range []int{0, 1, 2, 1, 1, 2} {
		att := find(p, "attn.attention", layer)
		require.Equal(t, []any{source, source != layer}, []any{att.CacheLayer(), att.Stored}, layer)
		require.Equal(t, map[bool]int{true: 16, false: 8}[layer%3 == 2], att.HeadDim)
		require.InDelta(t, 1, att.Scale, 0)
	}
	table := find(p, "inputs.embed", model.None)
	require.True(t, table.Accumulate)
	require.Equal(t, []int64{131, 6 * 12}, p.Tensors[table.Weight].Shape)
	require.Equal(t, 3*12, find(p, "input.gated", 3).Gate.Offset)
	require.NotZero(t, find(p, "input.post_norm", 3).NormScale)
	require.Zero(t, find(p, "mlp.post_norm", 3).NormScale, "a layer's factor is of its last sum")
	require.Equal(t, []int{104, 208}, []int{p.Slots[find(p, "mlp.down", 2).In].Width, p.Slots[find(p, "mlp.down", 3).In].Width})

	p = build("gemma4")
	qkv := find(p, "attn.qkv", 2)
	require.Equal(t, qkv.Parts[1], qkv.Parts[2], "values are keys")
	require.Equal(t, fmt.Sprint([]int{96, 16, 16}), fmt.Sprint([]int{qkv.Parts[0].Rows, qkv.Parts[1].Rows, qkv.Parts[2].Rows}))
	require.Equal(t, model.ActSoftcap, p.Ops[len(p.Ops)-1].Activation)

	p = build("gemma4-moe")
	require.Equal(t, "model.layers.1.router.per_expert_scale", p.Tensors[find(p, "mlp.route", 1).Weight].Name)
}
