package family

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/millrace/millrace/compute/model"
	"github.com/millrace/millrace/compute/weights"
)

// kimiLinear has a delta net with a decay of each key channel in most layers, and latents in the others, where nothing is rotated.
var kimiLinear = family{
	class: "KimiLinearForCausalLM", bare: "KimiLinearModel", kind: "kimi_linear",
	spell:   kimiLinearSpell,
	config:  kimiLinearConfig,
	tensors: kimiLinearTensors,
	gguf:    kimiLinearForm(),

	models:   "Kimi-Linear-48B-A3B",
	features: "delta nets with a decay of each key channel (KDA), latents without a rotary embedding in the layers of `full_attn_layers` or `layer_types`, experts as DeepSeek-V3",
}

// kimiLinearForm has delta nets beside the latents of others.
func kimiLinearForm() *ggufForm {
	g := latentForm("kimi-linear", nil, kimiLinearGGUF)
	g.parts = merged(g.parts, sparseMoeParts, map[string]string{
		"ssm_conv1d_q": "self_attn.q_conv1d", "ssm_conv1d_k": "self_attn.k_conv1d", "ssm_conv1d_v": "self_attn.v_conv1d",
		"ssm_f_a": "self_attn.f_a_proj", "ssm_f_b": "self_attn.f_b_proj", "ssm_g_a": "self_attn.g_a_proj", "ssm_g_b": "self_attn.g_b_proj",
		"ssm_beta": "self_attn.b_proj", "ssm_a": "self_attn.A_log", "ssm_dt.bias": "self_attn.dt_bias", "ssm_norm": "self_attn.o_norm",
		"exp_probs_b.bias": "block_sparse_moe.gate.e_score_correction_bias", "ffn_gate_shexp": "block_sparse_moe.shared_experts.gate_proj",
		"ffn_up_shexp": "block_sparse_moe.shared_experts.up_proj", "ffn_down_shexp": "block_sparse_moe.shared_experts.down_proj",
	})
	g.keys = merged(g.keys, map[string]string{
		"attention.head_count_kv": "num_key_value_heads", "kda.head_dim": "linear_head_dim", "ssm.conv_kernel": "linear_conv_kernel_dim",
	})
	g.tensors = func(c *Config, w *weights.Checkpoint) error {
		return errors.Join(stateTensors(w), latentTensors(c, w), stackFilters("self_attn.")(c, w))
	}
	return g
}

// kimiLinearGGUF: layers without KV heads are delta nets, whose heads no key counts.
func kimiLinearGGUF(f *fields) {
	f.mixture(gatingSigmoid)
	f.set("norm_topk_prob", true) // as llama.cpp has it
	f.hybridKinds(linearAttention)
	for i := range f.size(maxLayers, "num_hidden_layers") {
		if rates, ok := f.describe(fmt.Sprintf("blk.%d.ssm_beta.weight", i)); ok && len(rates.Shape) == 2 {
			f.set("linear_num_heads", rates.Shape[0])
			return
		}
	}
}

// kimiDelta is Kimi Delta Attention (arXiv:2510.26692).
type kimiDelta struct{ heads, size, kernel int }

// kimiLinearSpell sets the defaults of KimiLinearConfig.
func kimiLinearSpell(f *fields) {
	f.prefer(map[string]string{
		"model_max_length": "max_position_embeddings", "moe_renormalize": "norm_topk_prob", "num_expert_group": "n_group",
		"num_experts": "num_local_experts", "num_experts_per_token": "num_experts_per_tok", "num_shared_experts": "n_shared_experts",
	})
	f.latentDefaults(0, map[string]any{
		"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "max_position_embeddings": 1048576,
		"rms_norm_eps": 1e-5, "num_local_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 1024,
		"routed_scaling_factor": 2.446,
	})
}

// kimiLinearConfig: source is transformers, modeling_kimi_linear.py.
func kimiLinearConfig(f *fields, c *Config) plan {
	p := latentSizes(f, c)
	p.latents.unrotated, p.latents.scale = true, inverseSqrt(p.latents.plain+p.latents.rotated)
	p.experts = glm4Experts(f, c)
	if f.has("mlp_layer_types") {
		p.experts.dense = f.denseLayers(c)
	}
	n := &p.experts.names
	n.layer, n.shared, n.gate, n.up, n.down = "block_sparse_moe.", "block_sparse_moe.shared_experts.", "w1", "w3", "w2"
	s := f.object("linear_attn_config") // its members go before those beside it
	p.mixer = &kimiDelta{
		heads:  s.integer(f.integer(32, 1, maxHeads, "linear_num_heads"), 1, maxHeads, "num_heads"),
		size:   s.integer(f.integer(128, 1, maxHeadDim, "linear_head_dim"), 1, maxHeadDim, "head_dim"),
		kernel: s.integer(f.integer(4, 2, maxKernel, "linear_conv_kernel_dim"), 2, maxKernel, "short_conv_kernel_size"),
	}
	p.recurrent = f.kimiLayers(c, s)
	f.adopt(s)
	return p
}

