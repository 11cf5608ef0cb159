package family

import (
	"fmt"
	"strings"

	"github.com/millrace/millrace/compute/model"
	"github.com/millrace/millrace/compute/weights"
)

// latents is attention whose cache has a latent for each token in place of the keys and values of its heads (DeepSeek-V2, arXiv:2405.04434,
// section 2.1). All heads read one key: the normed latent, then a rotated part. The matrix that makes a head's key of a latent is
// multiplied with its query instead, and the one that makes its value with attention's result: one form for the rows of prompts and of
// answers.
type latents struct {
	queryRank      int // 0: queries are made by one projection
	rank           int // of a latent
	plain, rotated int // elements of a head's query that meet the latent, and that are rotated
	value          int // elements of a head's value
	interleaved    bool
	unrotated      bool // nothing is
	scale          float32
}

// latentEps is that of the norms of latents and of queries' ranks: the classes in transformers leave it at the norm's default.
const latentEps = 1e-6

// latentSizes reads what families with latents have in common, beside experts. The class's defaults are set.
func latentSizes(f *fields, c *Config) llamaPlan {
	c.Hidden = f.size(maxWidth, "hidden_size")
	c.Layers = f.size(maxLayers, "num_hidden_layers")
	c.Intermediate = f.size(maxWidth, "intermediate_size")
	c.Heads, c.KVHeads = f.size(maxHeads, "num_attention_heads"), 1
	c.Eps = float32(f.number(1e-6, 1e-12, 0.1, "rms_norm_eps"))
	c.activation(f, "silu", "hidden_act")
	c.TieEmbeddings = f.flag(false, "tie_word_embeddings")
	c.attentionBias(f, false)
	c.MLPBias = f.flag(false, "mlp_bias")
	l := &latents{
		queryRank: f.integer(0, 1, maxWidth, "q_lora_rank"), rank: f.size(maxHeadDim, "kv_lora_rank"),
		plain: f.size(maxHeadDim, "qk_nope_head_dim"), rotated: f.size(maxHeadDim, "qk_rope_head_dim"),
		value: f.size(maxHeadDim, "v_head_dim"), interleaved: f.flag(true, "rope_interleave"),
	}
	if f.err == nil && l.rotated%2 != 0 {
		f.fault("qk_rope_head_dim", fmt.Sprint(l.rotated), "an even number, for the rotary embedding")
	}
	c.HeadDim = l.rotated // for the rotary embedding
	ropeConfig(f, c, f.integer(0, 1, maxPositions, "max_position_embeddings"))
	c.HeadDim = l.rank + l.rotated
	l.scale = inverseSqrt(l.plain+l.rotated) * c.Rope.latentScale()
	return llamaPlan{latents: l}
}

// latentDefaults sets the defaults of a class. A q_lora_rank of null is none; without the member there is one.
func (f *fields) latentDefaults(queryRank int, values map[string]any) {
	f.missing(map[string]any{"q_lora_rank": queryRank})
	f.defaults(values)
}

// latentScale is the factor of the scores: the square of YaRN's factor for all dimensions, as yarn_apply_mscale of transformers has it.
func (r Rope) latentScale() float32 {
	if r.Type == "default" || r.MScaleAllDim == 0 {
		return 1
	}
	m := r.mscale(r.MScaleAllDim)
	return float32(m * m)
}

// keyTensors adds one tensor for each layer: the transposed matrices that turn a latent into the keys of the heads. The checkpoint has one
// tensor for these matrices and those of the values.
func keyTensors(c *Config, w *weights.Checkpoint) error {
	const suffix = "self_attn.kv_b_proj.weight"
	names := map[string]string{}
	for _, name := range named(w, func(name string) bool { return strings.HasSuffix(name, suffix) }) {
		names[name] = strings.TrimSuffix(name, suffix) + "self_attn.k_b_proj.weight"
	}
	return w.TransposeParts(names, int64(c.Heads), int64(latentsOf(c.plan).plain))
}

// latentsOf are those of a family's plan.
func latentsOf(p plan) *latents {
	if g, ok := p.(granitePlan); ok {
		return g.latents
	}
	return p.(llamaPlan).latents //nolint:forcetypeassert // families with latents have these plans
}

