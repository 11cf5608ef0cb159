package family

import (
	"fmt"

	"github.com/millrace/millrace/compute/model"
)

// deci is DeciLM: Llama whose layers were chosen by a search, each for itself.
var deci = family{
	class: "DeciLMForCausalLM", kind: "nemotron-nas",
	config: deciConfig,
	gguf:   &ggufForm{name: "deci", interleaved: true, spell: deciGGUF},

	models: "Llama Nemotron Super 49B and 51B, Ultra 253B, DeciLM 7B",
	features: "Llama with KV heads and an MLP of another size in each layer (`block_configs`, `num_key_value_heads_per_layer`), layers " +
		"without attention or MLP, and with a matrix in place of attention",
}

// deciBlocks are a layer's two blocks, as block_configs has them.
type deciBlocks struct {
	Attention struct {
		Group    *int     `json:"n_heads_in_group"` // attention heads of a KV head
		None     bool     `json:"no_op"`
		Linear   bool     `json:"replace_with_linear"`
		Sinks    *int     `json:"num_sink_tokens"`
		Window   *int     `json:"window_length"`
		Sparsify []string `json:"sparsify"`
	} `json:"attention"`
	MLP struct {
		Factor   *float64 `json:"ffn_mult"`
		Width    *int     `json:"intermediate_size"`
		None     bool     `json:"no_op"`
		Linear   bool     `json:"replace_with_linear"`
		Sparsify []string `json:"sparsify"`
	} `json:"ffn"`
}

// deciLayer is a layer: an RMS norm before each of its blocks, whose results are added to the residual.
type deciLayer struct {
	kvHeads int  // of its attention; 0: it has none
	linear  bool // it has a matrix in place of attention
	width   int  // of its MLP; 0: it has none
}

// deciPlan is Llama's decoder of these layers. Source: modeling_decilm.py beside the checkpoints.
type deciPlan struct{ layers []deciLayer }

func deciConfig(f *fields, c *Config) plan {
	f.missing(map[string]any{"rms_norm_eps": 1e-5})
	layers := f.deciLayers()
	kvHeads, width := 0, 0
	for _, l := range layers {
		kvHeads, width = max(kvHeads, l.kvHeads), max(width, l.width)
	}
	f.set("num_key_value_heads", kvHeads) // the largest
	f.set("intermediate_size", width)
	llamaConfig(f, c)
	return deciPlan{layers}
}

// deciLayers are the layers of block_configs, or of num_key_value_heads_per_layer.
func (f *fields) deciLayers() (layers []deciLayer) {
	heads, name := f.size(maxHeads, "num_attention_heads"), "num_key_value_heads_per_layer"
	if kvHeads := f.integers(name); kvHeads != nil {
		width := f.size(maxWidth, "intermediate_size")
		for _, n := range kvHeads {
			layers = append(layers, deciLayer{kvHeads: n, width: width})
		}
	} else {
		name = "block_configs"
		hidden := f.size(maxWidth, "hidden_size")
		for i, blocks := range list[deciBlocks](f, name, "a list with an object for each layer") {
			layers = append(layers, f.deciLayer(fmt.Sprintf("%s[%d].", name, i), &blocks, heads, hidden))
		}
	}
	if n := f.size(maxLayers, "num_hidden_layers"); len(layers) != n {
		f.fault(name, fmt.Sprintf("%d layers", len(layers)), fmt.Sprintf("%d, num_hidden_layers", n))
	}
	attends, narrows := false, false
	for i, l := range layers {
		attends, narrows = attends || l.kvHeads > 0, narrows || l.width > 0
		if l.kvHeads < 0 || l.kvHeads > 0 && heads%l.kvHeads != 0 {
			f.fault(fmt.Sprintf("%s[%d]", name, i), fmt.Sprintf("%d KV heads", l.kvHeads),
				fmt.Sprintf("a divisor of the %d attention heads", heads))
		}
		if l.width < 0 || l.width > maxWidth {
			f.fault(fmt.Sprintf("%s[%d]", name, i), fmt.Sprintf("an MLP of %d", l.width), fmt.Sprintf("0 to %d", maxWidth))
		}
	}
	if !attends || !narrows {
		f.fault(name, "layers without attention, or without MLPs, alone", "one of each at least")
	}
	return layers
}

// deciLayer is one of block_configs. at is before the names of what is refused.
func (f *fields) deciLayer(at string, blocks *deciBlocks, heads, hidden int) (l deciLayer) {
	attention, mlp := &blocks.Attention, &blocks.MLP
	for name, there := range map[string]bool{
		"attention.num_sink_tokens": attention.Sinks != nil, "attention.window_length": attention.Window != nil,
		"attention.sparsify": len(attention.Sparsify) > 0, "ffn.sparsify": len(mlp.Sparsify) > 0, "ffn.replace_with_linear": mlp.Linear,
	} {
		if there {
			f.fault(at+name, "a value", "null or false")
		}
	}
	switch group := attention.Group; {
	case attention.Linear:
		l.linear = true
	case attention.None:
	case group == nil || *group < 1 || heads%*group != 0:
		f.fault(at+"attention.n_heads_in_group", "no such number", fmt.Sprintf("a divisor of the %d attention heads", heads))
	default:
		l.kvHeads = heads / *group
	}
	switch {
	case mlp.None:
	case mlp.Width != nil:
		l.width = *mlp.Width
	case mlp.Factor == nil || !(*mlp.Factor > 0) || *mlp.Factor*float64(hidden) > maxWidth:
		f.fault(at+"ffn.ffn_mult", "no such number", fmt.Sprintf("one above 0, for a width of at most %d", maxWidth))
	default: // two thirds of it, in whole multiples of 256
		const multiple = 256
		l.width = (int(2**mlp.Factor*float64(hidden)/3) + multiple - 1) / multiple * multiple
	}
	return l
}

