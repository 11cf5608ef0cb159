package family

import "github.com/millrace/millrace/compute/model"

// codeGen is GPT-J with q, k and v in one tensor. CodeGenModel is not read: the output layer has a bias.
var codeGen = family{
	class: "CodeGenForCausalLM", kind: "codegen",
	config: codeGenConfig,

	models:   "CodeGen, CodeGen2",
	features: "GPT-J with fused q/k/v",
}

// codeGenParts are the parts of the tensor of q, k and v, each of which has a share of all three: the model was made for as many devices.
const codeGenParts = 4

func codeGenConfig(f *fields, c *Config) plan {
	p := gptjConfig(f, c).(gptjPlan)
	p.fused = true
	f.divides("n_embd", c.Hidden, "the number of parts", codeGenParts)
	return p
}

// codeGenQKV takes q, k and v out of rows that lie as [part][q|v|k]. Source: transformers, modeling_codegen.py.
func (b *builder) codeGenQKV(at string) []model.Part {
	n := b.cfg.Hidden
	share := n / codeGenParts
	parts := make([]model.Part, 3)
	for i, place := range []int{0, 2, 1} {
		parts[i] = b.rowsOf(at+"qkv_proj", 3*n, n, place*share, n, share, 3*share)
	}
	return parts
}
