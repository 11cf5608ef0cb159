package family

import (
	"fmt"
	"slices"

	"github.com/millrace/millrace/compute/model"
	"github.com/millrace/millrace/compute/weights"
)

// bert is BERT.
var bert = family{
	class: "BertModel", also: []string{"BertForSequenceClassification", "BertForMaskedLM", "BertForPreTraining"}, kind: "bert",
	config: bertConfig,
	gguf: &ggufForm{ // of RoBERTa too, whose positions begin at 0 there
		name: "bert", decoder: "bert.", layers: "encoder.layer.",
		names: map[string]string{
			"token_embd": "embeddings.word_embeddings", "position_embd": "embeddings.position_embeddings",
			"token_types": "embeddings.token_type_embeddings", "token_embd_norm": "embeddings.LayerNorm",
		},
		parts: map[string]string{
			"attn_q": "attention.self.query", "attn_k": "attention.self.key", "attn_v": "attention.self.value",
			"attn_output": "attention.output.dense", "attn_output_norm": "attention.output.LayerNorm", "ffn_up": "intermediate.dense",
			"ffn_down": "output.dense", "layer_output_norm": "output.LayerNorm",
		},
		head:  map[string]string{"cls": "classifier.dense", "cls.output": "classifier.out_proj"},
		keys:  bertKeys,
		spell: bertGGUF,
	},

	models:   "BERT, BGE, E5, GTE, MiniLM and other sentence encoders, MS MARCO cross-encoders",
	features: "encoder: attention both ways, learned positions, types of tokens, norms after the sums, classifier over the first token's pooler",
}

// roberta is RoBERTa.
var roberta = family{
	class: "RobertaModel", also: []string{"RobertaForSequenceClassification", "RobertaForMaskedLM"}, kind: "roberta",
	config: robertaConfig,

	models:   "RoBERTa, all-distilroberta",
	features: "BERT with positions after `pad_token_id`, classifier with a dense layer",
}

// xlmRoberta is XLM-RoBERTa.
var xlmRoberta = family{
	class: "XLMRobertaModel", also: []string{"XLMRobertaForSequenceClassification", "XLMRobertaForMaskedLM"}, kind: "xlm-roberta",
	config: robertaConfig,

	models:   "XLM-RoBERTa, BGE-M3, BGE-reranker, multilingual E5",
	features: "as RoBERTa",
}

// bertPlan is an encoder of attention both ways whose norms come after the residual sums, or before attention and MLP: seven ops per layer.
// Source: transformers, modeling_bert.py, modeling_roberta.py, modeling_nomic_bert.py and those of DistilBERT, ELECTRA, ALBERT and others.
type bertPlan struct {
	prefix    string // before the names of the encoder's tensors
	positions int    // position of the first token in the table; -1: there is none
	types     int    // types of tokens; 0: there is no table
	rotary    int    // rotated part of a head; 0: none
	gated     bool   // the MLP has a gate
	names     bertNames
	embedding int                // elements of a token's embedding, from which a matrix makes hidden ones; 0: they are hidden ones
	experts   *experts           // in place of the MLP of some layers; nil: none
	task      bool               // the row of a task is added to each embedding
	layer     func(i int) string // before the names of a layer's tensors; nil: its number follows names.layers

	dense           string           // the layer before the classifier
	inEncoder       bool             // its name has the encoder's prefix, too
	denseActivation model.Activation // of its result; 0: tanh
}

// bertNames are the names of a layer's tensors.
type bertNames struct {
	layers                 string // before the number of a layer
	fused                  string // q, k and v as one tensor; "": they are three
	q, k, v, out, attnNorm string
	gate, up, down         string
	mlpNorm                string
	embedNorm              string // "": there is none
	project                string // from the embedding's elements to hidden ones
	final                  string // the norm after the last layer, whose norms come before attention and MLP; "": they come after the sums
}

var bertOwnNames = bertNames{
	layers: "encoder.layer.", q: "attention.self.query", k: "attention.self.key", v: "attention.self.value", out: "attention.output.dense",
	attnNorm: "attention.output.LayerNorm", up: "intermediate.dense", down: "output.dense", mlpNorm: "output.LayerNorm",
	embedNorm: "embeddings.LayerNorm",
}

