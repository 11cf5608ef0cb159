package family

import (
	"fmt"
	"strings"
)

// mimoV2Flash has layers with a window, twice the KV heads and a score of a key without a value, between those that see all.
var mimoV2Flash = family{
	class: "MiMoV2FlashForCausalLM", bare: "MiMoV2FlashModel", kind: "mimo_v2_flash",
	spell:  mimoSpell,
	config: mimoConfig,
	gguf: &ggufForm{
		name: "mimo2", partial: true,
		parts: map[string]string{"attn_sinks.weight": "self_attn.attention_sink_bias"},
		keys: merged(mixtureKeys, windowKeys, map[string]string{
			"attention.value_length": "v_head_dim", "attention.value_scale": "attention_value_scale", "rope.freq_base_swa": ggufLocalBase,
		}),
		spell: mimoGGUF,
	},

	models: "MiMo-V2-Flash",
	features: "values of another size than keys (`v_head_dim`) and with a factor (`attention_value_scale`), part of a head rotated, sliding windows by `layer_types` with twice the KV heads, `sinks` and " +
		"a rotary base of their own, experts: sigmoid with a bias, groups, plain layers by `mlp_layer_types`",
}

// mimoPartial is the rotated part of a head by default.
const mimoPartial = 0.334

// mimoSpell sets the defaults of MiMoV2FlashConfig. A window of the published configurations does not count the token itself.
func mimoSpell(f *fields) {
	layers := f.size(maxLayers, "num_hidden_layers")
	types, mlps := make([]string, layers), make([]string, layers)
	for i := range types {
		types[i], mlps[i] = sliding, "sparse"
		if i == 0 || (i+1)%6 == 0 {
			types[i] = full
		}
		if i == 0 {
			mlps[i] = "dense"
		}
	}
	f.defaults(map[string]any{
		"intermediate_size": 16384, "num_key_value_heads": 4, "head_dim": 192, "v_head_dim": 128, "max_position_embeddings": 131072,
		"rms_norm_eps": 1e-5, "n_routed_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 2048, "sliding_window": 129,
		"layer_types": types, "mlp_layer_types": mlps, "rope_theta": 5e6, "partial_rotary_factor": mimoPartial,
	})
	f.missing(map[string]any{"attention_value_scale": 0.707})
	if f.has("sliding_window_size") {
		f.set("sliding_window", f.integer(0, 1, maxPositions, "sliding_window_size")+1)
	}
	f.set("n_shared_experts", 0)
}

// mimoConfig: source is transformers, modeling_mimo_v2_flash.py.
func mimoConfig(f *fields, c *Config) plan {
	decoderSizes(f, c, 0)
	c.QKVBias = f.flag(false, "attention_bias")
	local, partial := layerRopes(f, c, f.integer(0, 1, maxPositions, "max_position_embeddings"),
		f.number(10000, minTheta, maxTheta, "swa_rope_theta"))
	rotary := c.rotated(f, partial)
	types := f.ropeObject()
	other := types.object(sliding)
	if own := other.number(mimoPartial, 0, 1, "partial_rotary_factor"); own != partial {
		other.fault("partial_rotary_factor", fmt.Sprint(own), fmt.Sprintf("%g, that of full_attention", partial))
	}
	types.adopt(other)
	f.adopt(types)
	c.windows(f, 0, 0)
	if heads := 2 * c.KVHeads; f.err == nil && c.Heads%heads != 0 {
		f.fault("num_key_value_heads", fmt.Sprint(c.KVHeads), fmt.Sprintf("one whose double divides the %d attention heads", c.Heads))
	}
	e := glm4Experts(f, c)
	e.dense = f.denseLayers(c)
	return llamaPlan{
		rotary: rotary, local: &local, experts: e,
		values: &valueShapes{dim: f.size(maxHeadDim, "v_head_dim"), scale: float32(f.number(1, 1e-3, 1e3, "attention_value_scale"))},
		names:  strings.NewReplacer("self_attn.sinks", "self_attn.attention_sink_bias"),
	}
}

// mimoGGUF: layers with a window have twice the KV heads. The window does not count the token itself, as in the configurations of which the
// files are made.
func mimoGGUF(f *fields) {
	f.mixture(gatingSigmoid)
	f.set("norm_topk_prob", true)
	f.missing(map[string]any{"attention_value_scale": nil})
	f.defaults(map[string]any{"v_head_dim": f.integer(0, 1, maxHeadDim, "head_dim"), "partial_rotary_factor": 1})
	f.flaggedTypes()
	f.mlpTypes()
	f.mimoHeads()
	if !f.has("rope_scaling") {
		base := f.number(10000, minTheta, maxTheta, "rope_theta")
		part := f.number(1, 0, 1, "partial_rotary_factor")
		f.set("rope_parameters", map[string]any{
			full:    map[string]any{"rope_theta": base, "partial_rotary_factor": part},
			sliding: map[string]any{"rope_theta": f.number(10000, minTheta, maxTheta, ggufLocalBase), "partial_rotary_factor": part},
		})
	}
	f.set("sliding_window_size", f.size(maxPositions-1, "sliding_window"))
}

// mimoHeads takes the KV heads of layers without a window from the list of all.
func (f *fields) mimoHeads() {
	heads, types := f.listed("num_key_value_heads"), f.texts("layer_types")
	if f.err != nil || heads == nil {
		return
	}
	name, raw := f.get("num_key_value_heads")
	if len(heads) < len(types) {
		f.fault(name, fmt.Sprintf("%d entries", len(heads)), fmt.Sprintf("one for each of %d layers", len(types)))
		return
	}
	least := 0
	for i, kind := range types {
		own := heads[i]
		if kind == sliding {
			own /= 2
		}
		if least == 0 {
			least = own
		}
		if own != least || kind == sliding && heads[i]%2 != 0 {
			f.fault(name, excerpt(raw), "twice the number in layers with a window")
		}
	}
	f.set("num_key_value_heads", least)
}
