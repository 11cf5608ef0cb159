package family

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/millrace/millrace/compute/model"
)

// llama is Llama 1 to 3.x.
var llama = family{
	class: "LlamaForCausalLM", also: []string{"LlamaForSequenceClassification"}, bare: "LlamaModel", kind: "llama",
	config: llamaConfig,
	gguf: &ggufForm{
		name: "llama", also: []string{"paddleocr"}, interleaved: true,
		only: func(k ggufKeys) bool { return !k.some("expert_count") },
	},

	models:   "Llama 1 to 3.x and models of its form",
	features: "GQA, `head_dim` other than hidden / heads, `attention_bias`, `mlp_bias`, tied embeddings, rotary embedding",
}

func llamaConfig(f *fields, c *Config) plan {
	llamaSizes(f, c, 0, 2048)
	c.attentionBias(f, false)
	c.MLPBias = f.flag(false, "mlp_bias")
	return llamaPlan{}
}

// llamaSizes reads what Llama, Mistral and Qwen have in common. kvHeads is the
// class's default number of KV heads (0: as many as heads), positions its
// default max_position_embeddings.
func llamaSizes(f *fields, c *Config, kvHeads, positions int) {
	decoderSizes(f, c, kvHeads)
	f.wholeHeads(ropeConfig(f, c, f.integer(positions, 1, maxPositions, "max_position_embeddings")))
}

// wholeHeads refuses a rotary embedding of part of a head.
func (f *fields) wholeHeads(partial float64) {
	if partial != 1 {
		f.fault("partial_rotary_factor", fmt.Sprint(partial), "1 for this architecture")
	}
}

// decoderSizes is llamaSizes without the positions.
func decoderSizes(f *fields, c *Config, kvHeads int) {
	c.Hidden = f.size(maxWidth, "hidden_size")
	c.Layers = f.size(maxLayers, "num_hidden_layers")
	c.Intermediate = f.size(maxWidth, "intermediate_size")
	c.groupedHeads(f, kvHeads)
	if f.has("head_dim") {
		c.HeadDim = f.integer(0, 1, maxHeadDim, "head_dim")
	} else {
		c.headDimFromHidden(f)
	}
	if f.err == nil && c.HeadDim%2 != 0 {
		f.fault("head_dim", fmt.Sprint(c.HeadDim), "an even number, for the rotary embedding")
	}
	c.Eps = float32(f.number(1e-6, 1e-12, 0.1, "rms_norm_eps"))
	c.activation(f, "silu", "hidden_act")
	c.TieEmbeddings = f.flag(false, "tie_word_embeddings")
}

// partialDecoder is llamaSizes with a rotary embedding of part of a head, whose size it returns.
func partialDecoder(f *fields, c *Config, positions int) (rotary int) {
	decoderSizes(f, c, 0)
	return partialRope(f, c, positions, 1)
}