func bertConfig(f *fields, c *Config) plan {
	bertSizes(f, c, "gelu", 1e-12)
	c.QKVBias, c.OutBias, c.MLPBias = true, true, true
	c.MaxPositions = f.integer(512, 1, maxPositions, "max_position_embeddings")
	f.only("position_embedding_type", "absolute")
	p := bertPlan{prefix: "bert.", types: f.integer(2, 1, 2, "type_vocab_size"), names: bertOwnNames, dense: "pooler.dense",
		inEncoder: true}
	if weights.IsGGUF(c.File) {
		p.dense, p.inEncoder = "classifier.dense", false
	}
	return p
}

// bertSizes reads what these encoders have in common.
func bertSizes(f *fields, c *Config, activation string, eps float64) {
	f.without("is_decoder")
	c.encoder(f)
	c.Hidden = f.size(maxWidth, "hidden_size")
	c.Layers = f.size(maxLayers, "num_hidden_layers")
	c.plainHeads(f, "num_attention_heads")
	c.Intermediate = f.size(maxWidth, "intermediate_size")
	c.Eps = float32(f.number(eps, 1e-12, 0.1, "layer_norm_eps"))
	c.activation(f, activation, "hidden_act")
}

func robertaConfig(f *fields, c *Config) plan {
	p := bertConfig(f, c).(bertPlan)
	p.prefix, p.dense, p.inEncoder = "roberta.", "classifier.dense", false
	p.positions = f.integer(1, 0, maxVocab, "pad_token_id") + 1
	c.MaxPositions -= p.positions
	if f.err == nil && c.MaxPositions < 1 {
		f.fault("max_position_embeddings", fmt.Sprint(c.MaxPositions+p.positions),
			fmt.Sprintf("more than %d: positions begin after pad_token_id", p.positions))
	}
	return p
}

func (p bertPlan) build(b *builder) {
	c, n := b.cfg, p.names
	b.findPrefix("embeddings.word_embeddings.weight", p.prefix, "")
	if _, ok := b.find(b.name(nomicOwnNames.embedNorm + ".weight")); ok {
		n = nomicOwnNames
		if _, ok := b.find(b.name(p.at(n, 0) + nomicPlainUp + ".weight")); ok {
			n.up = nomicPlainUp
		}
	}
	head := &classHead{pooling: model.PoolFirst, dense: p.classDense}
	b.beginEncoder(head)
	x := b.slot("residual", model.SlotF32, c.Hidden)
	in := x // of attention and MLP
	before := n.final != ""
	if before {
		in = b.slot("normed", model.SlotOperand, c.Hidden)
	}
	qkv := b.slot("qkv", model.SlotF32, 3*c.Hidden)
	attended := b.slot("attended", model.SlotOperand, c.Hidden)
	mid := b.slot("mid", model.SlotOperand, c.Intermediate)
	var mixture expertSlots
	if p.experts != nil {
		mixture = p.experts.makeSlots(b)
	}
	invFreq, rotaryScale := c.Rope.Table(p.rotary)

	b.layer = model.None
	table := p.embed(b, n, x)
	for i := range c.Layers {
		b.layer = i
		at := p.at(n, i)
		if before {
			b.anyNorm("attn.norm", at+n.attnNorm, true, x, in)
		}
		b.linear("attn.qkv", in, qkv, model.ActNone, p.qkv(b, n, at)...)
		b.attention(qkv, attended, func(rope, att *model.Op) {
			rope.BothWays, att.BothWays = true, true
			if p.rotary > 0 {
				rope.RotaryDim, rope.InvFreq, rope.RotaryScale = p.rotary, invFreq, rotaryScale
			}
		})
		b.selectInLast(&x, &attended)
		b.addLinear("attn.out", attended, x, b.part(at+n.out, c.OutBias, c.Hidden, c.Hidden))
		if before {
			b.anyNorm("mlp.norm", at+n.mlpNorm, true, x, in)
		} else {
			b.anyNorm("attn.norm", at+n.attnNorm, true, x, x)
			in = x
		}
		if p.experts != nil && !slices.Contains(p.experts.dense, i) {
			p.experts.build(b, mixture, at, in, x, true)
			b.addVector("mlp.experts_bias", at+nomicExpertBias, x)
		} else {
			p.mlp(b, n, at, in, mid, x)
		}
		if !before {
			b.anyNorm("mlp.norm", at+n.mlpNorm, true, x, x)
		}
	}
	var last func(in, out int)
	if before {
		last = func(in, out int) { b.anyNorm("final.norm", n.final, true, in, out) }
	}
	b.encoderEnd(x, table, last, head)
}

