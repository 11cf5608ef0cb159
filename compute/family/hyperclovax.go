package family

// hyperCLOVAX is Granite with norms after the blocks too.
var hyperCLOVAX = family{
	class: "HyperCLOVAXForCausalLM", bare: "HyperCLOVAXModel", kind: "hyperclovax",
	spell:   graniteSpell,
	config:  hyperCLOVAXConfig,
	tensors: graniteTensors,

	models:   "HyperCLOVA X SEED Think 14B",
	features: "Granite 3 with RMS norms after each block too (`use_post_norm`), `logits_scaling` as a factor",
}

// hyperCLOVAXConfig: source is transformers, modeling_hyperclovax.py.
func hyperCLOVAXConfig(f *fields, c *Config) plan {
	p := granitePlan{llamaPlan: llamaConfig(f, c).(llamaPlan)}
	if f.err != nil {
		return p
	}
	f.defaults(map[string]any{"attention_multiplier": inverseSqrt(c.HeadDim)})
	p.branchEps = c.Eps // what a block gives is not divided by residual_multiplier, as the residual is
	p.factors(f, c)
	p.logitsScaling = 1 / p.logitsScaling
	if f.flag(true, "use_post_norm") {
		p.norms = layerNorms{
			attention: "input_layernorm", attended: "post_norm1", mlp: "post_attention_layernorm", mlpDone: "post_norm2",
		}
	}
	return p
}
