package family

import (
	"fmt"
	"slices"

	"github.com/millrace/millrace/compute/model"
	"github.com/millrace/millrace/compute/weights"
)

// singlePlan is a decoder whose layers have one block each: a norm, a mixer, attention, an MLP or experts, and the residual.
type singlePlan struct {
	llamaPlan          // attention, and the names
	kinds     []string // of the layers
}

// Kinds of layers of a singlePlan, beside full and linearAttention.
const (
	mlpLayer = "mlp"
	moeLayer = "moe"
)

func (p singlePlan) build(b *builder) {
	c := b.cfg
	decoder := "model."
	if _, ok := b.find(decoder + "embeddings.weight"); !ok {
		decoder = "backbone."
	}
	b.findText("embeddings", decoder)
	b.names = p.names
	x := b.slot("residual", model.SlotF32, c.Hidden)
	normed := b.slot("normed", model.SlotOperand, c.Hidden)
	blocks := map[string]func(at string, in int) (out int, back model.Part){linearAttention: p.mixer.open(b)}
	var mixture expertSlots
	if p.experts != nil {
		mixture = p.experts.makeSlots(b)
	}
	if slices.Contains(p.kinds, full) {
		qkv := b.slot("qkv", model.SlotF32, (c.Heads+2*c.KVHeads)*c.HeadDim)
		attend, _ := p.attention(b, qkv, b.slot("attended", model.SlotOperand, c.Heads*c.HeadDim))
		blocks[full] = func(at string, in int) (int, model.Part) {
			return attend(at+"mixer.", in), b.part(at+"mixer.o_proj", c.OutBias, c.Hidden, c.Heads*c.HeadDim)
		}
	}
	if slices.Contains(p.kinds, mlpLayer) {
		mid := b.slot("mid", model.SlotOperand, c.Intermediate)
		blocks[mlpLayer] = func(at string, in int) (int, model.Part) {
			b.linear("mlp.up", in, mid, c.Activation, b.part(at+"mixer.up_proj", c.MLPBias, c.Intermediate, c.Hidden))
			return mid, b.part(at+"mixer.down_proj", c.MLPBias, c.Hidden, c.Intermediate)
		}
	}
	ends := map[string]string{linearAttention: "mix.out", full: "attn.out", mlpLayer: "mlp.down"}
	b.layer = model.None
	table := b.tokenTable("embeddings.weight", c.Hidden)
	b.scaledEmbed("embed", x, table, 1)
	for i, kind := range p.kinds[:c.Layers] {
		b.layer = i
		at := fmt.Sprintf("layers.%d.", i)
		b.rmsNorm("norm", at+"norm", x, normed)
		if kind == moeLayer {
			b.selectInLast(&x, &normed)
			p.experts.build(b, mixture, at, normed, x, true)
			continue
		}
		out, back := blocks[kind](at, normed)
		b.selectInLast(&x, &out)
		b.addLinear(ends[kind], out, x, back)
	}
	b.layer = model.None
	b.rmsNorm("final.norm", "norm_f", x, normed)
	b.logits(normed, table, false)
}

// mamba2Names are the names of the mixer's sizes in the configuration of Mamba-2.
var mamba2Names = mambaNames{
	heads: "num_heads", headDim: "head_dim", groups: "n_groups", states: "state_size", kernel: "conv_kernel", convBias: "use_conv_bias",
	inBias: "use_bias",
}

// backboneNames are the names of tensors outside of layers as Mamba-2 and Nemotron-H have them.
var backboneNames = map[string]string{"token_embd": "embeddings", "output_norm": "norm_f"}

// mamba2GGUF is the form of Mamba-2's files, which have no attention.
var mamba2GGUF = ggufForm{
	name: "mamba2", decoder: "backbone.", names: backboneNames,
	parts: merged(ssmParts("mixer."), map[string]string{"attn_norm": "norm"}),
	keys: merged(ssmKeys(mamba2Names), map[string]string{
		"attention.head_count": "", "feed_forward_length": "", "attention.layer_norm_rms_epsilon": "layer_norm_epsilon",
		"attention.layer_norm_epsilon": "", // the same
	}),
	spell:   func(f *fields) { f.mixer(mamba2Names) },
	tensors: func(_ *Config, w *weights.Checkpoint) error { return stateTensors(w) },
}

// mamba2LM is Mamba-2 alone.
var mamba2LM = family{
	class: "Mamba2ForCausalLM", bare: "Mamba2Model", kind: "mamba2",
	config: mamba2Config,
	gguf:   &mamba2GGUF,

	models:   "Mamba-2, Codestral Mamba",
	features: "Mamba-2 layers alone",
}

// stateOnly sets what a model without attention lacks.
func (c *Config) stateOnly(f *fields) {
	c.MaxPositions = f.integer(1<<20, 1, maxPositions, "max_position_embeddings") // a state has no limit
	c.Heads, c.KVHeads, c.HeadDim = 1, 1, 8                                       // of slabs that no layer uses
}

// mamba2Config: source is transformers, modeling_mamba2.py.
func mamba2Config(f *fields, c *Config) plan {
	c.Hidden = f.size(maxWidth, "hidden_size")
	c.Layers = f.size(maxLayers, "num_hidden_layers")
	c.Eps = float32(f.number(1e-5, 1e-12, 0.1, "layer_norm_epsilon"))
	c.TieEmbeddings = f.flag(false, "tie_word_embeddings")
	c.stateOnly(f)
	m := readMamba(f, mamba2Names, mamba2{at: "mixer.", heads: 128, headDim: 64, groups: 8, states: 128, kernel: 4, eps: c.Eps})
	c.Intermediate = m.heads * m.headDim
	return singlePlan{llamaPlan: llamaPlan{mixer: m}, kinds: slices.Repeat([]string{linearAttention}, c.Layers)}
}
