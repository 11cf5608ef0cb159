package family

import (
	"slices"
	"strings"

	"github.com/millrace/millrace/compute/model"
)

// lfm2 is LFM2, most of whose layers are convolutions over three tokens between two gates.
var lfm2 = family{
	class: "Lfm2ForCausalLM", bare: "Lfm2Model", kind: "lfm2",
	spell:  lfm2Spell,
	config: lfm2Config,
	gguf: &ggufForm{
		name: "lfm2", names: lfm2Names, parts: lfm2Parts, keys: map[string]string{"shortconv.l_cache": "conv_L_cache"}, spell: lfm2GGUF,
	},

	models:   "LFM2",
	features: "short convolutions, GQA with RMS norm over each head of q and k in the layers of `layer_types` or `full_attn_idxs`",
}

// lfm2Moe is LFM2 with experts in place of the MLP of most layers.
var lfm2Moe = family{
	class: "Lfm2MoeForCausalLM", bare: "Lfm2MoeModel", kind: "lfm2_moe",
	spell:  lfm2Spell,
	config: lfm2MoeConfig,
	gguf: &ggufForm{
		name: "lfm2moe", names: lfm2Names, parts: lfm2Parts,
		keys: merged(qwenExpertKeys, map[string]string{
			"shortconv.l_cache": "conv_L_cache", "leading_dense_block_count": "num_dense_layers", "expert_gating_func": ggufGating,
			"expert_weights_scale": "routed_scaling_factor",
		}),
		spell: lfm2MoeGGUF,
	},

	models:   "LFM2-8B-A1B",
	features: "LFM2 with experts: sigmoid with a bias, plain layers first",
}

// shortConv is the mixer of LFM2: x = B x, a convolution, and its result times C.
type shortConv struct {
	kernel int
	bias   bool
}

func (s *shortConv) open(b *builder) func(at string, in int) (out int, back model.Part) {
	n := b.cfg.Hidden
	bcx := b.slot("conv.bcx", model.SlotF32, 3*n)
	mixed := b.slot("conv.mixed", model.SlotOperand, n)
	return func(at string, in int) (int, model.Part) {
		at += "conv."
		b.linear("conv.in", in, bcx, model.ActNone, b.part(at+"in_proj", s.bias, 3*n, n))
		c := b.conv("conv.conv", at+"conv", bcx, mixed, n, s.kernel, s.bias)
		c.Times, c.Gate, c.Offset = 0, n, 2*n
		return mixed, b.part(at+"out_proj", s.bias, n, n)
	}
}

// lfm2Spell sets the defaults of Lfm2Config and Lfm2MoeConfig.
func lfm2Spell(f *fields) {
	f.defaults(map[string]any{"rope_theta": 1e6, "num_key_value_heads": 8, "tie_word_embeddings": true, "num_hidden_layers": 32,
		"num_attention_heads": 32})
	f.prefer(map[string]string{"tie_embedding": "tie_word_embeddings", "norm_eps": "rms_norm_eps", "block_ff_dim": "intermediate_size"})
	f.defaults(map[string]any{"rms_norm_eps": 1e-5})
}

// lfm2Config: source is transformers, modeling_lfm2.py.
func lfm2Config(f *fields, c *Config) plan {
	f.defaults(map[string]any{"hidden_size": 2560, "intermediate_size": 12288})
	p := shortConvConfig(f, c)
	if f.flag(true, "block_auto_adjust_ff_dim") {
		c.Intermediate = 2 * c.Intermediate / 3
		if _, raw := f.get("block_ffn_dim_multiplier"); string(raw) != "null" {
			c.Intermediate = int(f.number(1, 1e-3, 1e3, "block_ffn_dim_multiplier") * float64(c.Intermediate))
			multiple := f.integer(256, 1, maxWidth, "block_multiple_of")
			c.Intermediate = (c.Intermediate + multiple - 1) / multiple * multiple
		}
	}
	return p
}

