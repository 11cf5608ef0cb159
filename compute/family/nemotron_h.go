package family

import (
	"fmt"
	"slices"

	"github.com/millrace/millrace/compute/model"
	"github.com/millrace/millrace/compute/weights"
)

// nemotronH has one block in each layer: Mamba-2, attention without a rotary embedding, an MLP or experts.
var nemotronH = family{
	class: "NemotronHForCausalLM", bare: "NemotronHModel", kind: "nemotron_h",
	config: nemotronHConfig,
	gguf: &ggufForm{
		name: "nemotron_h", also: []string{"nemotron_h_moe"}, decoder: "backbone.", names: backboneNames,
		parts: nemotronHParts,
		keys: merged(mixtureKeys, ssmKeys(nemotronHNames), map[string]string{
			"attention.layer_norm_rms_epsilon": "layer_norm_epsilon", "attention.layer_norm_epsilon": "layer_norm_epsilon",
			"expert_shared_feed_forward_length": "moe_shared_expert_intermediate_size", "rope.dimension_count": "", // nothing is rotated
		}),
		spell:   nemotronHGGUF,
		tensors: func(_ *Config, w *weights.Checkpoint) error { return stateTensors(w) },
	},

	models:   "Nemotron-H, Nemotron Nano 2 and 3",
	features: "layers of one block by `layers_block_type` or `hybrid_override_pattern`: Mamba-2, attention without a rotary embedding, MLP (squared ReLU), experts (sigmoid with a bias, groups, a shared one)",
}

// nemotronHNames are the names of the mixer's sizes.
var nemotronHNames = mambaNames{
	heads: "mamba_num_heads", headDim: "mamba_head_dim", groups: "n_groups", states: "ssm_state_size", kernel: "conv_kernel",
	convBias: "use_conv_bias", inBias: "use_bias",
}

// nemotronHParts are the names of its tensors: a layer's only block is its mixer.
var nemotronHParts = merged(ssmParts("mixer."), map[string]string{
	"attn_norm": "norm", "attn_q": "mixer.q_proj", "attn_k": "mixer.k_proj", "attn_v": "mixer.v_proj", "attn_output": "mixer.o_proj",
	"ffn_up": "mixer.up_proj", "ffn_down": "mixer.down_proj", "ffn_gate_inp": "mixer.gate",
	"exp_probs_b.bias": "mixer.gate.e_score_correction_bias", "ffn_up_exps": "mixer.experts.up_proj",
	"ffn_down_exps": "mixer.experts.down_proj", "ffn_up_shexp": "mixer.shared_experts.up_proj",
	"ffn_down_shexp": "mixer.shared_experts.down_proj",
})

// nemotronHGGUF: a layer with KV heads has attention, one with a width an MLP or experts, and one with neither a mixer.
func nemotronHGGUF(f *fields) {
	f.mixer(nemotronHNames)
	f.mixture(gatingSigmoid)
	experts := func(layer int) bool {
		_, ok := f.describe(fmt.Sprintf("blk.%d.ffn_up_exps.weight", layer))
		return ok
	}
	heads, widths := f.uniform("num_key_value_heads"), f.uniform("intermediate_size")
	if f.err != nil || heads == nil || widths == nil { // the first fault stays
		f.fault("num_key_value_heads", "one number", "numbers for each layer, of KV heads and of the MLP's width")
		return
	}
	kinds := make([]string, len(heads))
	for i := range kinds {
		switch {
		case heads[i] > 0:
			kinds[i] = full
		case widths[i] > 0 && experts(i):
			kinds[i] = moeLayer
		case widths[i] > 0:
			kinds[i] = mlpLayer
		default:
			kinds[i] = linearAttention
		}
	}
	f.set("layers_block_type", kinds)
}

