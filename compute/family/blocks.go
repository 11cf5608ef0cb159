package family

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/millrace/millrace/compute/model"
)

// blockPlan is a decoder of layer norms, and rotary embeddings or learned positions, whose attention and MLP run one after the other or
// side by side: eight ops per layer, seven if both read one norm.
type blockPlan struct {
	names    blockNames
	rotary   int  // rotated part of a head; 0: none
	parallel bool // the MLP's own norm reads what attention's norm reads
	headBias bool // the head has a bias

	plainNorms bool    // norms without a bias
	rmsNorms   bool    // RMS norms
	bareNorms  bool    // norms without weights
	qkNorms    bool    // layer norms over each head of q and k
	clip       float32 // of q, k and v, within -clip to clip; 0: none
	pairs      bool    // the rotary embedding turns pairs (2i, 2i+1)
	unrotated  []bool  // layers without a rotary embedding; nil: none
	logitScale float32 // of Command-R: a factor of the logits

	attentionScale float32  // of the products of queries and keys; 0: by the size of a head
	alibi          bool     // scores have ALiBi's slopes
	embedScale     float32  // on the embedding; 0: 1
	experts        *experts // in place of the MLP of most layers; nil: none
	positionOffset int      // of the first row of the position table that is a position's
}

// blockNames are the names of a checkpoint's tensors, without .weight and .bias.
type blockNames struct {
	decoder   string // before all of them but the head's: "model."
	table     string // token table
	positions string // position table; "": there is none
	norm      string // before the head
	head      string // whole name of the head's weight; "": that of most checkpoints

	layers    string // before the number of a layer
	attnNorm  string
	attention string // before q_proj, k_proj and v_proj
	fused     string // q, k and v as one tensor; "": they are three
	inOrder   bool   // all of q in that tensor, then all of k, then all of v
	out       string
	lastBias  string // the bias of the last layer's out, where other layers have none; "": there is none
	mlpNorm   string // "": the MLP reads the norm of attention
	gate      string // "": the MLP has none
	up, down  string
}

// llamaNames are the names that most checkpoints took from Llama.
func llamaNames() blockNames {
	return blockNames{
		decoder: "model.", table: "embed_tokens", norm: "norm",
		layers: "layers.", attnNorm: "input_layernorm", attention: "self_attn.", out: "self_attn.o_proj",
		mlpNorm: "post_attention_layernorm",
	}
}

// blockSizes reads the sizes that these decoders have in common. kvHeads is the class's default number of KV heads (0: as many as heads),
// activation its default hidden_act.
func blockSizes(f *fields, c *Config, kvHeads int, activation string) {
	decoderSizes(f, c, kvHeads)
	c.Eps = float32(f.number(1e-5, 1e-12, 0.1, "layer_norm_eps", "norm_epsilon", "layer_norm_epsilon"))
	c.activation(f, activation, "hidden_act")
}

