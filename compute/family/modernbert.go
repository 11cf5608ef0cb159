package family

import (
	"fmt"

	"github.com/millrace/millrace/compute/model"
)

// modernBERT is ModernBERT.
var modernBERT = family{
	class: "ModernBertModel", also: []string{"ModernBertForSequenceClassification", "ModernBertForMaskedLM"}, kind: "modernbert",
	spell:  modernBERTSpell,
	config: modernBERTConfig,
	gguf: &ggufForm{
		name: "modern-bert",
		names: map[string]string{"token_embd": "embeddings.tok_embeddings", "token_embd_norm": "embeddings.norm",
			"output_norm": "final_norm"},
		parts: map[string]string{
			"attn_norm": "attn_norm", "attn_qkv": "attn.Wqkv", "attn_output": "attn.Wo", "ffn_norm": "mlp_norm", "ffn_up": "mlp.Wi",
			"ffn_down": "mlp.Wo",
		},
		head: map[string]string{"cls": "head.dense", "cls.norm": "head.norm", "cls.output": "classifier"},
		keys: merged(bertKeys, map[string]string{
			"attention.sliding_window": "local_attention", "attention.sliding_window_pattern": "global_attn_every_n_layers",
			"rope.freq_base_swa": "local_rope_theta", "hidden_activation": "hidden_act",
			"classifier.pooling_type": "gguf.classifier_pooling",
		}),
		spell: modernBERTGGUF,
	},

	models:   "ModernBERT, GTE-ModernBERT",
	features: "encoder: attention both ways, in windows of both sides by `layer_types` or `global_attn_every_n_layers`, with a rotary base of their own; norms before, gated GELU",
}

// modernPlan is an encoder whose norms come before attention and MLP: eight ops per layer, seven in the first. Source: transformers,
// modeling_modernbert.py.
type modernPlan struct {
	local      Rope // rotary embedding of layers with a window
	normBias   bool
	headBias   bool // of the classifier's dense layer
	activation model.Activation
	pooling    model.RowPooling // of the classifier
}

func modernBERTSpell(f *fields) {
	f.prefer(map[string]string{"hidden_activation": "hidden_act", "norm_eps": "layer_norm_eps"})
	f.firstTypes(f.integer(3, 1, maxLayers, "global_attn_every_n_layers"))
	f.defaults(map[string]any{"rope_theta": f.number(160000, minTheta, maxTheta, "global_rope_theta")})
}

func modernBERTConfig(f *fields, c *Config) plan {
	bertSizes(f, c, "gelu", 1e-5)
	p := modernPlan{normBias: f.flag(false, "norm_bias"), headBias: f.flag(false, "classifier_bias")}
	c.attentionBias(f, false)
	c.MLPBias = f.flag(false, "mlp_bias")
	p.local = twoRopes(f, c, f.integer(8192, 1, maxPositions, "max_position_embeddings"),
		f.number(10000, minTheta, maxTheta, "local_rope_theta"))
	// A row sees those up to half of it away.
	c.Windows = layerTypeWindows(f, f.texts("layer_types"), f.integer(128, 2, maxPositions, "local_attention")/2+1, c.Layers)
	own := c.Activation
	c.activation(f, "gelu", "classifier_activation")
	p.activation, c.Activation = c.Activation, own
	switch pooling := f.text("cls", "classifier_pooling"); pooling {
	case "cls":
		p.pooling = model.PoolFirst
	case "mean":
		p.pooling = model.PoolMean
	default:
		f.fault("classifier_pooling", fmt.Sprintf("%.40q", pooling), "cls or mean")
	}
	return p
}

func (p modernPlan) build(b *builder) {
	c := b.cfg
	b.findPrefix("embeddings.tok_embeddings.weight", "model.", "")
	head := &classHead{pooling: p.pooling, dense: p.dense}
	b.beginEncoder(head)
	x := b.slot("residual", model.SlotF32, c.Hidden)
	normed := b.slot("normed", model.SlotOperand, c.Hidden)
	qkv := b.slot("qkv", model.SlotF32, 3*c.Hidden)
	attended := b.slot("attended", model.SlotOperand, c.Hidden)
	mid := b.slot("mid", model.SlotOperand, c.Intermediate)
	invFreq, scale := c.Rope.Table(c.HeadDim)
	local, localScale := p.local.Table(c.HeadDim)

	b.layer = model.None
	table := b.tokenTable("embeddings.tok_embeddings.weight", c.Hidden)
	b.embed("embed", x, table, model.None, 0)
	b.anyNorm("embed.norm", "embeddings.norm", p.normBias, x, x)
	for i := range c.Layers {
		b.layer = i
		at := fmt.Sprintf("layers.%d.", i)
		in := x // the embedding's norm is the first layer's
		if i > 0 {
			b.anyNorm("attn.norm", at+"attn_norm", p.normBias, x, normed)
			in = normed
		}
		b.linear("attn.qkv", in, qkv, model.ActNone, b.fusedParts(at+"attn.Wqkv", c.QKVBias, c.Hidden, c.Hidden, c.Hidden, c.Hidden)...)
		b.attention(qkv, attended, func(rope, att *model.Op) {
			rope.BothWays, att.BothWays = true, true
			rope.RotaryDim, rope.InvFreq, rope.RotaryScale = c.HeadDim, invFreq, scale
			if att.Window = c.Windows[i]; att.Window > 0 {
				rope.InvFreq, rope.RotaryScale = local, localScale
			}
		})
		b.selectInLast(&x, &attended)
		b.addLinear("attn.out", attended, x, b.part(at+"attn.Wo", c.OutBias, c.Hidden, c.Hidden))
		b.anyNorm("mlp.norm", at+"mlp_norm", p.normBias, x, normed)
		parts := b.fusedParts(at+"mlp.Wi", c.MLPBias, c.Hidden, c.Intermediate, c.Intermediate)
		b.gatedLinear("mlp.gate_up", normed, mid, c.Activation, parts[0], parts[1])
		b.addLinear("mlp.down", mid, x, b.part(at+"mlp.Wo", c.MLPBias, c.Hidden, c.Intermediate))
	}
	last := func(in, out int) { b.anyNorm("final.norm", "final_norm", p.normBias, in, out) }
	b.encoderEnd(x, table, last, head)
}

// dense appends norm(act(W x)), which the classifier reads.
func (p modernPlan) dense(b *builder, in int) (out int) {
	c := b.cfg
	out = b.slot("head", model.SlotF32, c.Hidden)
	b.atRoot(func() {
		b.linear("head.dense", in, out, p.activation, b.part("head.dense", p.headBias, c.Hidden, c.Hidden))
		b.anyNorm("head.norm", "head.norm", p.normBias, out, out)
	})
	return out
}

// modernBERTGGUF takes from the tensors which biases there are. Classes are of the mean where the file does not say it, as in llama.cpp.
func modernBERTGGUF(f *fields) {
	f.bothWays()
	if f.integer(1, 1, 2, "gguf.classifier_pooling") == 1 {
		f.set("classifier_pooling", "mean")
	}
	for name, tensor := range map[string]string{"norm_bias": "token_embd_norm.bias", "classifier_bias": "cls.bias"} {
		_, ok := f.describe(tensor)
		f.set(name, ok)
	}
	f.set("attention_bias", f.inLayers("attn_qkv.bias"))
}
