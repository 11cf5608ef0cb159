package family

import (
	"fmt"
	"slices"
	"strings"

	"github.com/millrace/millrace/compute/model"
	"github.com/millrace/millrace/compute/weights"
)

// olmo2 is OLMo 2: Llama with norms after the blocks instead of before them, and over all of q and of k.
var olmo2 = family{
	class: "Olmo2ForCausalLM", bare: "Olmo2Model", kind: "olmo2",
	spell:  olmoSpell,
	config: olmo2Config,
	gguf: &ggufForm{
		name:  "olmo2",
		only:  func(k ggufKeys) bool { return !k.some("attention.sliding_window") },
		parts: sandwichParts,
	},

	models:   "OLMo 2",
	features: "RMS norms after each block, and over all heads of q and of k together",
}

// olmo3 is OLMo 2 with sliding windows in most layers.
var olmo3 = family{
	class: "Olmo3ForCausalLM", bare: "Olmo3Model", kind: "olmo3",
	spell:  olmo3Spell,
	config: olmo3Config,
	gguf: &ggufForm{
		name:  "olmo2",
		only:  func(k ggufKeys) bool { return k.some("attention.sliding_window") },
		parts: sandwichParts,
		keys:  merged(windowKeys, map[string]string{"rope.freq_base_swa": "gguf.rope.freq_base_swa"}),
		spell: olmo3GGUF,
	},

	models:   "OLMo 3",
	features: "as OLMo 2, sliding windows by `layer_types` or in three of four layers, with a rotary embedding of their own",
}

// olmoe is Llama with norms over all of q and of k, and a mixture of experts.
var olmoe = family{
	class: "OlmoeForCausalLM", bare: "OlmoeModel", kind: "olmoe",
	spell:  olmoeSpell,
	config: olmoeConfig,
	gguf: &ggufForm{
		name: "olmoe",
		keys: map[string]string{"expert_count": "num_experts", "expert_used_count": "num_experts_per_tok"},
	},

	models:   "OLMoE 1B-7B",
	features: "RMS norms over all heads of q and of k together, experts: softmax, `norm_topk_prob`",
}

// flexOlmo is OLMo 2 with a mixture of experts.
var flexOlmo = family{
	class: "FlexOlmoForCausalLM", bare: "FlexOlmoModel", kind: "flex_olmo",
	spell:  flexOlmoSpell,
	config: flexOlmoConfig,

	models:   "FlexOlmo",
	features: "OLMo 2 with experts: softmax, `norm_topk_prob`",
}

// olmoHybrid is OLMo 3 with a delta net in most layers, where the norms are before the blocks.
var olmoHybrid = family{
	class: "OlmoHybridForCausalLM", bare: "OlmoHybridModel", kind: "olmo_hybrid",
	spell:   olmoHybridSpell,
	config:  olmoHybridConfig,
	tensors: olmoHybridTensors,

	models:   "OLMo Hybrid 7B",
	features: "gated delta nets with rates of up to 2 (`linear_allow_neg_eigval`) by `layer_types`, OLMo 2 in the other layers, without a rotary embedding if `rope_theta` of `rope_parameters` is null",
}

// olmo is OLMo 1.
var olmo = family{
	class: "OlmoForCausalLM", bare: "OlmoModel", kind: "olmo",
	spell:  olmoSpell,
	config: olmoConfig,
	gguf: &ggufForm{
		name: "olmo", interleaved: true,
		// 1e-5
		keys: map[string]string{"attention.clamp_kqv": "clip_qkv", "attention.layer_norm_epsilon": "",
			"attention.layer_norm_rms_epsilon": ""},
	},

	models:   "OLMo 1B, 7B",
	features: "layer norms without weights, `clip_qkv`",
}

// olmoSpell sets the defaults of OlmoConfig and Olmo2Config.
func olmoSpell(f *fields) {
	f.defaults(map[string]any{"max_position_embeddings": 2048, "rms_norm_eps": 1e-5})
}

// olmoHybridSpell sets the defaults of OlmoHybridConfig.
func olmoHybridSpell(f *fields) {
	f.defaults(map[string]any{"max_position_embeddings": 65536})
	hidden, heads := f.size(maxWidth, "hidden_size"), f.size(maxHeads, "num_attention_heads")
	f.defaults(map[string]any{"linear_num_key_heads": heads, "linear_num_value_heads": heads})
	if keyHeads := f.integer(heads, 1, maxHeads, "linear_num_key_heads"); f.err == nil {
		f.defaults(map[string]any{"linear_key_head_dim": 3 * hidden / 4 / keyHeads})
	}
	f.defaults(map[string]any{"linear_value_head_dim": 2 * f.integer(0, 1, maxHeadDim/2, "linear_key_head_dim")})
}

// olmoHybridConfig: source is transformers, modeling_olmo_hybrid.py.
func olmoHybridConfig(f *fields, c *Config) plan {
	p := olmo2Plan(f, c)
	d := readDeltaNet(f)
	d.each, d.eps = true, 1e-5
	if f.flag(true, "linear_allow_neg_eigval") {
		d.rateScale = 2
	}
	p.mixer, p.mixerNorms = d, llamaNorms
	p.recurrent = f.mixerLayers(c, linearAttention, "full_attention_interval", 4)
	if f.err == nil && !slices.Contains(p.recurrent, false) && !f.has("layer_types") {
		p.recurrent[c.Layers-1] = false
	}
	if theta, ok := f.object("rope_parameters").members["rope_theta"]; ok && string(theta) == "null" {
		p.unrotated = slices.Repeat([]bool{true}, c.Layers)
	}
	return p
}

