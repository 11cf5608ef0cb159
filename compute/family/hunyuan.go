package family

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"

	"github.com/millrace/millrace/compute/model"
)

// hunyuan is Hunyuan: Llama with norms over each head of q and k after the rotation.
var hunyuan = family{
	class: "HunYuanDenseV1ForCausalLM", bare: "HunYuanDenseV1Model", kind: "hunyuan_v1_dense",
	spell:  hunyuanSpell,
	config: hunyuanConfig,
	gguf: &ggufForm{ // whose base of the rotary embedding has alpha, but in files of models with images
		name: "hunyuan-dense", also: []string{"hunyuan_vl"}, parts: hunyuanParts,
		keys: map[string]string{"rope.scaling.alpha": "gguf.rope.alpha"}, spell: hunyuanGGUF,
	},

	models:   "Hunyuan 0.5B to 7B",
	features: "RMS norm over each head of q and k after the rotation, `dynamic` by `alpha`",
}

// hunyuanMoe is Hunyuan with a mixture of experts.
var hunyuanMoe = family{
	class: "HunYuanMoEV1ForCausalLM", bare: "HunYuanMoEV1Model", kind: "hunyuan_v1_moe",
	spell:  hunyuanSpell,
	config: hunyuanMoeConfig,
	gguf: &ggufForm{
		name: "hunyuan-moe",
		parts: merged(hunyuanParts, map[string]string{
			"ffn_gate_inp": "mlp.gate.wg", "ffn_gate_shexp": "mlp.shared_mlp.gate_proj", "ffn_up_shexp": "mlp.shared_mlp.up_proj",
			"ffn_down_shexp": "mlp.shared_mlp.down_proj",
		}),
		keys: map[string]string{
			"expert_count": "num_experts", "expert_used_count": "moe_topk", "expert_feed_forward_length": "intermediate_size",
			"feed_forward_length": "", "expert_shared_count": "gguf.expert_shared_count",
			"expert_shared_feed_forward_length": "gguf.shared",
		},
		spell: hunyuanMoeGGUF,
	},

	models:   "Hunyuan A13B",
	features: "Hunyuan with experts: softmax, a shared one",
}

// hunyuanSpell sets the defaults of HunYuanDenseV1Config. Numbers of experts may be lists of one for each layer.
func hunyuanSpell(f *fields) {
	f.defaults(map[string]any{"max_position_embeddings": 2048, "rms_norm_eps": 1e-5})
	for _, name := range []string{"num_experts", "moe_topk"} {
		_, raw := f.get(name)
		var all []int
		if raw == nil || json.Unmarshal(raw, &all) != nil || len(all) == 0 {
			continue
		}
		for _, n := range all {
			if n != all[0] {
				f.fault(name, excerpt(raw), "the same number for each layer")
			}
		}
		f.set(name, all[0])
	}
}

func hunyuanConfig(f *fields, c *Config) plan { return hunyuanPlan(f, c) }

// hunyuanPlan: source is transformers, modeling_hunyuan_v1_dense.py.
func hunyuanPlan(f *fields, c *Config) llamaPlan {
	p := llamaConfig(f, c).(llamaPlan)
	c.QKNorm, c.MLPBias = true, false
	p.names, p.normLast = strings.NewReplacer("q_norm", "query_layernorm", "k_norm", "key_layernorm"), true
	if alpha := f.ropeObject().number(0, 1e-3, 1e9, "alpha"); alpha > 0 && c.Rope.Type == "dynamic" {
		c.Rope.Theta *= math.Pow(alpha, float64(c.HeadDim)/float64(max(c.HeadDim-2, 1)))
	}
	return p
}

// hunyuanMoeConfig: source is transformers, modeling_hunyuan_v1_moe.py.
func hunyuanMoeConfig(f *fields, c *Config) plan {
	p := hunyuanPlan(f, c)
	e := readExperts(f, []string{"num_experts"}, []string{"moe_topk", "num_experts_per_tok"}, []string{"intermediate_size"})
	e.routing.Scores, e.routing.Normalize = model.RouteSoftmax, true
	e.shared = e.intermediate
	e.names.router, e.names.shared = "gate.wg", "mlp.shared_mlp."
	p.experts = e
	return p
}

// hunyuanParts are the names of the norms of heads.
var hunyuanParts = map[string]string{"attn_q_norm": "self_attn.query_layernorm", "attn_k_norm": "self_attn.key_layernorm"}

// hunyuanGGUF spells alpha, if there is one, as configurations have it.
func hunyuanGGUF(f *fields) {
	alpha := f.number(0, 0, 1e9, "gguf.rope.alpha")
	if alpha == 0 {
		return
	}
	if f.has("rope_scaling") {
		f.fault("gguf.rope.alpha", fmt.Sprint(alpha), "none with another scaling")
	}
	f.set("rope_scaling", map[string]any{"rope_type": "dynamic", "alpha": alpha})
}

// hunyuanMoeGGUF: the shared MLP has the width of an expert.
func hunyuanMoeGGUF(f *fields) {
	width := f.size(maxWidth, "intermediate_size")
	if shared := f.integer(width, 1, maxWidth, "gguf.shared"); shared != width {
		f.fault("gguf.shared", fmt.Sprint(shared), fmt.Sprintf("the width of an expert, %d", width))
	}
	if n := f.integer(1, 0, maxExperts, "gguf.expert_shared_count"); n != 1 {
		f.fault("gguf.expert_shared_count", fmt.Sprint(n), "1")
	}
}
