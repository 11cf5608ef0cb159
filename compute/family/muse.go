package family

import (
	"fmt"
	"strings"

	"github.com/millrace/millrace/compute/weights"
)

// museGlimmer is the text model of Muse Glimmer: Gemma 2 with a gate of the attention's result, and layers without a rotary embedding.
var museGlimmer = family{
	class: "MuseGlimmerForConditionalGeneration", bare: "MuseGlimmerTextModel", kind: "muse_glimmer_text",
	spell:   museSpell,
	config:  museConfig,
	tensors: museTensors,
	gguf: &ggufForm{
		name: "muse-glimmer", interleaved: true,
		parts: merged(sandwichParts, map[string]string{"attn_gate": "self_attn.gate_proj"}),
		keys: merged(windowKeys, map[string]string{
			"logit_scale": "output_multiplier", "final_logit_softcapping": "final_logit_softcapping", "rope.freq_base_swa": ggufLocalBase,
		}),
		spell:   museGGUF,
		unused:  []string{".self_attn.q_norm.", ".self_attn.k_norm."},
		tensors: museLogits,
	},

	models: "the text of Muse Glimmer 30B",
	features: "RMS norms before and after each block, without weights over each head of q and k and of the embedding, a gate of the attention's result, sliding windows by `layer_types` or " +
		"but in every fourth layer from the last one on, no rotary embedding where `layer_rope_theta` is 0, `output_multiplier`, `final_logit_softcapping`",
}

// museSpell takes text_config for the whole, and sets the defaults of MuseGlimmerTextConfig.
func museSpell(f *fields) {
	f.liftText()
	f.sizes(202048, 6656, 19968, 52, 32)
	f.prefer(map[string]string{"hidden_activation": "hidden_act"})
	f.defaults(map[string]any{
		"num_key_value_heads": 2, "head_dim": 128, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "sliding_window": 2048,
		"rope_theta": 500000,
	})
	layers := f.size(maxLayers, "num_hidden_layers")
	types, thetas := make([]string, layers), make([]int, layers)
	for i := range types {
		types[i], thetas[i] = sliding, 1
		if (layers-1-i)%4 == 0 {
			types[i], thetas[i] = full, 0
		}
	}
	f.defaults(map[string]any{"layer_types": types, "layer_rope_theta": thetas})
}

// musePlan has a factor of the logits before their cap.
type musePlan struct {
	llamaPlan
	multiplier float32
}

// museConfig: source is transformers, modeling_muse_glimmer.py.
func museConfig(f *fields, c *Config) plan {
	llamaSizes(f, c, 0, 0)
	c.attentionBias(f, false)
	c.windows(f, 0, 0)
	p := musePlan{llamaPlan: llamaPlan{norms: sandwichNorms},
		multiplier: float32(f.number(0.19611613513818404, 1e-6, 1e6, "output_multiplier"))}
	p.embedNorm, p.plainNorms, p.allPlain = true, true, true
	p.branchEps = float32(f.number(1e-8, 1e-12, 0.1, "post_norm_eps"))
	p.attentionGate = "gate_proj"
	p.finalSoftcap = float32(f.number(20, 1e-3, 1e6, "final_logit_softcapping"))
	thetas := list[float64](f, "layer_rope_theta", "a list of numbers")
	if f.err != nil {
		return p
	}
	if len(thetas) != c.Layers {
		f.fault("layer_rope_theta", fmt.Sprintf("%d entries", len(thetas)), fmt.Sprintf("one for each of %d layers", c.Layers))
	}
	for _, theta := range thetas {
		p.unrotated = append(p.unrotated, theta == 0)
	}
	p.attentionScale = inverseSqrt(c.HeadDim) * float32(f.number(3.87, 1e-3, 1e3, "qk_scale_factor"))
	return p
}

// museTensors adds one to the weights of the layers' norms before museLogits.
func museTensors(c *Config, w *weights.Checkpoint) error {
	if err := onePlus(w, func(name string) bool {
		return strings.HasSuffix(name, "layernorm.weight") && !strings.Contains(name, "vision")
	}); err != nil {
		return err
	}
	return museLogits(c, w)
}

// museLogits multiplies the weight of the last norm with the factor of the logits.
func museLogits(c *Config, w *weights.Checkpoint) error {
	multiplier := c.plan.(musePlan).multiplier
	return w.Replace(finalNorm, func(x float32) float32 { return x * multiplier })
}

// museGGUF: layers with a window have a rotary embedding, and the factor of scores is the weight of each element of a norm of queries. Keys
// have norms whose weights are ones.
func museGGUF(f *fields) {
	f.set("hidden_act", "silu")
	for _, name := range []string{"output_multiplier", "final_logit_softcapping"} {
		if !f.has(name) {
			f.fault(name, "nothing", "a number")
		}
	}
	f.defaults(map[string]any{"rope_theta": 10000})
	f.set("rope_theta", f.number(f.number(10000, minTheta, maxTheta, "rope_theta"), minTheta, maxTheta, ggufLocalBase))
	f.ggufTypes(4)
	thetas := []int{}
	for _, kind := range f.texts("layer_types") {
		thetas = append(thetas, map[string]int{sliding: 1}[kind])
	}
	f.set("layer_rope_theta", thetas)
	factor := f.sameWeights("attn_q_norm.weight", 0)
	f.set("qk_scale_factor", factor)
	f.sameWeights("attn_k_norm.weight", 1)
}

// sameWeights is the one value that vectors of all layers have; 0: any. A file without its data has ones.
func (f *fields) sameWeights(part string, want float32) float32 {
	for i := range f.size(maxLayers, "num_hidden_layers") {
		name := fmt.Sprintf("blk.%d.%s", i, part)
		values := ggufFactors(f.tensors, f.form.huggingFaceName(name))
		if len(values) == 0 {
			f.fault(name, "no such vector in F32", "the weights of a norm")
			return 1
		}
		for _, x := range values {
			if want == 0 {
				want = x
			}
			if x != want {
				f.fault(name, fmt.Sprint(x), fmt.Sprintf("%g, the weight of all elements", want))
				return 1
			}
		}
	}
	return want
}
