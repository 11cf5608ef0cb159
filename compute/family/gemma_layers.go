package family

import (
	"fmt"
	"math"
	"slices"

	"github.com/millrace/millrace/compute/model"
)

// gemmaLayers is what Gemma 3n and Gemma 4 have in common: layers of several shapes, the last of which have the keys and values of earlier
// ones, norms of queries, keys and values, scores that are not divided, and inputs of each layer by the token.
type gemmaLayers struct {
	layers   []gemmaLayer
	local    Rope // of layers with a window
	perLayer int  // width of a layer's own input; 0: there is none
	perVocab int  // rows of its table
	softcap  float32
}

// gemmaLayer is the shape of a layer.
type gemmaLayer struct {
	headDim, kvHeads int
	source           int  // the layer whose keys and values it has; its own number: none other's
	keysOnly         bool // its values are its keys, before their norm and rotation
	intermediate     int
}

// gemmaLayersConfig reads what both have. Layers have the shape of those with a window; the last ones share keys and values.
func gemmaLayersConfig(f *fields, c *Config) (p gemmaLayers) {
	decoderSizes(f, c, 0)
	c.attentionBias(f, false)
	c.QKNorm = true
	p.local = twoRopes(f, c, f.integer(0, 1, maxPositions, "max_position_embeddings"),
		f.number(10000, minTheta, maxTheta, "rope_local_base_freq"))
	c.windows(f, 0, 0)
	p.perLayer = f.integer(256, 0, maxWidth, "hidden_size_per_layer_input")
	p.perVocab = f.size(maxVocab, "vocab_size_per_layer_input")
	p.softcap = float32(f.number(0, 1e-3, 1e6, "final_logit_softcapping"))
	shared := f.integer(0, 0, c.Layers, "num_kv_shared_layers")
	types := f.texts("layer_types")
	if f.err != nil {
		return p
	}
	first := c.Layers - shared
	p.layers = make([]gemmaLayer, c.Layers)
	for i := range p.layers {
		p.layers[i] = gemmaLayer{headDim: c.HeadDim, kvHeads: c.KVHeads, source: i, intermediate: c.Intermediate}
		if i < first {
			continue
		}
		source := lastIndex(types[:first], types[i])
		if source < 0 {
			f.fault("num_kv_shared_layers", fmt.Sprint(shared),
				fmt.Sprintf("one that leaves a layer of %s before those that share its keys", types[i]))
			return p
		}
		p.layers[i].source = source
	}
	return p
}

func lastIndex(all []string, one string) int {
	for i, other := range slices.Backward(all) {
		if other == one {
			return i
		}
	}
	return model.None
}

// slotsByWidth are slots of one kind, one for each width that layers have.
type slotsByWidth struct {
	name  string
	kind  model.SlotType
	slots map[int]int
}

func newSlots(name string, kind model.SlotType) *slotsByWidth {
	return &slotsByWidth{name: name, kind: kind, slots: map[int]int{}}
}

func (s *slotsByWidth) of(b *builder, width int) int {
	slot, ok := s.slots[width]
	if !ok {
		name := s.name
		if len(s.slots) > 0 {
			name = fmt.Sprintf("%s.%d", s.name, width)
		}
		slot = b.slot(name, s.kind, width)
		s.slots[width] = slot
	}
	return slot
}

// attention returns what appends the ops of a layer's attention from the slot in, up to the slot that it returns. Tensors' names begin with
// at.
func (p *gemmaLayers) attention(b *builder) func(at string, in int) (out int) {
	c := b.cfg
	qkv, attended := newSlots("qkv", model.SlotF32), newSlots("attended", model.SlotOperand)
	tables := map[bool]func(dim int) ([]float32, float32){false: c.Rope.Table, true: p.local.Table}
	return func(at string, in int) int {
		l := p.layers[b.layer]
		q, kv := c.Heads*l.headDim, l.kvHeads*l.headDim
		own := l.source == b.layer
		parts := []model.Part{b.part(at+"q_proj", c.QKVBias, q, c.Hidden)}
		width := q
		if own {
			key := b.part(at+"k_proj", c.QKVBias, kv, c.Hidden)
			value := key
			if !l.keysOnly {
				value = b.part(at+"v_proj", c.QKVBias, kv, c.Hidden)
			}
			parts, width = append(parts, key, value), q+2*kv
		} else {
			for _, idle := range []string{"k_proj", "v_proj", "k_norm"} { // which files may have
				b.sought[b.name(at+idle+".weight")] = true
			}
		}
		slot := qkv.of(b, width)
		b.linear("attn.qkv", in, slot, model.ActNone, parts...)
		if own {
			b.partNorm(model.NormRMS, "attn.v_norm", slot, q+kv, kv, l.kvHeads, model.None, model.None)
		}
		out := attended.of(b, q)
		b.attention(slot, out, func(rope, att *model.Op) {
			for _, op := range []*model.Op{rope, att} {
				op.KVHeads, op.HeadDim = l.kvHeads, l.headDim
				op.Stored = !own
				if !own {
					op.KVLayer = l.source
				}
			}
			rope.Eps = c.Eps
			rope.QNorm = b.tensor(at+"q_norm.weight", l.headDim)
			if own {
				rope.KNorm = b.tensor(at+"k_norm.weight", l.headDim)
			}
			if c.Windows != nil {
				att.Window = c.Windows[b.layer]
			}
			rope.RotaryDim = l.headDim
			rope.InvFreq, rope.RotaryScale = tables[att.Window > 0](l.headDim)
			att.Scale = 1
		})
		return out
	}
}