// llamaPlan is the decoder of Llama and of the families that differ from it by
// these attributes: eight ops per layer, ten with norms after the blocks too.
// Source: transformers, modeling_llama.py.
type llamaPlan struct {
	rotary      int    // rotated part of a head; 0: all of it
	interleaved bool   // the rotary embedding turns pairs (2i, 2i+1)
	unrotated   []bool // layers without a rotary embedding; nil: none
	local       *Rope  // rotary embedding of layers with a window; nil: that of the others
	ropes       []Rope // rotary embedding of each layer; nil: as above
	reversed    bool   // the rotary embedding turns the other way
	fused       bool   // q, k and v are one tensor
	fusedMLP    bool   // gate and up are one tensor
	upFirst     bool   // in that tensor up is before gate
	norms       layerNorms
	names       *strings.Replacer // from Llama's names of tensors to the family's; nil: they are the same
	final       string            // the last norm; "": that of Llama

	wideNorms  bool // q and k have norms over all heads together
	plainNorms bool // heads of q and k that are rotated are normed, without weights
	allPlain   bool // with plainNorms, those that are not rotated too
	normLast   bool // the norms of heads come after the rotation
	bareNorms  bool // norms of layers have no weights
	subNorms   bool // the results of attention and of the MLP's gate have norms before their last projections
	embedNorm  bool // the embedding is normed, without weights
	upOnly     bool // the MLP has no gate
	limits     bool // the gate of the MLP is that of the experts, with limits

	softcap, finalSoftcap float32      // of the scores, and of the logits; 0: none
	sinks                 bool         // heads have a score for a key without a value
	chunked               bool         // windows are chunks
	temperature           *temperature // of queries by their position; nil: none
	xielu                 bool         // the activation, whose parameters are tensors
	xieluOf               [][]float64  // these parameters of each layer, where they are no tensors
	layerNorm             bool         // norms are layer norms with biases
	headBias              bool         // the head has a bias

	embedScale        float32 // on the embedding; 0: 1
	embedScaleRounded bool    // to the type of the token table
	attentionScale    float32 // of the products of queries and keys; 0: by the size of a head
	branchEps         float32 // of norms after blocks; 0: that of the others

	experts *experts     // in place of the MLP of most layers; nil: none
	latents *latents     // of keys and values; nil: the layers keep these themselves
	values  *valueShapes // where they differ from those of keys; nil: they do not

	encoder *classHead // attention is both ways; nil: it is not

	mixer          mixer      // in place of attention in the layers that are recurrent; nil: none
	recurrent      []bool     // layers with the mixer; nil: all have it, beside their attention
	mixerNorms     layerNorms // of the layers that are recurrent; the zero value: those of the others
	gatedAttention bool       // each head of q has a gate of its result after it
	attentionGate  string     // the tensor of a gate of the attention's result; "": there is none
}

// layerNorms are the names of a layer's norms; "": there is none. The zero value is that of Llama.
type layerNorms struct {
	attention, mlp    string // before a block
	attended, mlpDone string // after it, before its sum with the residual
	mixed             string // after experts, where plain MLPs have no norm
}

// llamaNorms are those of Llama.
var llamaNorms = layerNorms{attention: "input_layernorm", mlp: "post_attention_layernorm"}

// temperature multiplies queries by 1 + beta log(1 + n) from position tokens x n - offset on.
type temperature struct {
	beta           float64
	tokens, offset int
	unrotated      bool // only in layers without a rotary embedding
}

// scales are the factors of a program's positions.
func (t temperature) scales(positions int) []float32 {
	scales := make([]float32, (positions-1+t.offset)/t.tokens+1)
	for i := range scales {
		scales[i] = float32(1 + t.beta*math.Log1p(float64(i)))
	}
	return scales
}