// olmoHybridTensors gives the norms the names of Llama and OLMo 2: the checkpoint has others for those of delta nets, and transformers
// writes one of these for those of attention too.
func olmoHybridTensors(c *Config, w *weights.Checkpoint) error {
	rename(w, map[string]string{
		".attention_layer_norm.weight": ".input_layernorm.weight", ".feedforward_layer_norm.weight": ".post_attention_layernorm.weight",
	})
	return stackFilters("linear_attn.")(c, w)
}

// stackFilters makes the filters of q, k and v of each layer's convolution one tensor. at is before their names in a layer.
func stackFilters(at string) func(c *Config, w *weights.Checkpoint) error {
	return func(_ *Config, w *weights.Checkpoint) error {
		suffix, names := at+"q_conv1d.weight", map[string][]string{}
		for _, q := range named(w, func(name string) bool { return strings.HasSuffix(name, suffix) }) {
			layer := strings.TrimSuffix(q, suffix) + at
			names[layer+"conv1d.weight"] = []string{q, layer + "k_conv1d.weight", layer + "v_conv1d.weight"}
		}
		return w.Stack(names)
	}
}

// olmo2Config: source is transformers, modeling_olmo2.py.
func olmo2Config(f *fields, c *Config) plan { return olmo2Plan(f, c) }

func olmo2Plan(f *fields, c *Config) llamaPlan {
	p := llamaConfig(f, c).(llamaPlan)
	c.MLPBias = false
	p.wideNorms, p.norms = true, layerNorms{attended: "post_attention_layernorm", mlpDone: "post_feedforward_layernorm"}
	return p
}

// olmo3Spell: rope_scaling is that of layers without a window only.
func olmo3Spell(f *fields) {
	olmoSpell(f)
	f.defaults(map[string]any{"rope_theta": 500000, "sliding_window": 4096})
	f.patternTypes(4)
}

// olmo3Config: source is transformers, modeling_olmo3.py.
func olmo3Config(f *fields, c *Config) plan {
	decoderSizes(f, c, 0)
	c.attentionBias(f, false)
	local := twoRopes(f, c, f.integer(0, 1, maxPositions, "max_position_embeddings"), f.number(0, minTheta, maxTheta, "rope_theta"))
	c.windows(f, 0, 0)
	return llamaPlan{
		local: &local, wideNorms: true,
		norms: layerNorms{attended: "post_attention_layernorm", mlpDone: "post_feedforward_layernorm"},
	}
}

// olmoeSpell sets the defaults of OlmoeConfig.
func olmoeSpell(f *fields) {
	f.defaults(map[string]any{
		"max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "intermediate_size": 2048, "num_experts": 64, "num_experts_per_tok": 8,
	})
}

// olmoeConfig: source is transformers, modeling_olmoe.py. It clips q and k after their norms, which no op does.
func olmoeConfig(f *fields, c *Config) plan {
	p := llamaConfig(f, c).(llamaPlan)
	c.MLPBias = false
	if _, raw := f.get("clip_qkv"); raw != nil {
		f.fault("clip_qkv", excerpt(raw), "null")
	}
	p.wideNorms = true
	p.experts = readExperts(f, []string{"num_experts", "num_local_experts"}, []string{"num_experts_per_tok"}, []string{"intermediate_size"})
	p.experts.routing.Scores, p.experts.routing.Normalize = model.RouteSoftmax, f.flag(false, "norm_topk_prob")
	return p
}

// flexOlmoSpell sets the defaults of FlexOlmoConfig.
func flexOlmoSpell(f *fields) {
	f.defaults(map[string]any{
		"max_position_embeddings": 4096, "rope_theta": 500000, "num_experts": 7, "num_experts_per_tok": 5, "intermediate_size": 11008,
	})
}

// flexOlmoConfig: source is transformers, modeling_flex_olmo.py.
func flexOlmoConfig(f *fields, c *Config) plan {
	p := olmo2Plan(f, c)
	p.experts = readExperts(f, []string{"num_experts", "num_local_experts"}, []string{"num_experts_per_tok"}, []string{"intermediate_size"})
	p.experts.routing.Scores, p.experts.routing.Normalize = model.RouteSoftmax, f.flag(false, "norm_topk_prob")
	return p
}

// olmoConfig: source is transformers, modeling_olmo.py.
func olmoConfig(f *fields, c *Config) plan {
	blockSizes(f, c, 0, "silu")
	c.Eps = 1e-5 // OlmoLayerNorm
	f.wholeHeads(ropeConfig(f, c, f.integer(0, 1, maxPositions, "max_position_embeddings")))
	c.attentionBias(f, false)
	names := llamaNames()
	names.gate, names.up, names.down = "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"
	return blockPlan{names: names, rotary: c.HeadDim, bareNorms: true, clip: float32(f.number(0, 1e-6, 1e6, "clip_qkv"))}
}

// olmo3GGUF: three of four layers have windows, and all have one base of the rotary embedding.
func olmo3GGUF(f *fields) {
	f.ggufTypes(4)
	theta := f.number(10000, minTheta, maxTheta, "rope_theta")
	if local := f.number(theta, minTheta, maxTheta, "gguf.rope.freq_base_swa"); local != theta {
		f.fault("gguf.rope.freq_base_swa", fmt.Sprint(local), fmt.Sprintf("rope.freq_base, %g", theta))
	}
}
