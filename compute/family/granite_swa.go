package family

import (
	"fmt"
	"slices"
)

// graniteSWA is Granite with sliding windows in most layers, a score of a key without a value for each head, and a rotary embedding of each
// layer.
var graniteSWA = family{
	class: "GraniteSWAForCausalLM", bare: "GraniteSWAModel", kind: "granite_swa",
	spell:   graniteSWASpell,
	config:  graniteSWAConfig,
	tensors: graniteTensors,
	gguf: &ggufForm{
		name: "granite_swa", interleaved: true,
		only:    func(k ggufKeys) bool { return !k.some("expert_count") },
		parts:   map[string]string{"attn_sinks": "self_attn.sinks"},
		keys:    merged(graniteKeys, graniteWindowKeys),
		spell:   graniteSWAGGUF,
		tensors: graniteTensors,
	},

	models:   "Granite Swash 2B",
	features: "Granite 3 with `sinks`, sliding windows by `layer_types` or but in every fourth layer, rotary bases by `layer_rope_theta` (0: no rotary embedding)",
}

// graniteMoeSWA is graniteSWA with experts, and a shared MLP or none.
var graniteMoeSWA = family{
	class: "GraniteMoeSWAForCausalLM", bare: "GraniteMoeSWAModel", kind: "granitemoe_swa",
	spell:   graniteMoeSWASpell,
	config:  graniteMoeSWAConfig,
	tensors: graniteTensors,
	gguf: &ggufForm{
		name: "granite_swa", interleaved: true,
		only: func(k ggufKeys) bool { return k.some("expert_count") },
		parts: map[string]string{
			"attn_sinks": "self_attn.sinks", "ffn_gate_inp": "block_sparse_moe.router",
			"ffn_gate_up_exps.weight": "block_sparse_moe.experts.gate_up_proj", "ffn_gate_exps": "block_sparse_moe.experts.gate_proj",
			"ffn_up_exps": "block_sparse_moe.experts.up_proj", "ffn_down_exps": "block_sparse_moe.experts.down_proj",
			"ffn_up_shexp": "shared_mlp.input_linear", "ffn_down_shexp": "shared_mlp.output_linear",
		},
		keys:    merged(graniteExpertKeys, graniteWindowKeys),
		spell:   graniteSWAGGUF,
		tensors: graniteTensors,
	},

	models:   "Granite Swash 3B A600M",
	features: "as `GraniteSWAForCausalLM`, experts: softmax over the chosen ones, a shared one or none",
}

// graniteWindowKeys are the keys of windows, and of layers without a rotary embedding.
var graniteWindowKeys = merged(windowKeys, map[string]string{"attention.rope_pattern": "gguf.rope_pattern"})

// graniteSWASpell sets the defaults of GraniteSWAConfig.
func graniteSWASpell(f *fields) {
	f.defaults(map[string]any{"num_key_value_heads": 4, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "tie_word_embeddings": true})
	graniteMoeSWASpell(f)
}

// graniteMoeSWASpell sets the defaults of GraniteMoeSWAConfig.
func graniteMoeSWASpell(f *fields) {
	graniteSpell(f)
	f.defaults(map[string]any{"sliding_window": 128})
	f.firstTypes(4)
}

// graniteSWAConfig: source is transformers, modeling_granite_swa.py.
func graniteSWAConfig(f *fields, c *Config) plan {
	p := graniteConfig(f, c).(granitePlan)
	p.windows(f, c)
	return p
}

// graniteMoeSWAConfig: source is transformers, modeling_granitemoe_swa.py.
func graniteMoeSWAConfig(f *fields, c *Config) plan {
	p := graniteMoeSharedConfig(f, c).(granitePlan)
	n := &p.experts.names
	n.router, n.fused, n.gate, n.up, n.down = "router", "", "gate_proj", "up_proj", "down_proj"
	p.windows(f, c)
	return p
}

// windows reads what both have beside Granite.
func (p *granitePlan) windows(f *fields, c *Config) {
	p.sinks = true
	c.windows(f, 0, 0)
	thetas := list[float64](f, "layer_rope_theta", "a list of numbers")
	if thetas == nil || f.err != nil {
		return
	}
	if len(thetas) != c.Layers {
		f.fault("layer_rope_theta", fmt.Sprintf("%d entries", len(thetas)), fmt.Sprintf("one for each of %d layers", c.Layers))
	}
	p.unrotated = make([]bool, len(thetas))
	p.ropes = slices.Repeat([]Rope{c.Rope}, len(thetas))
	for i, theta := range thetas {
		p.unrotated[i] = theta == 0
		if theta == 0 {
			continue
		}
		if theta < minTheta || theta > maxTheta {
			f.fault("layer_rope_theta", fmt.Sprint(theta), fmt.Sprintf("0 or a number in %d..%g", minTheta, float64(maxTheta)))
		}
		p.ropes[i].Theta = theta
	}
}

// graniteSWAGGUF: rope_pattern says which layers have a rotary embedding, all of one base.
func graniteSWAGGUF(f *fields) {
	f.flaggedTypes()
	rotated := list[bool](f, "gguf.rope_pattern", "a list of flags")
	if rotated == nil {
		return
	}
	layers := f.size(maxLayers, "num_hidden_layers")
	if len(rotated) < layers {
		f.fault("gguf.rope_pattern", fmt.Sprintf("%d entries", len(rotated)), fmt.Sprintf("one for each of %d layers", layers))
		return
	}
	bases := make([]float64, layers)
	for i := range bases {
		if rotated[i] {
			bases[i] = f.number(10000, minTheta, maxTheta, "rope_theta")
		}
	}
	f.set("layer_rope_theta", bases)
}