func (p llamaPlan) build(b *builder) {
	c := b.cfg
	b.findText("embed_tokens", "model.")
	b.names = p.names
	if p.encoder != nil {
		b.beginEncoder(p.encoder)
	}
	x := b.slot("residual", model.SlotF32, c.Hidden)
	normed := b.slot("normed", model.SlotOperand, c.Hidden)
	qkv, attended := model.None, model.None
	if p.latents == nil && p.values == nil {
		qkv = b.slot("qkv", model.SlotF32, (c.Heads+2*c.KVHeads)*c.HeadDim)
		attended = b.slot("attended", model.SlotOperand, c.Heads*c.HeadDim)
	}
	mid := b.slot("mid", model.SlotOperand, c.Intermediate)
	gated := mid
	if p.subNorms {
		gated = b.slot("mid.raw", model.SlotF32, c.Intermediate)
	}
	var mixture expertSlots
	if p.experts != nil {
		mixture = p.experts.makeSlots(b)
	}
	var mix func(at string, in int) (out int, back model.Part)
	if p.mixer != nil {
		mix = p.mixer.open(b)
	}
	attend, finish := p.attention(b, qkv, attended)
	branch := model.None // what a block gives, where it is normed before it is added
	norms := cmp.Or(p.norms, llamaNorms)
	mixerNorms := cmp.Or(p.mixerNorms, norms)
	if norms.attended != "" || norms.mixed != "" {
		branch = b.slot("branch", model.SlotF32, c.Hidden)
	}
	b.layer = model.None
	table := b.tokenTable("embed_tokens.weight", c.Hidden)
	scale := cmp.Or(p.embedScale, 1)
	if p.embedScaleRounded {
		scale = b.rounded(scale, table)
	}
	b.scaledEmbed("embed", x, table, scale)
	if p.embedNorm {
		b.bareNorm(model.NormRMS, "embed.norm", x, x)
	}
	for i := range c.Layers {
		b.layer = i
		at, n := fmt.Sprintf("layers.%d.", i), norms
		if len(p.recurrent) > 0 && p.recurrent[i] {
			n = mixerNorms
		}
		in := p.normIf(b, "attn.norm", at, n.attention, x, normed)
		switch {
		case p.mixer != nil && p.recurrent == nil:
			out, back := mix(at, in)
			other := attend(at+"self_attn.", in)
			b.selectInLast(&x, &out, &other)
			other = finish(at+"self_attn.", other)
			b.addLinear("mix.out", out, x, back)
			b.addLinear("attn.out", other, x, b.outPart(at, other))
		case p.mixer != nil && p.recurrent[i]:
			out, back := mix(at, in)
			b.selectInLast(&x, &out)
			p.addBlock(b, "mix.out", "attn.post_norm", at, n.attended, out, branch, x, back)
		default:
			out := attend(at+"self_attn.", in)
			b.selectInLast(&x, &out)
			out = finish(at+"self_attn.", out)
			p.addBlock(b, "attn.out", "attn.post_norm", at, n.attended, out, branch, x, b.outPart(at, out))
		}
		in = p.normIf(b, "mlp.norm", at, n.mlp, x, normed)
		if p.experts != nil && !slices.Contains(p.experts.dense, i) {
			done := cmp.Or(n.mlpDone, n.mixed)
			if done == "" {
				p.experts.build(b, mixture, at, in, x, true)
				continue
			}
			p.experts.build(b, mixture, at, in, branch, false)
			p.addNorm(b, "mlp.post_norm", at+done, branch, x)
			continue
		}
		p.firstMLP(b, at+"mlp.", in, gated)
		if p.subNorms {
			b.rmsNorm("mlp.sub_norm", at+"mlp.ffn_sub_norm", gated, mid)
		}
		p.addBlock(b, "mlp.down", "mlp.post_norm", at, n.mlpDone, mid, branch, x,
			b.part(at+"mlp.down_proj", c.MLPBias, c.Hidden, c.Intermediate))
	}
	b.layer = model.None
	if p.encoder != nil {
		b.encoderEnd(x, table, func(in, out int) { b.rmsNorm("final.norm", "norm", in, out) }, p.encoder)
		return
	}
	p.normIf(b, "final.norm", "", cmp.Or(p.final, "norm"), x, normed)
	b.cappedLogits(normed, table, p.headBias, p.finalSoftcap)
}

// outPart is the projection of what a layer's attention has left in a slot.
func (b *builder) outPart(at string, attended int) model.Part {
	return b.part(at+"self_attn.o_proj", b.cfg.OutBias, b.cfg.Hidden, b.program.Slots[attended].Width)
}

// rowNorms appends the norms of q and k that are ops of their own.
func (p llamaPlan) rowNorms(b *builder, at string, qkv int, rotated bool) {
	c := b.cfg
	q, k := c.Heads*c.HeadDim, c.KVHeads*c.HeadDim
	switch {
	case p.wideNorms:
		b.partNorm(model.NormRMS, "attn.q_norm", qkv, 0, q, 1, b.tensor(at+"q_norm.weight", q), model.None)
		b.partNorm(model.NormRMS, "attn.k_norm", qkv, q, k, 1, b.tensor(at+"k_norm.weight", k), model.None)
	case p.plainNorms && (rotated || p.allPlain):
		b.partNorm(model.NormRMS, "attn.qk_norm", qkv, 0, q+k, c.Heads+c.KVHeads, model.None, model.None)
	}
}

// firstMLP appends the first of an MLP's two ops.
func (p llamaPlan) firstMLP(b *builder, at string, in, mid int) {
	c := b.cfg
	if !p.upOnly {
		gate, up := p.gateUp(b, at)
		b.gatedLinear("mlp.gate_up", in, mid, c.Activation, gate, up)
		if p.limits {
			p.experts.limited(b.last())
		}
		return
	}
	b.linear("mlp.up", in, mid, c.Activation, b.part(at+"up_proj", c.MLPBias, c.Intermediate, c.Hidden))
	if p.xielu {
		var own []float64
		if p.xieluOf != nil {
			own = p.xieluOf[b.layer]
		}
		b.xielu(b.last(), at+"act_fn.", own)
	}
}

