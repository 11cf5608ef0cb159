package family

import (
	"fmt"
	"slices"
	"sync"

	"github.com/millrace/millrace/compute/model"
	"github.com/millrace/millrace/compute/weights"
)

// ling2 is Ling 2.0: the layers of GLM-4.5 under other names.
var ling2 = family{
	class: "BailingMoeV2ForCausalLM", kind: "bailing_moe_v2",
	spell:   ling2Spell,
	config:  ling2Config,
	tensors: lingTensors,
	gguf: &ggufForm{
		name: "bailingmoe2", partial: true,
		parts: map[string]string{"attn_qkv": "self_attn.qkv_proj"},
		keys:  merged(lingKeys, map[string]string{"expert_shared_feed_forward_length": "moe_shared_expert_intermediate_size"}),
		spell: ling2GGUF,
	},

	models:   "Ling 2.0 and Ring 2.0 (mini, flash, 1T)",
	features: "as GLM-4.5 with RMS norms of q and k, fused q/k/v, `moe_shared_expert_intermediate_size`",
}

// ling is Ling 1.5: Llama with experts.
var ling = family{
	class: "BailingMoeForCausalLM", kind: "bailing_moe",
	spell:   lingSpell,
	config:  lingConfig,
	tensors: lingOwnTensors,
	gguf:    &ggufForm{name: "bailingmoe", interleaved: true, keys: lingKeys, spell: lingGGUF},

	models:   "Ling-lite, Ling-plus, Ling-lite 1.5, Ling-coder-lite",
	features: "Llama with experts: softmax, `norm_topk_prob`, shared ones, fused q/k/v, `norm_head`",
}

// lingKeys are the keys of the experts, in GGUF files.
var lingKeys = merged(mixtureKeys, map[string]string{"expert_count": "num_experts", "expert_shared_count": "num_shared_experts"})

type lingPlan struct {
	llamaPlan
	normHead bool // the columns of the head are divided by their length
}

// ling2Spell sets the defaults of BailingMoeV2Config, which is beside the checkpoints.
func ling2Spell(f *fields) {
	f.defaults(map[string]any{
		"partial_rotary_factor": 0.5, "n_group": 8, "topk_group": 4, "routed_scaling_factor": 2.5,
	})
	lingSpell(f)
}

// lingSpell sets the defaults of BailingMoeConfig, and gives the experts the names that GLM-4.5 has.
func lingSpell(f *fields) {
	f.defaults(map[string]any{
		"max_position_embeddings": 16384, "rms_norm_eps": 1e-5, "num_experts": 16, "num_experts_per_tok": 2, "num_shared_experts": 0,
		"first_k_dense_replace": 0,
	})
	f.rename(map[string]string{"num_experts": "n_routed_experts", "num_shared_experts": "n_shared_experts"})
}

// ling2Config: source is modeling_bailing_moe_v2.py of the checkpoints. It reads neither norm_topk_prob nor use_qk_norm, and does both.
func ling2Config(f *fields, c *Config) plan {
	rotary := partialDecoder(f, c, 0)
	if n := f.integer(rotary, 0, maxHeadDim, "rotary_dim"); n != rotary {
		f.fault("rotary_dim", fmt.Sprint(n), fmt.Sprintf("%d, by partial_rotary_factor", rotary))
	}
	for _, always := range []string{"norm_topk_prob", "use_qk_norm"} {
		f.must(always)
	}
	f.without("norm_head")
	p := lingDecoder(f, c, "sigmoid", model.RouteSigmoid)
	c.QKNorm, p.rotary = true, rotary
	p.experts.names.bias, p.experts.biasIfThere = "gate.e_score_correction_bias", true
	if width := f.integer(p.experts.intermediate, 1, maxWidth, "moe_shared_expert_intermediate_size"); f.err == nil {
		p.experts.shared = p.experts.shared / p.experts.intermediate * width
	}
	return p
}

