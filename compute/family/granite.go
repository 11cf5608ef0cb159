package family

import (
	"errors"
	"slices"
	"strings"

	"github.com/millrace/millrace/compute/weights"
)

// granite is Granite 3: Llama with factors on the embedding, the products of queries and keys, the blocks and the logits.
var granite = family{
	class: "GraniteForCausalLM", bare: "GraniteModel", kind: "granite",
	spell:   graniteSpell,
	config:  graniteConfig,
	tensors: graniteTensors,
	gguf:    &ggufForm{name: "granite", interleaved: true, keys: graniteKeys, tensors: graniteTensors},

	models:   "Granite 3 (dense)",
	features: "+ `embedding_multiplier`, `attention_multiplier`, `residual_multiplier`, `logits_scaling`",
}

// graniteHybrid is Granite 4: Granite with Mamba-2 in most layers, a shared MLP and, beside it, experts or none.
var graniteHybrid = family{
	class: "GraniteMoeHybridForCausalLM", bare: "GraniteMoeHybridModel", kind: "granitemoehybrid",
	spell:   graniteSpell,
	config:  graniteHybridConfig,
	tensors: graniteTensors,
	gguf: &ggufForm{
		name: "granitehybrid", interleaved: true,
		only:  func(k ggufKeys) bool { return k.of("logit_scale") != nil },
		parts: merged(ssmParts("mamba."), graniteExpertParts, map[string]string{"ffn_down": "shared_mlp.output_linear"}),
		keys:  merged(graniteExpertKeys, ssmKeys(bambaNames), map[string]string{"rope.scaling.finetuned": "gguf.rotated"}),
		spell: graniteHybridGGUF,
		tensors: func(c *Config, w *weights.Checkpoint) error {
			return errors.Join(stateTensors(w), graniteTensors(c, w))
		},
	},

	models:   "Granite 4 (H-Micro, H-Tiny, H-Small, Micro)",
	features: "Granite with Mamba-2 layers by `layer_types`, a shared MLP, experts (softmax over the chosen ones) where `num_local_experts` is not 0, with or without rotary embedding (`position_embedding_type`)",
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
	p.factors(f, c)
	return p
}

// factors reads those of all Granites.
func (p *granitePlan) factors(f *fields, c *Config) {
	multiplier := func(name string) float64 { return f.number(1, 1e-3, 1e6, name) }
	p.scaleResidual(c, multiplier("residual_multiplier"), multiplier("embedding_multiplier"))
	p.attentionScale = float32(multiplier("attention_multiplier"))
	p.logitsScaling = float32(multiplier("logits_scaling"))
}

// scaleResidual takes the factor of what blocks give, and that of embeddings.
func (p *granitePlan) scaleResidual(c *Config, residual, embedding float64) {
	c.Eps = float32(float64(c.Eps) / (residual * residual))
	p.embedScale = float32(embedding / residual)
}

// graniteHybridConfig: source is transformers, modeling_granitemoehybrid.py. The experts' tensors are those of Granite's mixtures: gate and
// up are one.
func graniteHybridConfig(f *fields, c *Config) plan {
	f.defaults(map[string]any{"intermediate_size": 11008, "num_local_experts": 8, "num_experts_per_tok": 2,
		"shared_intermediate_size": 1024})
	p := granitePlan{llamaPlan: llamaConfig(f, c).(llamaPlan)}
	p.mixer = mambaOf(f, c) // before its norm's epsilon is that of the residual
	p.factors(f, c)
	p.recurrent = make([]bool, c.Layers)
	if types := f.texts("layer_types"); types != nil && f.err == nil {
		for i, t := range types { // as transformers 4 has them
			switch t {
			case "mamba":
				types[i] = linearAttention
			case "attention":
				types[i] = full
			}
		}
		p.recurrent = f.layersOf(c, types, linearAttention)
	} else {
		for i := range p.recurrent {
			p.recurrent[i] = true
		}
	}
	if f.text("", "position_embedding_type") != "rope" {
		p.unrotated = slices.Repeat([]bool{true}, c.Layers)
	}
	experts := f.integer(8, 0, maxExperts, "num_local_experts")
	c.Intermediate = f.size(maxWidth, "shared_intermediate_size")
	p.names = strings.NewReplacer("mlp.gate_up_proj", "shared_mlp.input_linear", "mlp.down_proj", "shared_mlp.output_linear")
	p.fusedMLP = true
	if experts > 0 {
		p.experts = graniteExperts(f)
		p.experts.shared = c.Intermediate
	}
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

// graniteKeys are the keys of the factors.
var graniteKeys = map[string]string{
	"attention.scale": "attention_multiplier", "embedding_scale": "embedding_multiplier", "residual_scale": "residual_multiplier",
	"logit_scale": "logits_scaling",
}

// graniteExpertParts are the names of experts, whose gate and up GGUF files have apart.
var graniteExpertParts = map[string]string{
	"ffn_gate_inp": "block_sparse_moe.router.layer", "ffn_down_exps": "block_sparse_moe.output_linear",
	"ffn_gate_exps": "block_sparse_moe.gate_linear", "ffn_up_exps": "block_sparse_moe.up_linear",
	"ffn_gate_up_exps.weight": "block_sparse_moe.input_linear.weight",
	"ffn_gate_shexp":          "shared_mlp.gate_proj", "ffn_up_shexp": "shared_mlp.up_proj", "ffn_down_shexp": "shared_mlp.output_linear",
}

// graniteExpertKeys are the keys of experts.
var graniteExpertKeys = merged(graniteKeys, map[string]string{
	"expert_count": "num_local_experts", "expert_used_count": "num_experts_per_tok",
	"expert_shared_feed_forward_length": "shared_intermediate_size",
})

// graniteHybridGGUF: layers without KV heads have the mixer.
func graniteHybridGGUF(f *fields) {
	f.mixer(bambaNames)
	f.set("mamba_expand", f.expandedBy())
	f.hybridKinds(linearAttention)
	if f.flag(false, "gguf.rotated") {
		f.set("position_embedding_type", "rope")
	}
	f.defaults(map[string]any{"num_local_experts": 0})
	if !f.has("shared_intermediate_size") {
		f.members["shared_intermediate_size"] = f.members["intermediate_size"]
	}
}
