package family

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/millrace/millrace/compute/weights"
)

// latentForm is that of GGUF files with latents: the keys of deepseek2 in llama.cpp, and names of tensors. The converter has the matrices
// that make the keys of latents, transposed, and those that make the values, in a tensor each; older files have them in one, as checkpoints
// do. own sets what only the family has; nil: nothing.
func latentForm(name string, only func(ggufKeys) bool, own func(*fields)) *ggufForm {
	return &ggufForm{
		name: name, only: only,
		parts: map[string]string{
			"attn_q_a": "self_attn.q_a_proj", "attn_q_a_norm": "self_attn.q_a_layernorm", "attn_q_b": "self_attn.q_b_proj",
			"attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa", "attn_kv_a_norm": "self_attn.kv_a_layernorm",
			"attn_kv_b": "self_attn.kv_b_proj", "attn_k_b": "self_attn.k_b_proj", "attn_v_b": "self_attn.v_b_proj",
			"ffn_gate_up_exps.weight": "mlp.experts.gate_up_proj",
		},
		keys: merged(mixtureKeys, map[string]string{
			// of the latents
			"attention.key_length": "gguf.key_length", "attention.value_length": "gguf.value_length", "attention.head_count_kv": "",
			"attention.key_length_mla": "gguf.key_length_mla", "attention.value_length_mla": "v_head_dim",
			"attention.q_lora_rank": "q_lora_rank", "attention.kv_lora_rank": "kv_lora_rank", "rope.dimension_count": "qk_rope_head_dim",
			"rope.scaling.yarn_log_multiplier": "gguf.yarn_log_multiplier",
			"attention.temperature_scale":      "gguf.temperature_scale", "attention.temperature_length": "gguf.temperature_length",
		}),
		spell: func(f *fields) {
			f.latentGGUF()
			if own != nil {
				own(f)
			}
		},
		tensors: latentTensors,
	}
}

// latentTensors is keyTensors for files whose matrices may be in blocks, which nothing transposes.
func latentTensors(c *Config, w *weights.Checkpoint) error {
	for _, name := range named(w, func(name string) bool { return strings.HasSuffix(name, ".kv_b_proj.weight") }) {
		if t, _ := w.Describe(name); t.DType.Blocks() {
			return &weights.FormatError{File: t.File, Name: name, Found: "type " + t.Type + " of attn_kv_b",
				Expected: "attn_k_b and attn_v_b, as files of after April 2025 have them"}
		}
	}
	return keyTensors(c, w)
}

// latentGGUF sets the sizes of heads. Files of before the two tensors have them without _mla.
func (f *fields) latentGGUF() {
	f.set("attention_bias", f.inLayers("attn_output.bias"))
	rotated := f.size(maxHeadDim, "qk_rope_head_dim")
	head := f.integer(f.integer(0, 1, 1<<16, "gguf.key_length"), 1, maxHeadDim, "gguf.key_length_mla")
	if f.err == nil && head <= rotated {
		f.fault("gguf.key_length_mla", fmt.Sprint(head), fmt.Sprintf("more than rope.dimension_count, %d", rotated))
	}
	f.set("qk_nope_head_dim", head-rotated)
	if !f.has("v_head_dim") {
		f.members["v_head_dim"] = f.members["gguf.value_length"]
	}
	if !f.has("q_lora_rank") {
		f.members["q_lora_rank"] = json.RawMessage("null")
	}
	// The files have one factor of YaRN for a tenth of its logarithm, which is that of cosines and scores: the former have none then.
	if factor := f.number(0, 0, 10, "gguf.yarn_log_multiplier") * 10; factor > 0 && f.has("rope_scaling") {
		r := f.ropeObject()
		r.set("mscale", factor)
		r.set("mscale_all_dim", factor)
		f.set("rope_scaling", r.members)
	}
}

// sigmoidExperts reports whether a file of deepseek2 scores its experts by sigmoid, as DeepSeek-V3 does. The first files of GLM-4.7-Flash
// have no key for it. They are recognized by their size, as in llama.cpp.
func sigmoidExperts(k ggufKeys) bool {
	if gating, ok := k.of("expert_gating_func").(int64); ok && gating != 0 {
		return gating == gatingSigmoid
	}
	layers, _ := k.of("block_count").(int64)
	return (layers == 47 || layers == 48) && k.of("vocab_size") == int64(154880)
}

// mistral4GGUF: queries grow with the position by the temperature's scale.
func mistral4GGUF(f *fields) {
	f.mixture(gatingSoftmax)
	f.temperatureGGUF()
}

// temperatureGGUF sets the scale of queries by their position, whose length is that of the training.
func (f *fields) temperatureGGUF() {
	scale := f.number(0, 0, 100, "gguf.temperature_scale")
	if !f.has("rope_scaling") {
		if scale > 0 {
			f.fault("gguf.temperature_scale", fmt.Sprint(scale), "none without rope.scaling.original_context_length")
		}
		f.set("rope_parameters", map[string]any{"rope_type": "default"}) // which the class has otherwise
		return
	}
	r := f.ropeObject()
	length, original := f.integer(0, 0, maxPositions, "gguf.temperature_length"),
		r.integer(0, 1, maxPositions, "original_max_position_embeddings")
	if length != 0 && length != original {
		f.fault("gguf.temperature_length", fmt.Sprint(length), fmt.Sprintf("rope.scaling.original_context_length, %d", original))
	}
	r.set("llama_4_scaling_beta", scale)
	f.set("rope_scaling", r.members)
}

// minicpm3Form: llama.cpp knows the factors, which are the class's defaults.
func minicpm3Form() *ggufForm {
	g := latentForm("minicpm3", nil, nil)
	g.tensors = func(c *Config, w *weights.Checkpoint) error {
		return errors.Join(latentTensors(c, w), graniteTensors(c, w))
	}
	return g
}
