package family

import (
	"fmt"
	"strings"

	"github.com/millrace/millrace/compute/model"
	"github.com/millrace/millrace/compute/weights"
)

// nomicBERT is Nomic's BERT.
var nomicBERT = family{
	class: "NomicBertModel", also: []string{"NomicBertForSequenceClassification", "NomicBertForMaskedLM"}, kind: "nomic_bert",
	spell:   nomicSpell,
	config:  nomicConfig,
	tensors: nomicTensors,
	gguf: &ggufForm{ // with the names of the files that Nomic published
		name: "nomic-bert", also: []string{"nomic-bert-moe"}, decoder: "nomic_bert.", layers: nomicOwnNames.layers,
		names: map[string]string{
			"token_embd": "embeddings.word_embeddings", "token_types": "embeddings.token_type_embeddings",
			"token_embd_norm": nomicOwnNames.embedNorm,
		},
		parts: map[string]string{
			"attn_qkv": nomicOwnNames.fused, "attn_output": nomicOwnNames.out, "attn_output_norm": nomicOwnNames.attnNorm,
			"ffn_gate": nomicOwnNames.gate, "ffn_up": nomicOwnNames.up, "ffn_down": nomicOwnNames.down,
			"layer_output_norm": nomicOwnNames.mlpNorm, "ffn_gate_inp": "mlp.router.layer", "ffn_up_exps": "mlp.experts.mlp.w1",
			"ffn_down_exps": "mlp.experts.mlp.w2",
		},
		keys: merged(bertKeys, map[string]string{
			"expert_count": "num_experts", "expert_used_count": "moe_top_k", "moe_every_n_layers": "moe_every_n_layers",
		}),
		spell: nomicGGUF,
	},

	models:   "Nomic Embed Text 1, 1.5 and 2",
	features: "BERT with a rotary embedding, gated SiLU without biases or GELU with them, experts by `moe_every_n_layers`",
}

// nomicOwnNames are those of the files that Nomic published.
var nomicOwnNames = bertNames{
	layers: "encoder.layers.", fused: "attn.Wqkv", out: "attn.out_proj", attnNorm: "norm1",
	gate: "mlp.fc12", up: "mlp.fc11", down: "mlp.fc2", mlpNorm: "norm2", embedNorm: "emb_ln",
}

// Names of tensors in a layer of Nomic Embed Text 2: the first matrix of an MLP without a gate, and what is added to the experts' sum.
const (
	nomicPlainUp    = "mlp.fc1"
	nomicExpertBias = "mlp.experts.bias"
)

// nomicSpell gives members that older files have by GPT-2's names the ones of transformers.
func nomicSpell(f *fields) {
	f.prefer(map[string]string{
		"n_embd": "hidden_size", "n_layer": "num_hidden_layers", "n_head": "num_attention_heads", "n_inner": "intermediate_size",
		"n_positions": "max_position_embeddings", "layer_norm_epsilon": "layer_norm_eps", "rotary_emb_base": "rope_theta",
	})
	f.defaults(map[string]any{"rope_theta": 1000})
	for _, name := range []string{"prenorm", "parallel_block", "rotary_emb_interleaved", "moe_normalize_expert_weights",
		"expert_choice_router"} {
		f.without(name)
	}
	for name, only := range map[string]int{"num_shared_experts": 0, "ffn_div": 1} {
		if n := f.integer(only, 0, maxExperts, name); n != only {
			f.fault(name, fmt.Sprint(n), fmt.Sprint(only))
		}
	}
}

// nomicConfig: source is transformers, modeling_nomic_bert.py, and of experts modeling_hf_nomic_bert.py of the checkpoints.
func nomicConfig(f *fields, c *Config) plan {
	const qkv, first, second = "qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias"
	p := bertPlan{
		prefix: "nomic_bert.", positions: -1, gated: true, dense: "pooler.dense", inEncoder: true,
		names: bertNames{
			layers: "layers.", q: "self_attn.q_proj", k: "self_attn.k_proj", v: "self_attn.v_proj", out: "self_attn.o_proj",
			attnNorm: "post_attention_layernorm", gate: "mlp.gate_proj", up: "mlp.up_proj", down: "mlp.down_proj",
			mlpNorm: "post_mlp_layernorm", embedNorm: "embeddings.LayerNorm",
		},
	}
	switch kind := f.text("", "activation_function"); kind {
	case "":
	case "swiglu":
		f.set("hidden_act", "silu")
	case "gelu":
		f.set("hidden_act", "gelu")
		p.gated = false
	default:
		f.fault("activation_function", fmt.Sprintf("%.40q", kind), "swiglu or gelu")
	}
	if p.gated {
		for _, name := range []string{qkv, first, second} {
			f.without(name)
		}
	}
	bertSizes(f, c, "silu", 1e-12)
	c.QKVBias, c.MLPBias = f.flag(false, qkv), f.flag(false, first)
	c.OutBias = c.QKVBias
	if found := f.flag(false, second); found != c.MLPBias {
		f.fault(second, fmt.Sprint(found), fmt.Sprintf("%t, as %s", c.MLPBias, first))
	}
	f.wholeHeads(ropeConfig(f, c, f.integer(2048, 1, maxPositions, "max_position_embeddings")))
	p.types, p.rotary = f.integer(2, 1, 2, "type_vocab_size"), c.HeadDim
	if every := f.integer(0, 0, maxLayers, "moe_every_n_layers"); every > 0 {
		p.experts = nomicExperts(f, c, every)
	}
	return p
}

// nomicExperts reads the experts of each n-th layer, from the second on.
func nomicExperts(f *fields, c *Config, every int) *experts {
	e := readExperts(f, []string{"num_experts"}, []string{"moe_top_k"}, []string{"intermediate_size"})
	e.routing.Scores, e.plain = model.RouteSoftmax, true
	e.names = expertNames{layer: "mlp.", router: "router.layer", up: "mlp.w1", down: "mlp.w2"}
	for i := range c.Layers {
		if i%every != 1 {
			e.dense = append(e.dense, i)
		}
	}
	return e
}

// nomicTensors: the experts' matrices are one below the other, and the rows of the second ones are inputs.
func nomicTensors(c *Config, w *weights.Checkpoint) error {
	e := c.plan.(bertPlan).experts
	if e == nil {
		return nil
	}
	w.Unstack(named(w, func(name string) bool { return strings.HasSuffix(name, ".experts.mlp.w1") }), int64(e.routing.Experts))
	second := map[string]string{}
	for _, name := range named(w, func(name string) bool { return strings.HasSuffix(name, ".experts.mlp.w2") }) {
		second[name] = name + ".weight"
	}
	return w.TransposeParts(second, int64(e.routing.Experts), int64(e.intermediate))
}

// nomicGGUF takes the form of the MLPs from the tensors. The converter leaves the bias of the experts' sum out.
func nomicGGUF(f *fields) {
	bertGGUF(f)
	if !f.inLayers("ffn_gate.weight") {
		f.set("activation_function", "gelu")
	}
	for member, part := range map[string]string{
		"qkv_proj_bias": "attn_qkv.bias", "mlp_fc1_bias": "ffn_up.bias", "mlp_fc2_bias": "ffn_down.bias",
	} {
		f.set(member, f.inLayers(part))
	}
}