// attention returns what appends the ops of a layer's attention, up to the slot that it returns, and those that follow where only the
// outputs' rows are left. Tensors' names begin with at.
func (p llamaPlan) attention(b *builder, qkv, attended int) (attend, finish func(at string, in int) (out int)) {
	if p.latents != nil {
		return p.latents.open(b, p.temperature)
	}
	finish = func(_ string, out int) int { return out }
	c := b.cfg
	rotary := cmp.Or(p.rotary, c.HeadDim)
	tables := p.ropeTables(c, rotary)
	if p.values != nil {
		return p.values.attention(b, rotary, tables), finish
	}
	width := c.Heads * c.HeadDim
	raw, gates := attended, model.None
	gated := p.gatedAttention || p.attentionGate != ""
	if gated || p.subNorms {
		raw = b.slot("attended.raw", model.SlotF32, width)
	}
	if gated {
		gates = b.slot("attn.gate", model.SlotF32, width)
	}
	var scales []float32
	if p.temperature != nil {
		scales = p.temperature.scales(c.MaxPositions)
	}
	attend = func(at string, in int) int {
		rotated := len(p.unrotated) == 0 || !p.unrotated[b.layer]
		b.linear("attn.qkv", in, qkv, model.ActNone, p.qkv(b, at)...)
		p.rowNorms(b, at, qkv, rotated)
		b.attention(qkv, raw, func(rope, att *model.Op) {
			b.qkNorm(rope, at)
			rope.NormLast = p.normLast
			rope.BothWays, att.BothWays = p.encoder != nil, p.encoder != nil
			att.Scale, att.Softcap = cmp.Or(p.attentionScale, att.Scale), p.softcap
			if c.Windows != nil {
				att.Window = c.Windows[b.layer]
				att.Chunked = p.chunked && att.Window > 0
			}
			if p.sinks {
				att.NullScores = b.tensor(b.either(at+"sinks", at+"sinks.weight"), c.Heads)
			}
			if p.temperature != nil && (!rotated || !p.temperature.unrotated) {
				rope.QScales, rope.QScaleTokens, rope.QScaleOffset = scales, p.temperature.tokens, p.temperature.offset
			}
			if !rotated {
				return
			}
			rope.RotaryDim, rope.RotaryInterleaved = rotary, p.interleaved
			rope.InvFreq, rope.RotaryScale = tables(b.layer, att.Window > 0)
		})
		if p.subNorms {
			b.rmsNorm("attn.sub_norm", at+"attn_sub_norm", raw, attended)
		}
		if gated {
			var gate model.Part
			if p.gatedAttention {
				_, gate = b.gatedQuery(at)
			} else {
				gate = b.part(at+p.attentionGate, false, width, c.Hidden)
			}
			b.linear("attn.gate", in, gates, model.ActNone, gate)
			b.gate("attn.gated", raw, attended, model.Gate{Gates: gates, Activation: model.GateSigmoid, Weight: model.None})
		}
		return attended
	}
	return attend, finish
}

// ropeTables returns the tables of the rotary embedding of a layer, which has a window or not.
func (p llamaPlan) ropeTables(c *Config, rotary int) func(layer int, local bool) (invFreq []float32, scale float32) {
	type table struct {
		invFreq []float32
		scale   float32
	}
	of := func(r Rope) (t table) {
		t.invFreq, t.scale = r.Table(rotary)
		if p.reversed {
			for i := range t.invFreq {
				t.invFreq[i] = -t.invFreq[i]
			}
		}
		return t
	}
	global := of(c.Rope)
	local := global
	if p.local != nil {
		local = of(*p.local)
	}
	each := make([]table, len(p.ropes))
	for i, r := range p.ropes {
		each[i] = of(r)
	}
	return func(layer int, window bool) ([]float32, float32) {
		t := global
		switch {
		case len(each) > 0:
			t = each[layer]
		case window:
			t = local
		}
		return t.invFreq, t.scale
	}
}

