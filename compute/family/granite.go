package family

import "github.com/millrace/millrace/compute/weights"

// granite is Granite 3: Llama with factors on the embedding, the products of queries and keys, the blocks and the logits.
var granite = family{
	class: "GraniteForCausalLM", bare: "GraniteModel", kind: "granite",
	spell:   graniteSpell,
	config:  graniteConfig,
	tensors: graniteTensors,

	models:   "Granite 3 (dense)",
	features: "+ `embedding_multiplier`, `attention_multiplier`, `residual_multiplier`, `logits_scaling`",
}

type granitePlan struct {
	llamaPlan
	logitsScaling float32 // a divisor of the logits
}

// graniteSpell sets the defaults of GraniteConfig.
func graniteSpell(f *fields) { f.defaults(map[string]any{"max_position_embeddings": 2048}) }

// graniteConfig keeps the residual divided by residual_multiplier: so each block is added as it is. Norms see no difference, if their
// epsilon is divided by its square.
func graniteConfig(f *fields, c *Config) plan {
	p := granitePlan{llamaPlan: llamaConfig(f, c).(llamaPlan)}
	multiplier := func(name string) float64 { return f.number(1, 1e-3, 1e6, name) }
	residual := multiplier("residual_multiplier")
	c.Eps = float32(float64(c.Eps) / (residual * residual))
	p.embedScale = float32(multiplier("embedding_multiplier") / residual)
	p.attentionScale = float32(multiplier("attention_multiplier"))
	p.logitsScaling = float32(multiplier("logits_scaling"))
	return p
}

// graniteTensors divides the weights of the last norm in place of the logits. Hidden states of a model without logits keep their length.
func graniteTensors(c *Config, w *weights.Checkpoint) error {
	scaling := c.plan.(granitePlan).logitsScaling
	if c.NoHead || scaling == 1 {
		return nil
	}
	return w.Replace(finalNorm, func(x float32) float32 { return x / scaling })
}