// mlp appends an MLP, and adds its result to x.
func (p bertPlan) mlp(b *builder, n bertNames, at string, in, mid, x int) {
	c := b.cfg
	up, down := b.part(at+n.up, c.MLPBias, c.Intermediate, c.Hidden), b.part(at+n.down, c.MLPBias, c.Hidden, c.Intermediate)
	if p.gated {
		b.gatedLinear("mlp.gate_up", in, mid, c.Activation, b.part(at+n.gate, c.MLPBias, c.Intermediate, c.Hidden), up)
	} else {
		b.linear("mlp.in", in, mid, c.Activation, up)
	}
	b.addLinear("mlp.out", mid, x, down)
}

// addVector appends x += a tensor, if the checkpoint has it.
func (b *builder) addVector(name, tensor string, x int) {
	if _, ok := b.find(b.name(tensor)); ok {
		b.bareNorm(model.NormNone, name, x, x)
		b.last().Bias = b.biasOf(tensor, b.program.Slots[x].Width)
	}
}

// at is before the names of a layer's tensors.
func (p bertPlan) at(n bertNames, i int) string {
	if p.layer != nil {
		return p.layer(i)
	}
	return fmt.Sprintf("%s%d.", n.layers, i)
}

// embed writes tokens + positions + types, normed, to x. It returns a matrix of hidden ones: the token table, where it is one.
func (p bertPlan) embed(b *builder, n bertNames, x int) int {
	c := b.cfg
	const at = "embeddings."
	width, to := c.Hidden, x
	if p.embedding > 0 {
		width = p.embedding
		to = b.slot("embedding", model.SlotF32, width)
	}
	table, positions := b.tokenTable(at+"word_embeddings.weight", width), model.None
	if p.positions >= 0 {
		positions = b.tensor(at+"position_embeddings.weight", c.MaxPositions+p.positions, width)
	}
	b.embed("embed", to, table, positions, max(p.positions, 0))
	b.last().Types = b.tensorIf(p.types > 0, at+"token_type_embeddings.weight", p.types, width)
	if p.task {
		b.bareNorm(model.NormNone, "embed.task", to, to)
		b.last().Bias = b.biasOf(at+"task_type_embeddings.weight", width)
	}
	if n.embedNorm != "" {
		b.anyNorm("embed.norm", n.embedNorm, true, to, to)
	}
	if to != x {
		b.linear("embed.project", to, x, model.ActNone, b.part(n.project, true, c.Hidden, width))
		return b.tensor(p.at(n, 0)+n.q+".weight", c.Hidden, c.Hidden)
	}
	return table
}

// qkv are the projections q, k and v.
func (p bertPlan) qkv(b *builder, n bertNames, at string) []model.Part {
	c := b.cfg
	if n.fused != "" {
		return b.fusedParts(at+n.fused, c.QKVBias, c.Hidden, c.Hidden, c.Hidden, c.Hidden)
	}
	parts := make([]model.Part, 0, 3)
	for _, name := range []string{n.q, n.k, n.v} {
		parts = append(parts, b.part(at+name, c.QKVBias, c.Hidden, c.Hidden))
	}
	return parts
}

// classDense appends the layer before the classifier: act(W x + b) of the first token.
func (p bertPlan) classDense(b *builder, in int) (out int) {
	c := b.cfg
	out = b.slot("pooler", model.SlotF32, c.Hidden)
	var part model.Part
	name := func() { part = b.part(p.dense, true, c.Hidden, c.Hidden) }
	if p.inEncoder {
		name()
	} else {
		b.atRoot(name)
	}
	if p.denseActivation == model.ActNone {
		b.tanh("pooler", in, out, part)
	} else {
		b.linear("pooler", in, out, p.denseActivation, part)
	}
	return out
}

// bertKeys are the keys of encoders.
var bertKeys = map[string]string{"attention.layer_norm_epsilon": "layer_norm_eps", "attention.causal": ggufCausal}

// ggufCausal is the member of attention.causal of encoders.
const ggufCausal = "gguf.causal"

// bothWays refuses an encoder that says that it is a decoder.
func (f *fields) bothWays() {
	if f.flag(false, ggufCausal) {
		f.fault(ggufCausal, "true", "false")
	}
}

// bertGGUF takes the number of types of tokens from their table.
func bertGGUF(f *fields) {
	f.bothWays()
	if t, ok := f.describe("token_types.weight"); ok && len(t.Shape) == 2 {
		f.set("type_vocab_size", t.Shape[0])
	}
}