// gatedQuery are the projection q, and that of the gate after each of its heads.
func (b *builder) gatedQuery(at string) (q, gate model.Part) {
	c := b.cfg
	q = b.part(at+"q_proj", c.QKVBias, 2*c.Heads*c.HeadDim, c.Hidden)
	q.Rows, q.Block, q.Stride = c.Heads*c.HeadDim, c.HeadDim, 2*c.HeadDim
	gate = q
	gate.Offset = c.HeadDim
	return q, gate
}

// normIf appends the norm of x before a block, if the family has it. It returns what the block reads.
func (p llamaPlan) normIf(b *builder, name, at, tensor string, x, normed int) int {
	if tensor == "" {
		return x
	}
	p.norm(b, name, at+tensor, x, normed)
	return normed
}

// norm appends a norm of a whole row.
func (p llamaPlan) norm(b *builder, name, tensor string, in, out int) {
	switch {
	case p.layerNorm:
		b.layerNorm(name, tensor, in, out)
	case p.bareNorms:
		b.bareNorm(model.NormRMS, name, in, out)
	default:
		b.rmsNorm(name, tensor, in, out)
	}
}

// addBlock appends x += part . in, or x += norm(part . in) where the family has a norm there.
func (p llamaPlan) addBlock(b *builder, name, norm, at, tensor string, in, branch, x int, part model.Part) {
	if tensor == "" {
		b.addLinear(name, in, x, part)
		return
	}
	b.linear(name, in, branch, model.ActNone, part)
	p.addNorm(b, norm, at+tensor, branch, x)
}

// addNorm adds the norm of a block's result to the residual.
func (p llamaPlan) addNorm(b *builder, name, tensor string, in, out int) {
	b.addNorm(name, tensor, in, out)
	b.last().Eps = cmp.Or(p.branchEps, b.last().Eps)
}

// qkv are the projections q, k and v.
func (p llamaPlan) qkv(b *builder, at string) []model.Part {
	c := b.cfg
	if p.fused {
		return b.fusedParts(at+"qkv_proj", c.QKVBias, c.Hidden, c.Heads*c.HeadDim, c.KVHeads*c.HeadDim, c.KVHeads*c.HeadDim)
	}
	if p.gatedAttention {
		q, _ := b.gatedQuery(at)
		return []model.Part{q, b.part(at+"k_proj", c.QKVBias, c.KVHeads*c.HeadDim, c.Hidden),
			b.part(at+"v_proj", c.QKVBias, c.KVHeads*c.HeadDim, c.Hidden)}
	}
	return b.qkvParts(at)
}

// gateUp are the projections gate and up.
func (p llamaPlan) gateUp(b *builder, at string) (gate, up model.Part) {
	c := b.cfg
	if _, apart := b.find(b.name(at + "gate_proj.weight")); p.fusedMLP && !apart { // GGUF files may have them apart
		parts := b.fusedParts(at+"gate_up_proj", false, c.Hidden, c.Intermediate, c.Intermediate)
		if p.upFirst {
			slices.Reverse(parts)
		}
		return parts[0], parts[1]
	}
	return b.part(at+"gate_proj", c.MLPBias, c.Intermediate, c.Hidden), b.part(at+"up_proj", c.MLPBias, c.Intermediate, c.Hidden)
}

// qkvParts are the projections q, k and v one below the other.
func (b *builder) qkvParts(at string) []model.Part {
	c := b.cfg
	return b.projections(at, c.Heads*c.HeadDim, c.KVHeads*c.HeadDim, c.KVHeads*c.HeadDim)
}

// projections are q, k and v of these numbers of rows.
func (b *builder) projections(at string, q, k, v int) []model.Part {
	c := b.cfg
	return []model.Part{
		b.part(at+"q_proj", c.QKVBias, q, c.Hidden),
		b.part(at+"k_proj", c.QKVBias, k, c.Hidden),
		b.part(at+"v_proj", c.QKVBias, v, c.Hidden),
	}
}

func inverseSqrt(n int) float32 { return float32(1 / math.Sqrt(float64(n))) }