// open is llamaPlan.attention. Source: transformers, modeling_deepseek_v3.py.
func (l *latents) open(b *builder, t *temperature) (attend, finish func(at string, in int) (out int)) {
	c := b.cfg
	key, head := l.rank+l.rotated, l.plain+l.rotated
	ranked, normed := model.None, model.None
	if l.queryRank > 0 {
		ranked, normed = b.slot("query_rank", model.SlotF32, l.queryRank), b.slot("query_rank.normed", model.SlotOperand, l.queryRank)
	}
	queries := b.slot("queries", model.SlotF32, c.Heads*head)
	latent := b.slot("latent", model.SlotF32, key)
	absorbed := b.slot("absorbed", model.SlotF32, c.Heads*key)
	raw := b.slot("attended.latent", model.SlotOperand, c.Heads*l.rank)
	attended := b.slot("attended", model.SlotOperand, c.Heads*l.value)
	invFreq, rotaryScale := c.Rope.Table(l.rotated)
	var scales []float32
	if t != nil {
		scales = t.scales(c.MaxPositions)
	}
	attend = func(at string, in int) int {
		if l.queryRank > 0 {
			b.linear("attn.q_a", in, ranked, model.ActNone, b.part(at+"q_a_proj", c.QKVBias, l.queryRank, c.Hidden))
			b.rmsNorm("attn.q_a_norm", at+"q_a_layernorm", ranked, normed)
			b.last().Eps = latentEps
			b.linear("attn.q_b", normed, queries, model.ActNone, b.part(at+"q_b_proj", false, c.Heads*head, l.queryRank))
		} else {
			b.linear("attn.q", in, queries, model.ActNone, b.part(at+"q_proj", false, c.Heads*head, c.Hidden))
		}
		b.linear("attn.kv_a", in, latent, model.ActNone, b.part(at+"kv_a_proj_with_mqa", c.QKVBias, key, c.Hidden))
		b.partNorm(model.NormRMS, "attn.kv_a_norm", latent, 0, l.rank, 1, b.tensor(at+"kv_a_layernorm.weight", l.rank), model.None)
		b.last().Eps = latentEps

		l.values(b, at) // a fault in its shape goes before that of the keys, which are made of it
		b.eachHead("attn.k_b", queries, absorbed, l.rotated, b.stacked(at+"k_b_proj.weight", c.Heads, l.rank, l.plain))
		store := l.op(model.OpRopeStore, "attn.rope_store", latent, latent)
		store.RotaryDim, store.RotaryOffset, store.RotaryInterleaved = l.rotated, l.rank, l.interleaved
		store.InvFreq, store.RotaryScale = invFreq, rotaryScale
		if l.unrotated {
			store.RotaryDim, store.RotaryOffset, store.RotaryInterleaved, store.InvFreq, store.RotaryScale = 0, 0, false, nil, 0
		}
		rope, att := store, l.op(model.OpAttention, "attn.attention", absorbed, raw)
		rope.Name, rope.In, rope.Out = "attn.rope", absorbed, absorbed
		for _, op := range []*model.Op{&rope, &att} {
			op.Heads, op.Stored, op.KVLayer = c.Heads, true, b.layer
		}
		if t != nil {
			rope.QScales, rope.QScaleTokens, rope.QScaleOffset = scales, t.tokens, t.offset
		}
		att.Scale = l.scale
		b.op(store)
		if !l.unrotated {
			b.op(rope)
		}
		b.op(att)
		return raw
	}
	finish = func(at string, in int) int {
		b.eachHead("attn.v_b", in, attended, 0, l.values(b, at))
		return attended
	}
	return attend, finish
}

// op is an op of attention over the latents of a layer.
func (l *latents) op(kind model.OpKind, name string, in, out int) model.Op {
	op := newOp(kind, name, in, out)
	op.KVHeads, op.HeadDim, op.ValueDim, op.Latent = 1, l.rank+l.rotated, l.rank, true
	return op
}

// values are the parts that make the values of each head: rows of a matrix with those of keys, or matrices of their own as GGUF has them.
func (l *latents) values(b *builder, at string) []model.Part {
	c := b.cfg
	own := at + "v_b_proj.weight"
	if _, ok := b.find(b.name(own)); ok {
		return b.stacked(own, c.Heads, l.value, l.rank)
	}
	rows := l.plain + l.value
	parts := make([]model.Part, c.Heads)
	for i := range parts {
		parts[i] = model.Part{
			Weight: b.tensor(at+"kv_b_proj.weight", c.Heads*rows, l.rank), Bias: model.None,
			Offset: i*rows + l.plain, Rows: l.value, Block: l.value, Stride: l.value,
		}
	}
	return parts
}

// stacked are parts that are the matrices of one tensor.
func (b *builder) stacked(name string, n, rows, in int) []model.Part {
	tensor := b.matrices(name, n, rows, in)
	parts := make([]model.Part, n)
	for i := range parts {
		parts[i] = model.Part{Weight: tensor, Bias: model.None, Offset: i * rows, Rows: rows, Block: rows, Stride: rows}
	}
	return parts
}

// eachHead appends a linear op in which each head has a matrix of its own. The last tail elements of each head of in follow its result.
func (b *builder) eachHead(name string, in, out, tail int, parts []model.Part) {
	op := newOp(model.OpLinear, name, in, out)
	op.Parts, op.Routed, op.Tail = parts, model.RoutedHeads, tail
	op.Routing = model.Routing{Experts: len(parts), TopK: len(parts)}
	b.op(op)
}