func lfm2MoeConfig(f *fields, c *Config) plan {
	f.defaults(map[string]any{
		"hidden_size": 2048, "intermediate_size": 7168, "moe_intermediate_size": 1792, "num_experts": 32, "num_experts_per_tok": 4,
	})
	p := shortConvConfig(f, c)
	e := readExperts(f, []string{"num_experts"}, []string{"num_experts_per_tok"}, []string{"moe_intermediate_size"})
	e.names.layer, e.names.gate, e.names.up, e.names.down = "feed_forward.", "w1", "w3", "w2"
	e.routing.Scores, e.routing.Normalize = model.RouteSigmoid, f.flag(true, "norm_topk_prob")
	e.routing.Scale = float32(f.number(1, 1e-3, 1e3, "routed_scaling_factor"))
	if f.flag(true, "use_expert_bias") {
		e.names.bias = "expert_bias"
	}
	for i := range f.integer(2, 0, maxLayers, "num_dense_layers") {
		e.dense = append(e.dense, i)
	}
	p.experts = e
	return p
}

// shortConvConfig reads what both have.
func shortConvConfig(f *fields, c *Config) llamaPlan {
	llamaSizes(f, c, 0, 128000)
	c.QKNorm = true
	p := llamaPlan{
		mixer: &shortConv{kernel: f.integer(3, 2, maxKernel, "conv_L_cache"), bias: f.flag(false, "conv_bias")},
		norms: layerNorms{attention: "operator_norm", mlp: "ffn_norm"},
		names: strings.NewReplacer("self_attn.o_proj", "self_attn.out_proj", "q_norm.weight", "q_layernorm.weight", "k_norm.weight",
			"k_layernorm.weight",
			"mlp.gate_proj", "feed_forward.w1", "mlp.up_proj", "feed_forward.w3", "mlp.down_proj", "feed_forward.w2"),
		final: "embedding_norm",
	}
	types := f.texts("layer_types")
	if types != nil && f.err == nil {
		p.recurrent = f.layersOf(c, types, "conv")
		return p
	}
	p.recurrent = make([]bool, c.Layers)
	if _, raw := f.get("full_attn_idxs"); raw != nil {
		attention := f.integers("full_attn_idxs")
		for i := range p.recurrent {
			p.recurrent[i] = !slices.Contains(attention, i)
		}
	}
	return p
}

// lfm2Parts are the names of the tensors in layers.
var lfm2Parts = map[string]string{
	"attn_norm": "operator_norm", "ffn_norm": "ffn_norm", "attn_output": "self_attn.out_proj", "attn_q_norm": "self_attn.q_layernorm",
	"attn_k_norm": "self_attn.k_layernorm", "ffn_gate": "feed_forward.w1", "ffn_up": "feed_forward.w3", "ffn_down": "feed_forward.w2",
	"shortconv.in_proj.weight": "conv.in_proj.weight", "shortconv.conv.weight": "conv.conv.weight",
	"shortconv.out_proj.weight": "conv.out_proj.weight", "shortconv.in_proj.bias": "conv.in_proj.bias",
	"shortconv.conv.bias": "conv.conv.bias", "shortconv.out_proj.bias": "conv.out_proj.bias", "ffn_gate_inp": "feed_forward.gate",
	"exp_probs_b.bias": "feed_forward.expert_bias", "ffn_gate_exps": "feed_forward.experts.w1", "ffn_up_exps": "feed_forward.experts.w3",
	"ffn_down_exps": "feed_forward.experts.w2",
}

// lfm2Names are those outside of them; older files name the last norm as that of the embedding.
var lfm2Names = map[string]string{"output_norm": "embedding_norm", "token_embd_norm": "embedding_norm"}

// shortConvGGUF: layers without KV heads are convolutions.
func (f *fields) shortConvGGUF() {
	f.hybridKinds("conv")
	f.set("conv_bias", f.inLayers("shortconv.conv.bias"))
}

// lfm2GGUF: the width of the MLP is that of the tensors.
func lfm2GGUF(f *fields) {
	f.shortConvGGUF()
	f.set("block_auto_adjust_ff_dim", false)
}

// lfm2MoeGGUF: llama.cpp divides by the sum of the chosen scores.
func lfm2MoeGGUF(f *fields) {
	f.shortConvGGUF()
	f.gating(gatingSigmoid)
	f.set("use_expert_bias", f.inLayers("exp_probs_b.bias"))
}
