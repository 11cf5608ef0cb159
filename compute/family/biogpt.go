package family

import "math"

// bioGPT is BioGPT.
var bioGPT = family{
	class: "BioGptForCausalLM", bare: "BioGptModel", kind: "biogpt",
	config: bioGPTConfig,

	models:   "BioGPT, BioGPT-Large",
	features: "learned positions, scaled embedding (`scale_embedding`), layer norms, biases",
}

// bioGPTPlan is blockPlan with a name of the head of its own. Source: transformers, modeling_biogpt.py.
type bioGPTPlan struct{ blockPlan }

func bioGPTConfig(f *fields, c *Config) plan {
	blockSizes(f, c, 0, "gelu")
	c.Eps = 1e-5 // torch's LayerNorm, whatever layer_norm_eps says
	c.MaxPositions = f.integer(1024, 1, maxPositions, "max_position_embeddings")
	c.TieEmbeddings = f.flag(true, "tie_word_embeddings")
	c.QKVBias, c.OutBias, c.MLPBias = true, true, true
	p := bioGPTPlan{blockPlan{
		names: blockNames{
			decoder: "biogpt.", table: "embed_tokens", positions: "embed_positions", norm: "layer_norm",
			layers: "layers.", attnNorm: "self_attn_layer_norm", attention: "self_attn.", out: "self_attn.out_proj",
			mlpNorm: "final_layer_norm", up: "fc1", down: "fc2",
		},
		positionOffset: optPositionOffset,
	}}
	if f.flag(true, "scale_embedding") {
		p.embedScale = float32(math.Sqrt(float64(c.Hidden)))
	}
	return p
}

func (p bioGPTPlan) build(b *builder) {
	b.findHead("output_projection.weight")
	p.blockPlan.build(b)
}