// lingConfig: source is modeling_bailing_moe.py of the checkpoints. Ling 2.0 has the same model_type.
func lingConfig(f *fields, c *Config) plan {
	llamaSizes(f, c, 0, 0)
	f.without("use_qk_norm")
	f.without("moe_router_enable_expert_bias")
	p := lingPlan{lingDecoder(f, c, "softmax", model.RouteSoftmax), f.flag(false, "norm_head")}
	if p.normHead && c.TieEmbeddings {
		f.fault("norm_head", "true with tie_word_embeddings", "false")
	}
	p.experts.names.bias = ""
	p.experts.routing.Groups, p.experts.routing.TopGroups = 1, 1
	return p
}

// lingDecoder reads what both have. By default there is a bias of the attention's result, which no checkpoint has.
func lingDecoder(f *fields, c *Config, score string, scores model.RouteScores) llamaPlan {
	c.QKVBias = f.flag(false, "use_qkv_bias")
	if f.flag(true, "use_bias") {
		f.fault("use_bias", map[bool]string{false: "nothing", true: "true"}[f.has("use_bias")], "false")
	}
	f.must("use_rmsnorm")
	for _, other := range []string{"norm_softmax", "use_sliding_window"} {
		f.without(other)
	}
	f.only("score_function", score)
	e := glm4Experts(f, c)
	e.routing.Scores, e.routing.Normalize = scores, e.routing.Normalize && e.routing.TopK > 1
	return llamaPlan{fused: f.flag(true, ggufFused), experts: e}
}

// lingTensors gives the tensors the names that GLM-4.5 has.
func lingTensors(_ *Config, w *weights.Checkpoint) error {
	ends := map[string]string{
		"word_embeddings.weight": "embed_tokens.weight", ".mlp.gate.expert_bias": ".mlp.gate.e_score_correction_bias",
		".attention.query_layernorm.weight": ".self_attn.q_norm.weight", ".attention.key_layernorm.weight": ".self_attn.k_norm.weight",
		".attention.dense.weight": ".self_attn.o_proj.weight",
	}
	for _, kind := range []string{"weight", "bias"} {
		ends[".attention.query_key_value."+kind] = ".self_attn.qkv_proj." + kind
	}
	rename(w, ends)
	return nil
}

// lingOwnTensors divides the weights of the last norm in place of the columns of the head. GGUF files have these divided.
func lingOwnTensors(c *Config, w *weights.Checkpoint) error {
	if err := lingTensors(c, w); err != nil || !c.plan.(lingPlan).normHead {
		return err
	}
	const name = "lm_head.weight"
	head, ok := w.Describe(name)
	if ok && (!head.DType.Floats() || len(head.Shape) != 2) {
		return &weights.FormatError{File: head.File, Name: name, Found: "type " + head.Type + " with norm_head",
			Expected: "F32, F16 or BF16"}
	}
	lengths := sync.OnceValue(func() []float32 { return w.ColumnLengths(name) })
	return w.Scale(func(norm string) func(int64) float32 {
		if !slices.Contains(finalNorm, norm) {
			return nil
		}
		return func(i int64) float32 {
			if all := lengths(); i < int64(len(all)) {
				return 1 / (all[i] + 1e-7)
			}
			return 1 // the shape of the norm is the error
		}
	})
}

// ling2GGUF: q, k and v are one tensor, as in the checkpoints.
func ling2GGUF(f *fields) {
	f.mixture(gatingSigmoid)
	f.set("use_bias", f.inLayers("attn_output.bias"))
	f.set("use_qkv_bias", f.inLayers("attn_qkv.bias"))
}

// lingGGUF: q, k and v are apart.
func lingGGUF(f *fields) {
	f.mixture(gatingSoftmax)
	f.set("use_bias", f.inLayers("attn_output.bias"))
	f.members["use_qkv_bias"] = f.members["attention_bias"]
	f.set(ggufFused, false)
}