// kimiLayers are the layers with a delta net: by layer_types, by the numbers of the others from 1 on, or all but every fourth from the
// fifth on.
func (f *fields) kimiLayers(c *Config, s *fields) []bool {
	if types := f.texts("layer_types"); types != nil {
		return f.layersOf(c, types, linearAttention)
	}
	layers := slices.Repeat([]bool{true}, c.Layers)
	if !s.has("full_attn_layers") {
		for i := 4; i < c.Layers; i += 4 {
			layers[i] = false
		}
		return layers
	}
	for _, n := range s.integers("full_attn_layers") {
		if n < 1 || n > c.Layers {
			s.fault("full_attn_layers", fmt.Sprint(n), fmt.Sprintf("numbers in 1..%d", c.Layers))
			break
		}
		layers[n-1] = false
	}
	return layers
}

// kimiLinearTensors: transformers writes the MLPs of layers without experts as those with.
func kimiLinearTensors(c *Config, w *weights.Checkpoint) error {
	w.Flatten(named(w, func(name string) bool { return strings.HasSuffix(name, "self_attn.A_log") }))
	rename(w, map[string]string{
		".block_sparse_moe.gate_proj.weight": ".mlp.gate_proj.weight", ".block_sparse_moe.up_proj.weight": ".mlp.up_proj.weight",
		".block_sparse_moe.down_proj.weight": ".mlp.down_proj.weight",
	})
	return errors.Join(keyTensors(c, w), stackFilters("self_attn.")(c, w))
}

func (d *kimiDelta) open(b *builder) func(at string, in int) (out int, back model.Part) {
	width := d.heads * d.size
	qkv := b.slot("delta.qkv", model.SlotF32, 3*width)
	mixed := b.slot("delta.mixed", model.SlotF32, 3*width)
	rank := b.slot("delta.rank", model.SlotOperand, d.size)
	decay, rate := b.slot("delta.decay", model.SlotF32, width), b.slot("delta.rate", model.SlotF32, d.heads)
	read, gates := b.slot("delta.read", model.SlotF32, width), b.slot("delta.gates", model.SlotF32, width)
	gated := b.slot("delta.gated", model.SlotOperand, width)
	return func(at string, in int) (int, model.Part) {
		at += "self_attn."
		hidden := b.cfg.Hidden
		// A matrix of few rows, then one of few columns.
		narrow := func(name, first, second string, out int) {
			b.linear(name+"_a", in, rank, model.ActNone, b.part(at+first, false, d.size, hidden))
			b.linear(name+"_b", rank, out, model.ActNone, b.part(at+second, false, width, d.size))
		}
		b.linear("delta.qkv", in, qkv, model.ActNone,
			b.part(at+"q_proj", false, width, hidden), b.part(at+"k_proj", false, width, hidden), b.part(at+"v_proj", false, width, hidden))
		narrow("delta.decay", "f_a_proj", "f_b_proj", decay)
		narrow("delta.gates", "g_a_proj", "g_b_proj", gates)
		b.linear("delta.rate", in, rate, model.ActNone, b.part(at+"b_proj", false, d.heads, hidden))
		for _, part := range "qkv" { // which conv1d is made of
			b.find(b.name(fmt.Sprintf("%s%c_conv1d.weight", at, part)))
		}
		b.conv("delta.conv", at+"conv1d", qkv, mixed, 3*width, d.kernel, false).SiLU = true
		b.recur("delta.recur", mixed, read, model.Recur{
			Rule: model.RecurChannels, Heads: d.heads, KeyHeads: d.heads, Keys: d.size, Values: d.size,
			Q: 0, K: width, V: 2 * width, Gates: decay, Rates: rate,
			ALog: b.tensor(at+"A_log", d.heads), DtBias: b.tensor(at+"dt_bias", width), Skip: model.None,
		})
		b.gate("delta.gate", read, gated, model.Gate{
			Gates: gates, Activation: model.GateSigmoid, Group: d.size, Weight: b.tensor(at+"o_norm.weight", d.size), Eps: b.cfg.Eps,
		})
		return gated, b.part(at+"o_proj", false, hidden, width)
	}
}
