package family

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/millrace/millrace/compute/weights"
)

// falconH1 has Mamba-2 beside attention in each layer, and factors of what its projections give.
var falconH1 = family{
	class: "FalconH1ForCausalLM", bare: "FalconH1Model", kind: "falcon_h1",
	config:  falconH1Config,
	tensors: falconH1Tensors,
	gguf: &ggufForm{ // whose weights have the factors
		name:  "falcon-h1",
		names: map[string]string{"output_norm": "final_layernorm"},
		parts: merged(ssmParts("mamba."), map[string]string{
			"ffn_norm.weight": "pre_ff_layernorm.weight", "ffn_norm": "pre_ff_layernorm.weight",
			"ffn_gate": "feed_forward.gate_proj", "ffn_up": "feed_forward.up_proj", "ffn_down": "feed_forward.down_proj",
		}),
		keys:    merged(ssmKeys(bambaNames), map[string]string{"attention.layer_norm_epsilon": ""}),
		spell:   falconH1GGUF,
		tensors: func(_ *Config, w *weights.Checkpoint) error { return stateTensors(w) },
	},

	models:   "Falcon-H1, Falcon-H1R",
	features: "Mamba-2 beside attention in each layer, with or without a norm (`mamba_rms_norm`), factors (`..._multiplier`)",
}

// falconH1Plan is a llamaPlan with the factors.
type falconH1Plan struct {
	llamaPlan
	attentionIn, attentionOut, key float32
	ssmIn, ssmOut, head            float32
	ssm                            []float32 // of z, x, B, C and the step
	mlp                            []float32 // of gate and down
}

// falconH1Config: source is transformers, modeling_falcon_h1.py.
func falconH1Config(f *fields, c *Config) plan {
	f.defaults(map[string]any{"rms_norm_eps": 1e-5, "num_key_value_heads": 8, "intermediate_size": 14336})
	llamaSizes(f, c, 0, 8192)
	c.attentionBias(f, false)
	c.MLPBias = f.flag(false, "mlp_bias")
	multiplier := func(name string) float32 { return float32(f.number(1, 1e-6, 1e6, name)) }
	p := falconH1Plan{
		llamaPlan:   bambaPlan(),
		attentionIn: multiplier("attention_in_multiplier"), attentionOut: multiplier("attention_out_multiplier"),
		key: multiplier("key_multiplier"), ssmIn: multiplier("ssm_in_multiplier"), ssmOut: multiplier("ssm_out_multiplier"),
		head: multiplier("lm_head_multiplier"), ssm: f.multipliers("ssm_multipliers", 5), mlp: f.multipliers("mlp_multipliers", 2),
	}
	p.embedScale = multiplier("embedding_multiplier")
	m := mambaOf(f, c, "mamba_d_ssm")
	m.plain, m.normFirst = !f.flag(false, "mamba_rms_norm"), f.flag(true, "mamba_norm_before_gate")
	m.outBias = f.flag(false, "projectors_bias")
	p.mixer = m
	return p
}

// multipliers are n factors, 1 where there are none.
func (f *fields) multipliers(name string, n int) []float32 {
	_, raw := f.get(name)
	var all []float32
	if raw != nil && (json.Unmarshal(raw, &all) != nil || len(all) != n) {
		f.fault(name, excerpt(raw), fmt.Sprintf("%d numbers", n))
	}
	if len(all) != n {
		all = make([]float32, n)
		for i := range all {
			all[i] = 1
		}
	}
	return all
}

// falconH1Tensors multiplies weights with the factors of what they read and give, and biases with the latter. That of the logits is the
// last norm's, but of a model without logits.
func falconH1Tensors(c *Config, w *weights.Checkpoint) error {
	p := c.plan.(falconH1Plan)
	m := p.mixer.(*mamba2)
	inner, shared := int64(m.heads*m.headDim), int64(m.groups*m.states)
	zone := func(row int64) float32 { // of in_proj: z, x, B, C, the step
		ends := []int64{inner, 2 * inner, 2*inner + shared, 2*inner + 2*shared}
		for i, end := range ends {
			if row < end {
				return p.ssm[i]
			}
		}
		return p.ssm[len(ends)]
	}
	every := func(x float32) func(int64) float32 {
		if x == 1 {
			return nil
		}
		return func(int64) float32 { return x }
	}
	return w.Scale(func(name string) func(row int64) float32 {
		at := name[strings.Index(name, "layers.")+1:]
		switch {
		case strings.HasSuffix(name, "final_layernorm.weight") && !c.NoHead:
			return every(p.head)
		case strings.HasSuffix(at, "q_proj.weight"), strings.HasSuffix(at, "v_proj.weight"):
			return every(p.attentionIn)
		case strings.HasSuffix(at, "k_proj.weight"):
			return every(p.attentionIn * p.key)
		case strings.HasSuffix(at, "k_proj.bias"):
			return every(p.key)
		case strings.Contains(at, "self_attn.o_proj."):
			return every(p.attentionOut)
		case strings.HasSuffix(at, "mamba.in_proj.weight"):
			return func(row int64) float32 { return p.ssmIn * zone(row) }
		case strings.HasSuffix(at, "mamba.in_proj.bias"):
			return zone
		case strings.Contains(at, "mamba.out_proj."):
			return every(p.ssmOut)
		case strings.Contains(at, "feed_forward.gate_proj."):
			return every(p.mlp[0])
		case strings.Contains(at, "feed_forward.down_proj."):
			return every(p.mlp[1])
		}
		return nil
	})
}

// falconH1GGUF: llama.cpp applies the gate before the norm.
func falconH1GGUF(f *fields) {
	f.mixer(bambaNames)
	f.members["mamba_d_ssm"] = f.members[ggufInner]
	f.set("mamba_rms_norm", f.inLayers("ssm_norm.weight"))
	f.set("mamba_norm_before_gate", false)
	f.set("projectors_bias", f.inLayers("ssm_out.bias"))
}