// outPart is the projection of a layer's attention.
func (p *gemmaLayers) outPart(b *builder, at string) model.Part {
	c := b.cfg
	return b.part(at+"o_proj", c.OutBias, c.Hidden, c.Heads*p.layers[b.layer].headDim)
}

// perLayerInputs are the slots of what layers get by the token.
type perLayerInputs struct{ all, gate, gated int }

// openInputs appends the ops that make the inputs of all layers from the embedding x: of the sum of two terms, one is the token's row of a
// table, the other a norm of a projection of x. Both are divided by the root of 2. A projection that is divided by the root of its width is
// a norm with another epsilon.
func (p *gemmaLayers) openInputs(b *builder, x int) (s perLayerInputs) {
	c := b.cfg
	width := c.Layers * p.perLayer
	s.all = b.slot("layer_inputs", model.SlotF32, width)
	s.gate, s.gated = b.slot("layer_input.gate", model.SlotF32, p.perLayer), b.slot("layer_input", model.SlotOperand, p.perLayer)
	table := b.tensor("embed_tokens_per_layer.weight", p.perVocab, width)
	b.linear("inputs.projection", x, s.all, model.ActNone, b.part("per_layer_model_projection", false, width, c.Hidden))
	b.partNorm(model.NormRMS, "inputs.norm", s.all, 0, width, c.Layers, b.tensor("per_layer_projection_norm.weight", p.perLayer),
		model.None)
	b.last().Eps *= float32(c.Hidden)
	b.last().NormScale = math.Sqrt2 / 2
	b.addEmbed("inputs.embed", s.all, table, b.rounded(float32(math.Sqrt(float64(p.perLayer))), table)*(math.Sqrt2/2))
	return s
}

// applyInput appends branch = projection . (act(gate . in) * the layer's input).
func (p *gemmaLayers) applyInput(b *builder, s perLayerInputs, at string, in, branch int) {
	c := b.cfg
	b.linear("input.gate", in, s.gate, c.Activation, b.part(at+"per_layer_input_gate", false, p.perLayer, c.Hidden))
	b.gate("input.gated", s.gate, s.gated, model.Gate{
		Gates: s.all, Offset: b.layer * p.perLayer, Activation: model.GateNone, Weight: model.None,
	})
	b.linear("input.projection", s.gated, branch, model.ActNone, b.part(at+"per_layer_projection", false, c.Hidden, p.perLayer))
}

// scaledTable appends the embedding times the root of its width, which is rounded to the table's type.
func (p *gemmaLayers) scaledTable(b *builder, x int) (table int) {
	c := b.cfg
	table = b.tokenTable("embed_tokens.weight", c.Hidden)
	b.scaledEmbed("embed", x, table, b.rounded(float32(math.Sqrt(float64(c.Hidden))), table))
	return table
}

// lastFull makes the last layer see all tokens, as the class does whatever the configuration has.
func (f *fields) lastFull() {
	if types := slices.Clone(f.texts("layer_types")); len(types) > 0 {
		types[len(types)-1] = full
		f.set("layer_types", types)
	}
}

// gemmaParts are the names of the tensors that Gemma 3n and Gemma 4 have in their layers.
var gemmaParts = merged(sandwichParts, map[string]string{
	"inp_gate": "per_layer_input_gate", "proj": "per_layer_projection", "post_norm": "post_per_layer_input_norm",
})

// gemmaTables are those outside of them.
var gemmaTables = map[string]string{
	"per_layer_token_embd": "embed_tokens_per_layer", "per_layer_model_proj": "per_layer_model_projection",
	"per_layer_proj_norm": "per_layer_projection_norm", "altup_proj": "altup_projections", "altup_unembd_proj": "altup_unembed_projections",
}

// gemmaKeys are the keys of both.
var gemmaKeys = merged(windowKeys, map[string]string{
	"rope.freq_base_swa": "rope_local_base_freq", "final_logit_softcapping": "final_logit_softcapping",
	"embedding_length_per_layer_input": "hidden_size_per_layer_input", "attention.shared_kv_layers": "num_kv_shared_layers",
})

// gemmaGGUF sets what both have as tensors alone, or have no key for: llama.cpp knows that there is no cap.
func (f *fields) gemmaGGUF() {
	f.ggufTypes(1)
	f.missing(map[string]any{"hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": f.integer(1, 1, maxVocab, "vocab_size")})
	if !f.has("final_logit_softcapping") {
		f.members["final_logit_softcapping"] = []byte("null")
	}
	if t, ok := f.tensors.Describe("model.embed_tokens_per_layer.weight"); ok && len(t.Shape) == 2 {
		f.set("vocab_size_per_layer_input", t.Shape[0])
	}
}
