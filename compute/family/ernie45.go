package family

import (
	"errors"
	"strings"

	"github.com/millrace/millrace/compute/model"
	"github.com/millrace/millrace/compute/weights"
)

// ernie45 is Llama whose rotary embedding turns neighbors.
var ernie45 = family{
	class: "Ernie4_5ForCausalLM", bare: "Ernie4_5Model", kind: "ernie4_5",
	spell:  ernie45Spell,
	config: ernie45Config,
	gguf:   &ggufForm{name: "ernie4_5", spell: ernie45GGUF},

	models:   "ERNIE 4.5 (dense)",
	features: "+ rotary embedding of pairs (2i, 2i+1), `use_bias` on all projections",
}

// ernie45Spell sets the defaults of Ernie4_5Config.
func ernie45Spell(f *fields) {
	f.defaults(map[string]any{
		"num_key_value_heads": 2, "head_dim": 128, "max_position_embeddings": 131072, "rope_theta": 500000, "rms_norm_eps": 1e-5,
		"tie_word_embeddings": true,
	})
}

func ernie45Config(f *fields, c *Config) plan {
	llamaSizes(f, c, 0, 0)
	c.QKVBias = f.flag(false, "use_bias")
	c.OutBias, c.MLPBias = c.QKVBias, c.QKVBias
	return llamaPlan{interleaved: true}
}

// ernie45Moe is ERNIE 4.5 with a mixture of experts in most layers.
var ernie45Moe = family{
	class: "Ernie4_5_MoeForCausalLM", bare: "Ernie4_5_MoeModel", kind: "ernie4_5_moe",
	spell:   ernie45MoeSpell,
	config:  ernie45MoeConfig,
	tensors: ernie45MoeTensors,
	gguf: &ggufForm{
		name:  "ernie4_5-moe",
		parts: map[string]string{"exp_probs_b.bias": "mlp.moe_statics.e_score_correction_bias"},
		keys: map[string]string{
			"expert_count": "moe_num_experts", "expert_used_count": "moe_k", "expert_feed_forward_length": "moe_intermediate_size",
			"expert_shared_count": "moe_num_shared_experts", "interleave_moe_layer_step": "moe_layer_interval",
			"leading_dense_block_count": "moe_layer_start_index", "expert_shared_feed_forward_length": "", "expert_gating_func": ggufGating,
		},
		spell: ernie45MoeGGUF,
	},

	models:   "ERNIE 4.5 A3B, A47B",
	features: "ERNIE 4.5 with experts: softmax with a bias, shared ones, `moe_layer_start_index`, `moe_layer_interval`",
}

// ernie45MoeSpell sets the defaults of Ernie4_5_MoeConfig.
func ernie45MoeSpell(f *fields) {
	f.defaults(map[string]any{
		"num_key_value_heads": 4, "max_position_embeddings": 131072, "rope_theta": 500000, "rms_norm_eps": 1e-5,
		"tie_word_embeddings": true, "moe_num_experts": 64, "moe_k": 6, "moe_intermediate_size": 1536,
	})
}

func ernie45MoeConfig(f *fields, c *Config) plan {
	p := ernie45Config(f, c).(llamaPlan)
	e := readExperts(f, []string{"moe_num_experts", "num_experts"}, []string{"moe_k", "num_experts_per_tok"},
		[]string{"moe_intermediate_size"})
	e.routing.Scores, e.routing.Normalize = model.RouteSoftmax, true
	e.shared = e.intermediate * f.integer(2, 0, maxExperts, "moe_num_shared_experts")
	first, step := f.integer(1, 0, maxLayers, "moe_layer_start_index"), f.integer(1, 1, maxLayers, "moe_layer_interval")
	last := f.integer(-1, -1, maxLayers, "moe_layer_end_index")
	if last < 0 {
		last = c.Layers - 1
	}
	for i := range c.Layers {
		if i < first || i > last || (i+1)%step != 0 {
			e.dense = append(e.dense, i)
		}
	}
	e.denseByType(f, c)
	e.names.bias, e.names.shared = "moe_statics.e_score_correction_bias", "mlp.shared_experts."
	p.experts = e
	return p
}

// ernie45MoeTensors: models with images have two routers in a layer, whose weights have rows that are inputs, and their biases in one
// tensor. The first is that of text.
func ernie45MoeTensors(_ *Config, w *weights.Checkpoint) error {
	const second = "mlp.gate.weight_1"
	routers := named(w, func(name string) bool { return strings.HasSuffix(name, second) })
	var biases []string
	for i, name := range routers {
		routers[i] = strings.TrimSuffix(name, "_1")
		biases = append(biases, strings.TrimSuffix(name, second)+"mlp.moe_statics.e_score_correction_bias")
	}
	return errors.Join(w.Transpose(routers), w.Gather(biases, []int64{0}))
}

// ernie45GGUF: all projections have biases, or none has.
func ernie45GGUF(f *fields) { f.members["use_bias"] = f.members["attention_bias"] }

// ernie45MoeGGUF sets what llama.cpp has without the keys.
func ernie45MoeGGUF(f *fields) {
	ernie45GGUF(f)
	f.gating(gatingSoftmax)
	f.defaults(map[string]any{"moe_num_shared_experts": 0, "moe_layer_start_index": 0, "moe_layer_interval": 1})
}
