package family

import (
	"errors"
	"fmt"
	"math"

	"github.com/millrace/millrace/compute/model"
	"github.com/millrace/millrace/compute/weights"
)

// minimaxText is MiniMax-Text-01: Mixtral with a linear attention of fixed decays in most layers, and residuals that are normed.
var minimaxText = family{
	class: "MiniMaxForCausalLM", bare: "MiniMaxModel", kind: "minimax",
	spell:   minimaxTextSpell,
	config:  minimaxTextConfig,
	tensors: lightningTensors,

	models: "MiniMax-Text-01, MiniMax-M1, as transformers writes them",
	features: "lightning attention by `layer_types` or in every other layer, Mixtral's attention and experts, residuals that are normed, and factors of them and of what blocks give " +
		"(`full_attn_alpha_factor`, `linear_attn_beta_factor` and others)",
}

// minimaxTextSpell sets the defaults of MiniMaxConfig.
func minimaxTextSpell(f *fields) {
	f.defaults(map[string]any{"rope_theta": 1e6, "rms_norm_eps": 1e-5, "num_local_experts": 8, "num_experts_per_tok": 2})
	types := make([]string, f.size(maxLayers, "num_hidden_layers"))
	for i := range types {
		if types[i] = full; i%2 == 1 {
			types[i] = linearAttention
		}
	}
	f.defaults(map[string]any{"layer_types": types})
}

// minimaxPlan: a block reads the norm of the residual, and what it gives is added to that norm. Each has a factor.
type minimaxPlan struct {
	llamaPlan
	full, linear, mlp blockFactors
}

// blockFactors are those of the residual, and of what a block gives.
type blockFactors struct{ residual, block float32 }

// minimaxTextConfig: source is transformers, modeling_minimax.py.
func minimaxTextConfig(f *fields, c *Config) plan {
	types := f.texts("layer_types")
	f.members["layer_types"] = []byte("null") // a window is one of all layers with attention
	p := minimaxPlan{llamaPlan: mixtralConfig(f, c).(llamaPlan)}
	factors := func(of string) blockFactors {
		number := func(name string) float32 { return float32(f.number(1, 1e-3, 1e3, of+name)) }
		return blockFactors{number("_alpha_factor"), number("_beta_factor")}
	}
	p.full, p.linear, p.mlp = factors("full_attn"), factors("linear_attn"), factors("mlp")
	p.mixer = &lightning{}
	if f.err == nil {
		p.recurrent = f.layersOf(c, types, linearAttention)
	}
	return p
}

func (p minimaxPlan) build(b *builder) {
	c := b.cfg
	b.findText("embed_tokens", "model.")
	x, normed := b.slot("residual", model.SlotF32, c.Hidden), b.slot("normed", model.SlotOperand, c.Hidden)
	mixture, mix := p.experts.makeSlots(b), p.mixer.open(b)
	attend, _ := p.attention(b, b.slot("qkv", model.SlotF32, (c.Heads+2*c.KVHeads)*c.HeadDim),
		b.slot("attended", model.SlotOperand, c.Heads*c.HeadDim))
	b.layer = model.None
	table := b.tokenTable("embed_tokens.weight", c.Hidden)
	b.scaledEmbed("embed", x, table, 1)
	// The residual is kept divided by the last block's factor, which its norm does not see, if its epsilon is divided by the square.
	last := float32(1)
	norm := func(name, tensor string, out int) {
		b.rmsNorm(name, tensor, x, out)
		b.last().Eps = c.Eps / (last * last)
	}
	block := func(name, tensor string, factors blockFactors) {
		norm(name+".norm", tensor, normed)
		norm(name+".residual", tensor, x)
		b.last().NormScale = factors.residual / factors.block
		last = factors.block
	}
	for i := range c.Layers {
		b.layer = i
		at := fmt.Sprintf("layers.%d.", i)
		var out int
		var back model.Part
		if p.recurrent[i] {
			block("mix", at+"input_layernorm", p.linear)
			out, back = mix(at, normed)
		} else {
			block("attn", at+"input_layernorm", p.full)
			out = attend(at+"self_attn.", normed)
			back = b.outPart(at, out)
		}
		b.selectInLast(&x, &out)
		b.addLinear(map[bool]string{true: "mix.out", false: "attn.out"}[p.recurrent[i]], out, x, back)
		block("mlp", at+"post_attention_layernorm", p.mlp)
		p.experts.build(b, mixture, at, normed, x, true)
	}
	b.layer = model.None
	norm("final.norm", "norm", normed)
	b.logits(normed, table, false)
}

// lightning is a linear attention (arXiv:2401.04658): a state of each head that decays by a fixed number, without a softmax.
type lightning struct{}

// lightningEps is that of the norm of what is read.
const lightningEps = 1e-6

// Names of tensors that lightningTensors adds.
const (
	lightningZeros = "lightning.zeros"
	lightningDecay = "lightning.%d.log_decay"
)

func (*lightning) open(b *builder) func(at string, in int) (out int, back model.Part) {
	c := b.cfg
	width := c.Heads * c.HeadDim
	qkv, gates := b.slot("lightning.qkv", model.SlotF32, 3*width), b.slot("lightning.gates", model.SlotF32, width)
	read, gated := b.slot("lightning.read", model.SlotF32, width), b.slot("lightning.gated", model.SlotOperand, width)
	return func(at string, in int) (int, model.Part) {
		at += "self_attn."
		var parts []model.Part
		for i := range 3 {
			parts = append(parts, b.rowsOf(at+"qkv_proj", 3*width, c.Hidden, i*c.HeadDim, width, c.HeadDim, 3*c.HeadDim))
		}
		b.linear("lightning.qkv", in, qkv, c.Activation, parts...)
		b.linear("lightning.gates", in, gates, model.ActNone, b.part(at+"output_gate", false, width, c.Hidden))
		zeros := b.absolute(lightningZeros, c.Heads)
		b.recur("lightning.recur", qkv, read, model.Recur{ // Mamba-2's, with steps of one
			Rule: model.RecurSSM, Heads: c.Heads, KeyHeads: c.Heads, Keys: c.HeadDim, Values: c.HeadDim, Q: 0, K: width, V: 2 * width,
			Gates: qkv, Rate: model.None, ALog: b.absolute(fmt.Sprintf(lightningDecay, b.layer), c.Heads), DtBias: zeros, Skip: zeros,
			LeastStep: 1, MostStep: 1,
		})
		b.gate("lightning.gate", read, gated, model.Gate{
			Gates: gates, Activation: model.GateSigmoid, Group: width, Weight: b.tensor(at+"norm.weight", width), Eps: lightningEps,
		})
		return gated, b.part(at+"out_proj", false, c.Hidden, width)
	}
}

// lightningTensors adds the logarithms of the heads' decays in each layer, which are slopes of ALiBi that fall with the layer.
func lightningTensors(c *Config, w *weights.Checkpoint) error {
	heads := []int64{int64(c.Heads)}
	err := w.Add(lightningZeros, heads, func(int64) float32 { return 0 })
	for layer, linear := range c.plan.(minimaxPlan).recurrent {
		if !linear {
			continue
		}
		factor := 1 - float64(layer)/(float64(c.Layers-1)+1e-5) + 1e-5
		err = errors.Join(err, w.Add(fmt.Sprintf(lightningDecay, layer), heads, func(head int64) float32 {
			return float32(math.Log(math.Pow(2, -8/float64(c.Heads)*float64(head+1)) * factor))
		}))
	}
	return err
}
