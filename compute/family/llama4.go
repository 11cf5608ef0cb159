package family

import (
	"slices"
	"strings"

	"github.com/millrace/millrace/compute/model"
	"github.com/millrace/millrace/compute/weights"
)

// llama4 is the text model of Llama 4.
var llama4 = family{
	class: "Llama4ForCausalLM", also: []string{"Llama4ForConditionalGeneration"}, bare: "Llama4TextModel", kind: "llama4_text",
	spell:   llama4Spell,
	config:  llama4Config,
	tensors: llama4Experts,
	gguf: &ggufForm{
		name: "llama4",
		parts: map[string]string{
			"ffn_gate": "feed_forward.gate_proj", "ffn_up": "feed_forward.up_proj", "ffn_down": "feed_forward.down_proj",
			"ffn_gate_inp": "feed_forward.router", "ffn_gate_exps": "feed_forward.experts.gate_proj",
			"ffn_up_exps": "feed_forward.experts.up_proj", "ffn_down_exps": "feed_forward.experts.down_proj",
			"ffn_gate_shexp": "feed_forward.shared_expert.gate_proj", "ffn_up_shexp": "feed_forward.shared_expert.up_proj",
			"ffn_down_shexp": "feed_forward.shared_expert.down_proj",
		},
		keys: map[string]string{
			"feed_forward_length": "intermediate_size_mlp", "expert_feed_forward_length": "intermediate_size",
			"expert_count": "num_local_experts", "expert_used_count": "num_experts_per_tok",
			"interleave_moe_layer_step": "interleave_moe_layer_step",
		},
		spell: llama4GGUF,
	},

	models:   "the text of Llama 4 Scout and Maverick",
	features: "rotary embedding of pairs (2i, 2i+1), attention within chunks, layers without rotary embedding and with factors of queries by position, norms of q and k without weights (`use_qk_norm`), experts: sigmoid, a shared one, `interleave_moe_layer_step`",
}

// llama4Spell sets the defaults of Llama4TextConfig. A chunk size of null is none.
func llama4Spell(f *fields) {
	f.liftText()
	f.missing(map[string]any{"attention_chunk_size": 8192})
	f.defaults(map[string]any{
		"num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 131072, "rope_theta": 500000, "rms_norm_eps": 1e-5,
		"intermediate_size": 8192, "intermediate_size_mlp": 16384, "num_local_experts": 16, "num_experts_per_tok": 1,
	})
	if len(f.integers("no_rope_layers")) == 0 {
		delete(f.members, "no_rope_layers")
	}
}

// llama4Config: source is transformers, modeling_llama4.py.
func llama4Config(f *fields, c *Config) plan {
	llamaSizes(f, c, 0, 0)
	e := readExperts(f, []string{"num_local_experts"}, []string{"num_experts_per_tok"}, []string{"intermediate_size"})
	e.routing.Scores, e.weighsIn = model.RouteSigmoid, true
	e.shared = e.intermediate
	e.names.router = "router"
	step, sparse := f.integer(1, 1, maxLayers, "interleave_moe_layer_step"), f.integers("moe_layers")
	for i := range c.Layers {
		if sparse == nil && (i+1)%step != 0 || sparse != nil && !slices.Contains(sparse, i) {
			e.dense = append(e.dense, i)
		}
	}
	c.Intermediate = f.integer(0, 1, maxWidth, "intermediate_size_mlp")
	c.attentionBias(f, false)
	p := llamaPlan{
		interleaved: true, experts: e, names: strings.NewReplacer("mlp.", "feed_forward."), plainNorms: f.flag(true, "use_qk_norm"),
		chunked: true, unrotated: smollm3Unrotated(f, c.Layers),
	}
	p.chunks(f, c)
	if f.flag(true, "attn_temperature_tuning") {
		p.temperature = &temperature{
			beta: f.number(0.1, 0, 100, "attn_scale"), tokens: f.integer(8192, 1, maxPositions, "floor_scale"), offset: 1, unrotated: true,
		}
	}
	return p
}

// chunks reads the chunks of the layers that layer_types, or a rotary embedding, says have them.
func (p llamaPlan) chunks(f *fields, c *Config) {
	types := f.texts("layer_types")
	if types == nil {
		types = make([]string, c.Layers)
		for i, unrotated := range p.unrotated {
			if !unrotated {
				types[i] = chunks
			}
		}
	}
	size := f.integer(0, 1, maxPositions, "attention_chunk_size")
	for i, t := range types {
		switch t {
		case chunks:
			types[i] = sliding
		case "":
			types[i] = full
		}
	}
	if windows := layerTypeWindows(f, types, size, c.Layers); size > 0 && f.err == nil {
		c.Windows = windows
	}
}

// llama4Experts turns the matrices of the experts, whose rows are inputs.
func llama4Experts(_ *Config, w *weights.Checkpoint) error {
	return transpose(w, func(name string) bool {
		return strings.Contains(name, "feed_forward.experts.")
	})
}

// llama4GGUF sets what llama.cpp knows: the chunks, the layers without a rotary embedding and the factors of queries are those of the
// class's defaults, and Maverick, of 128 experts, has no norms of q and k.
func llama4GGUF(f *fields) {
	f.set("use_qk_norm", f.size(maxExperts, "num_local_experts") != 128)
}
