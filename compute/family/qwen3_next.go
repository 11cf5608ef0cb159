package family

import (
	"strings"

	"github.com/millrace/millrace/compute/weights"
)

// qwen3Next is a mixture of which every fourth layer has gated attention, and the others a gated delta net.
var qwen3Next = family{
	class: "Qwen3NextForCausalLM", bare: "Qwen3NextModel", kind: "qwen3_next",
	config:  qwen3NextConfig,
	tensors: hybridNorms,
	gguf:    deltaNetForm("qwen3next", qwenGatedKeys),

	models:   "Qwen3-Next-80B-A3B",
	features: "gated delta nets, gated attention with part of a head rotated in every fourth layer, experts and a shared one with a gate",
}

// qwen35 is Qwen3.5, whose dense models have a plain MLP.
var qwen35 = family{
	class: "Qwen3_5ForCausalLM", also: []string{"Qwen3_5ForConditionalGeneration"}, bare: "Qwen3_5TextModel", kind: "qwen3_5_text",
	spell:   func(f *fields) { f.liftText() },
	config:  qwen35Config,
	tensors: hybridNorms,
	gguf:    deltaNetForm("qwen35", nil),

	models:   "Qwen3.5 and Qwen3.6 (dense), the text of models with images too",
	features: "Qwen3-Next without experts, projections of a delta net in tensors of their own",
}

var qwen35Moe = family{
	class: "Qwen3_5MoeForCausalLM", also: []string{"Qwen3_5MoeForConditionalGeneration"}, bare: "Qwen3_5MoeTextModel",
	kind: "qwen3_5_moe_text", spell: func(f *fields) { f.liftText() },
	config:  qwen35MoeConfig,
	tensors: hybridNorms,
	gguf:    deltaNetForm("qwen35moe", qwenGatedKeys),

	models:   "Qwen3.5-35B-A3B and larger mixtures, the text of models with images too",
	features: "Qwen3.5 with experts and a shared one with a gate",
}

// qwen3NextConfig: source is transformers, modeling_qwen3_next.py.
func qwen3NextConfig(f *fields, c *Config) plan {
	f.defaults(map[string]any{
		"intermediate_size": 5632, "num_experts": 512, "num_experts_per_tok": 10, "moe_intermediate_size": 512, "norm_topk_prob": true,
	})
	p := hybridConfig(f, c)
	p.mixer.(*deltaNet).fused = true
	p.experts = sharedExperts(f, c)
	return p
}

func qwen35Config(f *fields, c *Config) plan {
	f.defaults(map[string]any{"intermediate_size": 12288})
	return qwen35Plan(f, c)
}

// qwen35Plan is what both Qwen3.5 have. GGUF files of these have the heads of values in tiles.
func qwen35Plan(f *fields, c *Config) llamaPlan {
	p := hybridConfig(f, c)
	d := p.mixer.(*deltaNet) //nolint:forcetypeassert // hybridConfig made it
	d.tiled = weights.IsGGUF(c.File) && d.heads > d.keyHeads
	return p
}

// qwen35MoeConfig has no plain MLP.
func qwen35MoeConfig(f *fields, c *Config) plan {
	f.defaults(map[string]any{
		"intermediate_size": 512, "num_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 512, "norm_topk_prob": true,
	})
	p := qwen35Plan(f, c)
	p.experts = sharedExperts(f, c)
	return p
}

// hybridConfig reads what all have.
func hybridConfig(f *fields, c *Config) llamaPlan {
	f.defaults(map[string]any{"head_dim": 256, "rms_norm_eps": 1e-6})
	p := llamaPlan{gatedAttention: true, mixer: readDeltaNet(f)}
	decoderSizes(f, c, 0)
	p.rotary = partialRope(f, c, 32768, 0.25)
	c.QKNorm = true
	c.attentionBias(f, false)
	p.recurrent = f.mixerLayers(c, linearAttention, "full_attention_interval", 4)
	return p
}

func sharedExperts(f *fields, c *Config) *experts {
	e := qwenMoe(f, c)
	e.shared, e.sharedGate = f.integer(512, 1, maxWidth, "shared_expert_intermediate_size"), true
	return e
}

// hybridNorms adds one to the weights of the norms, but for that of a delta net's gate.
func hybridNorms(_ *Config, w *weights.Checkpoint) error {
	return onePlus(w, func(name string) bool {
		return strings.HasSuffix(name, "norm.weight") && !strings.HasSuffix(name, "linear_attn.norm.weight") &&
			!strings.Contains(name, "visual")
	})
}