// nemotronHConfig: source is transformers, modeling_nemotron_h.py. A step is time_step_min at least there, whatever time_step_limit says.
func nemotronHConfig(f *fields, c *Config) plan {
	f.prefer(map[string]string{ // as the first configurations have them
		"mamba_n_groups": "n_groups", "mamba_d_conv": "conv_kernel", "mamba_conv_bias": "use_conv_bias", "mamba_dt_min": "time_step_min",
	})
	f.defaults(map[string]any{"num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 21504, "num_attention_heads": 32})
	kinds := f.blockKinds()
	c.Layers = max(len(kinds), 1)
	c.Hidden = f.size(maxWidth, "hidden_size")
	c.Intermediate = f.size(maxWidth, "intermediate_size")
	c.groupedHeads(f, 0)
	c.HeadDim = f.integer(0, 1, maxHeadDim, "head_dim")
	c.Eps = float32(f.number(1e-5, 1e-12, 0.1, "layer_norm_epsilon"))
	c.activation(f, "relu2", "mlp_hidden_act")
	c.MLPBias = f.flag(false, "mlp_bias")
	c.TieEmbeddings = f.flag(false, "tie_word_embeddings")
	c.MaxPositions = f.integer(4096, 1, maxPositions, "max_position_embeddings")
	c.Windows = nil
	p := singlePlan{kinds: kinds}
	p.unrotated = slices.Repeat([]bool{true}, c.Layers)
	m := readMamba(f, nemotronHNames, mamba2{at: "mixer.", heads: 128, headDim: 64, groups: 8, states: 128, kernel: 4, eps: c.Eps})
	m.least = float32(f.number(0.001, 0, 1, "time_step_min"))
	m.most = stepUnlimited
	p.mixer = m
	if slices.Contains(kinds, moeLayer) {
		p.experts = nemotronExperts(f)
	}
	return p
}

func nemotronExperts(f *fields) *experts {
	f.defaults(map[string]any{"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 7688})
	e := readExperts(f, []string{"n_routed_experts", "num_local_experts"}, []string{"num_experts_per_tok"},
		[]string{"moe_intermediate_size"})
	e.plain = true
	e.names = expertNames{layer: "mixer.", router: "gate", bias: "gate.e_score_correction_bias", up: "up_proj", down: "down_proj",
		shared: "mixer.shared_experts."}
	e.shared = f.integer(7688, 1, maxWidth, "moe_shared_expert_intermediate_size")
	e.routing.Scores, e.routing.Normalize = model.RouteSigmoid, f.flag(true, "norm_topk_prob")
	e.routing.Groups, e.routing.TopGroups = f.integer(1, 1, maxExperts, "n_group"), f.integer(1, 1, maxExperts, "topk_group")
	e.routing.Scale = float32(f.number(1, 1e-3, 1e3, "routed_scaling_factor"))
	if name, raw := f.get("moe_latent_size"); raw != nil {
		f.fault(name, excerpt(raw), "null")
	}
	return e
}

// blockKinds are the kinds of the layers, in the names of transformers 5 and 4 or as a pattern of letters.
func (f *fields) blockKinds() []string {
	known := map[string]string{
		linearAttention: linearAttention, "mamba": linearAttention, "M": linearAttention, full: full, "attention": full, "*": full,
		mlpLayer: mlpLayer, "-": mlpLayer, moeLayer: moeLayer, "E": moeLayer,
	}
	name := "layers_block_type"
	kinds := f.texts(name)
	if kinds == nil {
		if name = "layer_types"; f.has(name) {
			kinds = f.texts(name)
		}
	}
	if kinds == nil {
		name = "hybrid_override_pattern"
		for _, letter := range f.text("ME*-", name) {
			kinds = append(kinds, string(letter))
		}
	}
	for i, kind := range kinds {
		if kinds[i] = known[kind]; kinds[i] == "" {
			f.fault(name, fmt.Sprintf("%.40q", kind), "linear_attention, full_attention, mlp or moe")
		}
	}
	if len(kinds) < 1 || len(kinds) > maxLayers {
		f.fault(name, fmt.Sprintf("%d layers", len(kinds)), fmt.Sprintf("1 to %d", maxLayers))
	}
	return kinds
}
