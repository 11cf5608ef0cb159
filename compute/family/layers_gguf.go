package family

import (
	"encoding/json"
	"fmt"
)

// flaggedTypes sets layer_types from the flag of each layer, which may be a number. llama.cpp has no pattern for these families without it.
func (f *fields) flaggedTypes() {
	name, raw := f.get(ggufPattern)
	layers := f.size(maxLayers, "num_hidden_layers")
	var flags []json.RawMessage
	if raw == nil || json.Unmarshal(raw, &flags) != nil || len(flags) < layers {
		f.fault(name, excerpt(raw), fmt.Sprintf("a flag for each of %d layers", layers))
		return
	}
	types := make([]string, layers)
	for i := range types {
		switch string(flags[i]) {
		case "true", "1":
			types[i] = sliding
		case "false", "0":
			types[i] = full
		default:
			f.fault(name, string(flags[i]), "a flag")
		}
	}
	f.set("layer_types", types)
}

// mlpTypes sets mlp_layer_types: layers with a plain MLP have the tensor of its gate.
func (f *fields) mlpTypes() {
	types := make([]string, f.size(maxLayers, "num_hidden_layers"))
	for i := range types {
		types[i] = "sparse"
		if _, ok := f.describe(fmt.Sprintf("blk.%d.ffn_gate.weight", i)); ok {
			types[i] = "dense"
		}
	}
	f.set("mlp_layer_types", types)
}

// ggufLocalBase is the member of rope.freq_base_swa, of families whose config.json has it in rope_parameters alone.
const ggufLocalBase = "gguf.rope.freq_base_swa"

// mimoGGUF: layers with a window have twice the KV heads. The window does not count the token itself, as in the configurations from which the
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

// mellumGGUF: the rotary embedding of layers with a window has the base of the others without a key.
func mellumGGUF(f *fields) {
	f.set("norm_topk_prob", true)
	f.mlpTypes()
	if !f.has("sliding_window") {
		f.members["sliding_window"] = []byte("null")
		f.sameTypes("layer_types", full)
		return
	}
	f.ggufTypes(4)
	f.defaults(map[string]any{ggufLocalBase: f.number(10000, minTheta, maxTheta, "rope_theta")})
}

// cohere2MoeGGUF: without the key of a function of the gates it is sigmoid.
func cohere2MoeGGUF(f *fields) {
	f.flaggedTypes()
	f.defaults(map[string]any{"num_shared_experts": 0, "norm_topk_prob": false, "first_k_dense_replace": 0})
	switch gating := f.integer(0, 0, 16, ggufGating); gating {
	case gatingSoftmax:
		f.set("expert_selection_fn", "softmax")
		if !f.flag(true, "norm_topk_prob") { // which the class does not read
			f.fault("norm_topk_prob", "false", "true")
		}
	case 0, gatingSigmoid:
		f.set("expert_selection_fn", "sigmoid")
	default:
		f.fault(ggufGating, fmt.Sprint(gating), "1 or 2")
	}
	shared := f.size(maxWidth, "intermediate_size") * f.integer(0, 0, maxExperts, "num_shared_experts")
	if own := f.integer(shared, 0, maxWidth, "gguf.shared"); own != shared {
		f.fault("gguf.shared", fmt.Sprint(own), fmt.Sprintf("%d, the width of the shared experts", shared))
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