// deciGGUF: heads and KV heads of 0 are a layer without attention, KV heads of 0 alone one with a matrix in its place.
func deciGGUF(f *fields) {
	heads, kvHeads, widths := f.listed("num_attention_heads"), f.listed("num_key_value_heads"), f.listed("intermediate_size")
	if heads == nil && widths == nil { // DeciLM 7B
		if kvHeads != nil {
			f.set("num_key_value_heads_per_layer", kvHeads)
		}
		return
	}
	if len(heads) != len(kvHeads) || len(heads) != len(widths) || len(heads) == 0 {
		f.fault("num_attention_heads", fmt.Sprintf("%d numbers, %d of KV heads, %d of widths", len(heads), len(kvHeads), len(widths)),
			"one of each for each layer")
		return
	}
	all := make([]deciBlocks, len(heads))
	for i := range all {
		attention, mlp := &all[i].Attention, &all[i].MLP
		attention.None, attention.Linear = heads[i] == 0, heads[i] != 0 && kvHeads[i] == 0
		if kvHeads[i] > 0 {
			group := heads[i] / kvHeads[i]
			attention.Group = &group
		}
		mlp.None, mlp.Width = widths[i] == 0, &widths[i]
	}
	f.set("block_configs", all)
	f.uniform("num_attention_heads")
}

func (p deciPlan) build(b *builder) {
	c := b.cfg
	b.findText("embed_tokens", "model.")
	x := b.slot("residual", model.SlotF32, c.Hidden)
	normed := b.slot("normed", model.SlotOperand, c.Hidden)
	attended := b.slot("attended", model.SlotOperand, c.Heads*c.HeadDim)
	qkv, mids := newSlots("qkv", model.SlotF32), newSlots("mid", model.SlotOperand)
	invFreq, scale := c.Rope.Table(c.HeadDim)
	b.layer = model.None
	table := b.tokenTable("embed_tokens.weight", c.Hidden)
	b.scaledEmbed("embed", x, table, 1)
	for i, l := range p.layers {
		b.layer = i
		at := fmt.Sprintf("layers.%d.", i)
		attends := l.linear || l.kvHeads > 0
		if attends {
			b.rmsNorm("attn.norm", at+"input_layernorm", x, normed)
		} else if l.width > 0 {
			b.rmsNorm("mlp.norm", at+"post_attention_layernorm", x, normed)
		}
		switch {
		case l.linear:
			b.selectInLast(&x, &normed)
			name := b.either(at+"self_attn.linear_attn.weight", at+"self_attn.o_proj.weight")
			b.addLinear("attn.linear", normed, x, b.part(name[:len(name)-len(".weight")], false, c.Hidden, c.Hidden))
		case l.kvHeads > 0:
			p.attend(b, at+"self_attn.", l.kvHeads, normed, qkv, attended, invFreq, scale)
			b.selectInLast(&x, &attended)
			b.addLinear("attn.out", attended, x, b.outPart(at, attended))
		default:
			b.selectInLast(&x, &normed)
		}
		if l.width == 0 {
			continue
		}
		if attends {
			b.rmsNorm("mlp.norm", at+"post_attention_layernorm", x, normed)
		}
		mid := mids.of(b, l.width)
		b.gatedLinear("mlp.gate_up", normed, mid, c.Activation, b.part(at+"mlp.gate_proj", c.MLPBias, l.width, c.Hidden),
			b.part(at+"mlp.up_proj", c.MLPBias, l.width, c.Hidden))
		b.addLinear("mlp.down", mid, x, b.part(at+"mlp.down_proj", c.MLPBias, c.Hidden, l.width))
	}
	b.layer = model.None
	b.rmsNorm("final.norm", "norm", x, normed)
	b.logits(normed, table, false)
}

// attend appends the attention of a layer.
func (p deciPlan) attend(b *builder, at string, kvHeads, in int, slots *slotsByWidth, out int, invFreq []float32, scale float32) {
	c := b.cfg
	queries, keys := c.Heads*c.HeadDim, kvHeads*c.HeadDim
	qkv := slots.of(b, queries+2*keys)
	b.linear("attn.qkv", in, qkv, model.ActNone, b.projections(at, queries, keys, keys)...)
	b.attention(qkv, out, func(rope, att *model.Op) {
		rope.KVHeads, att.KVHeads = kvHeads, kvHeads
		rope.RotaryDim, rope.InvFreq, rope.RotaryScale = c.HeadDim, invFreq, scale
	})
}