func (p blockPlan) build(b *builder) {
	c, n := b.cfg, p.names
	b.findText(n.table, n.decoder)
	if n.head != "" {
		b.findHead(n.head)
	}
	x := b.slot("residual", model.SlotF32, c.Hidden)
	normed := b.slot("normed", model.SlotOperand, c.Hidden)
	qkv := b.slot("qkv", model.SlotF32, (c.Heads+2*c.KVHeads)*c.HeadDim)
	attended := b.slot("attended", model.SlotOperand, c.Heads*c.HeadDim)
	mid := b.slot("mid", model.SlotOperand, c.Intermediate)
	var mixture expertSlots
	if p.experts != nil {
		mixture = p.experts.makeSlots(b)
	}
	invFreq, rotaryScale := c.Rope.Table(p.rotary)
	var slopes []float32
	if p.alibi {
		slopes = ALiBiSlopes(c.Heads)
	}

	b.layer = model.None
	table := b.tokenTable(n.table+".weight", c.Hidden)
	b.embed("embed", x, table, b.tensorIf(n.positions != "", n.positions+".weight", c.MaxPositions+p.positionOffset, c.Hidden),
		p.positionOffset)
	b.last().EmbedScale = cmp.Or(p.embedScale, 1)
	for i := range c.Layers {
		b.layer = i
		at := fmt.Sprintf("%s%d.", n.layers, i)
		p.norm(b, "attn.norm", at+n.attnNorm, x, normed)
		b.linear("attn.qkv", normed, qkv, model.ActNone, n.qkv(b, at)...)
		if p.clip > 0 {
			b.last().Activation, b.last().ActA = model.ActClamp, p.clip
		}
		p.headNorms(b, at+n.attention, qkv)
		b.attention(qkv, attended, func(rope, att *model.Op) {
			if c.Windows != nil {
				att.Window = c.Windows[i]
			}
			att.Scale, att.ALiBiSlopes = cmp.Or(p.attentionScale, att.Scale), slopes
			if p.rotary > 0 && (len(p.unrotated) == 0 || !p.unrotated[i]) {
				rope.RotaryDim, rope.InvFreq, rope.RotaryScale = p.rotary, invFreq, rotaryScale
				rope.RotaryInterleaved = p.pairs
			}
		})
		out := b.part(at+n.out, c.OutBias, c.Hidden, c.Heads*c.HeadDim)
		if n.lastBias != "" && i == c.Layers-1 {
			out.Bias = b.tensor(at+n.lastBias, c.Hidden)
		}
		switch {
		case n.mlpNorm == "":
			b.selectInLast(&x, &attended, &normed)
			b.addLinear("attn.out", attended, x, out)
		case p.parallel:
			b.selectInLast(&x, &attended)
			p.norm(b, "mlp.norm", at+n.mlpNorm, x, normed)
			b.addLinear("attn.out", attended, x, out)
		default:
			b.selectInLast(&x, &attended)
			b.addLinear("attn.out", attended, x, out)
			p.norm(b, "mlp.norm", at+n.mlpNorm, x, normed)
		}
		if p.experts != nil && !slices.Contains(p.experts.dense, i) {
			p.experts.build(b, mixture, at, normed, x, true)
			continue
		}
		up, down := b.part(at+n.up, c.MLPBias, c.Intermediate, c.Hidden), b.part(at+n.down, c.MLPBias, c.Hidden, c.Intermediate)
		if n.gate == "" {
			b.linear("mlp.in", normed, mid, c.Activation, up)
			b.addLinear("mlp.out", mid, x, down)
		} else {
			b.gatedLinear("mlp.gate_up", normed, mid, c.Activation, b.part(at+n.gate, c.MLPBias, c.Intermediate, c.Hidden), up)
			b.addLinear("mlp.down", mid, x, down)
		}
	}
	b.layer = model.None
	p.norm(b, "final.norm", n.norm, x, normed)
	b.logits(normed, table, p.headBias)
}

func (p blockPlan) norm(b *builder, name, tensor string, in, out int) {
	switch {
	case p.rmsNorms:
		b.rmsNorm(name, tensor, in, out)
	case p.bareNorms:
		b.bareNorm(model.NormLayer, name, in, out)
	case p.plainNorms:
		b.norm(model.NormLayer, name, tensor, in, out)
	default:
		b.layerNorm(name, tensor, in, out)
	}
}

// headNorms appends the layer norms over each head of q and k.
func (p blockPlan) headNorms(b *builder, at string, qkv int) {
	c := b.cfg
	if !p.qkNorms {
		return
	}
	norm := func(name string, first, heads int) {
		if p.plainNorms { // weights for each head
			b.partNorm(model.NormLayer, "attn."+name, qkv, first*c.HeadDim, heads*c.HeadDim, heads,
				b.flat(at+name+".weight", heads, c.HeadDim), model.None)
			return
		}
		weight, bias := b.tensor(at+name+".weight", c.HeadDim), b.tensor(at+name+".bias", c.HeadDim)
		b.partNorm(model.NormLayer, "attn."+name, qkv, first*c.HeadDim, heads*c.HeadDim, heads, weight, bias)
	}
	names := [2]string{"q_layernorm", "k_layernorm"}
	if p.plainNorms {
		names = [2]string{"q_norm", "k_norm"}
	}
	norm(names[0], 0, c.Heads)
	norm(names[1], c.Heads, c.KVHeads)
}

// qkv are the projections q, k and v. GGUF files may have them apart where the family has one tensor.
func (n blockNames) qkv(b *builder, at string) []model.Part {
	c := b.cfg
	_, apart := b.find(b.name(at + n.attention + "q_proj.weight"))
	switch {
	case n.fused == "", apart:
		return b.qkvParts(at + n.attention)
	case n.inOrder:
		return b.fusedParts(at+n.fused, c.QKVBias, c.Hidden, c.Heads*c.HeadDim, c.KVHeads*c.HeadDim, c.KVHeads*c.HeadDim)
	}
	return b.fusedQKV(at+n.fused, c.QKVBias)
}
