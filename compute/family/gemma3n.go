package family

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"

	"github.com/millrace/millrace/compute/model"
)

// gemma3n is the text model of Gemma 3n: Gemma 4's layers, whose hidden state has several streams.
var gemma3n = family{
	class: "Gemma3nForCausalLM", also: []string{"Gemma3nForConditionalGeneration"}, bare: "Gemma3nTextModel", kind: "gemma3n_text",
	spell:  gemma3nSpell,
	config: gemma3nConfig,
	gguf: &ggufForm{
		name:  "gemma3n",
		names: gemmaTables,
		parts: merged(gemmaParts, map[string]string{
			"altup_correct_coef": "altup.correction_coefs", "altup_correct_scale.weight": "altup.correct_output_scale",
			"altup_predict_coef": "altup.prediction_coefs", "altup_router": "altup.modality_router",
			"altup_router_norm": "altup.router_norm", "laurel_l": "laurel.linear_left", "laurel_r": "laurel.linear_right",
			"laurel_post_norm": "laurel.post_laurel_norm",
		}),
		keys: merged(gemmaKeys, map[string]string{
			"altup.active_idx": "altup_active_idx", "altup.num_inputs": "altup_num_inputs", "activation_sparsity_scale": "gguf.sparsity",
		}),
		spell: gemma3nGGUF,
	},

	models: "the text of Gemma 3n (E2B, E4B)",
	features: "as Gemma 3, norms of values, layers that share keys and values (`num_kv_shared_layers`), inputs of each layer by the token (`hidden_size_per_layer_input`), " +
		"alternating updates (AltUp), a low-rank residual (LAuReL), sparse gates (`activation_sparsity_pattern`), `final_logit_softcapping`",
}

type gemma3nPlan struct {
	gemmaLayers
	streams, active int // of the hidden state; the one that a layer reads
	activeScale     bool
	rank            int       // of LAuReL
	sparsity        []float64 // the share of each layer's gates that is 0, if they are normally distributed; 0: none
}

// gemma3nSpell takes text_config for the whole, and sets the defaults of Gemma3nTextConfig. A cap of null is none; without the member there
// is one.
func gemma3nSpell(f *fields) {
	f.liftText()
	f.sizes(262400, 2048, 16384, 35, 8)
	f.defaults(map[string]any{
		"num_key_value_heads": 2, "head_dim": 256, "max_position_embeddings": 32768, "rope_theta": 1e6, "sliding_window": 512,
		"tie_word_embeddings": true, "vocab_size_per_layer_input": 262144, "num_kv_shared_layers": 15,
	})
	f.missing(map[string]any{"final_logit_softcapping": 30})
	gemmaActivation(f)
	f.patternTypes(5)
}

// gemma3nConfig: source is transformers, modeling_gemma3n.py.
func gemma3nConfig(f *fields, c *Config) plan {
	widths := f.perLayer("intermediate_size")
	p := gemma3nPlan{
		gemmaLayers: gemmaLayersConfig(f, c),
		streams:     f.integer(4, 2, maxStreams, "altup_num_inputs"),
		activeScale: f.flag(true, "altup_correct_scale"),
		rank:        f.integer(64, 1, maxWidth, "laurel_rank"),
		sparsity:    f.sparsity(c),
	}
	p.active = f.integer(0, 0, p.streams-1, "altup_active_idx")
	for i := range p.layers {
		if widths != nil {
			p.layers[i].intermediate = widths[i]
		}
	}
	if c.Activation != model.ActGELUTanh && slices.ContainsFunc(p.sparsity, func(s float64) bool { return s > 0 }) {
		f.fault("hidden_activation", c.Activation.String(), "gelu_pytorch_tanh, of sparse gates")
	}
	if p.perLayer == 0 && f.err == nil {
		f.fault("hidden_size_per_layer_input", "0", "the width of a layer's input")
	}
	return p
}

// maxStreams is MR_MAX_STREAMS of the kernels.
const maxStreams = 8

// perLayer reads a member that may be a list with a number for each layer, nil if it is one number, and leaves the largest in its place.
func (f *fields) perLayer(name string) []int {
	_, raw := f.get(name)
	var all []int
	if raw == nil || json.Unmarshal(raw, &all) != nil {
		return nil
	}
	layers := f.size(maxLayers, "num_hidden_layers")
	most := 0
	for _, n := range all {
		if n < 1 || n > maxWidth {
			f.fault(name, fmt.Sprint(n), fmt.Sprintf("integers in 1..%d", maxWidth))
		}
		most = max(most, n)
	}
	if len(all) != layers {
		f.fault(name, fmt.Sprintf("%d entries", len(all)), fmt.Sprintf("one for each of %d layers", layers))
		return nil
	}
	f.set(name, most)
	return all
}

// sparsity reads the sparsity of each layer. Without the member the first 10 layers of more have 0.95.
func (f *fields) sparsity(c *Config) []float64 {
	const name, first, missing = "activation_sparsity_pattern", 10, 0.95
	all := list[float64](f, name, "a list of numbers")
	if f.err != nil {
		return nil
	}
	if !f.has(name) {
		all = make([]float64, c.Layers)
		for i := range first {
			if c.Layers > first {
				all[i] = missing
			}
		}
	}
	if len(all) != c.Layers {
		f.fault(name, fmt.Sprintf("%d entries", len(all)), fmt.Sprintf("one for each of %d layers", c.Layers))
	}
	for _, s := range all {
		if !(s >= 0 && s < 1) {
			f.fault(name, fmt.Sprint(s), "numbers from 0 to below 1")
		}
	}
	return all
}

// gemma3nSlots are shared by all layers. Streams are adjacent slots.
type gemma3nSlots struct {
	streams              []int
	x, branch, normed    int
	router, modes, coefs int // of AltUp
	weights, low         int
	gate, up             *slotsByWidth // of sparse MLPs
	mid                  *slotsByWidth
	inputs               perLayerInputs
}

func (p gemma3nPlan) build(b *builder) {
	c := b.cfg
	b.findText("embed_tokens", "model.")
	s := p.slots(b)
	b.layer = model.None
	table := p.scaledTable(b, s.streams[0])
	for j := 1; j < p.streams; j++ {
		b.linear("streams.in", s.streams[0], s.streams[j], model.ActNone, p.projection(b, "altup_projections", j))
	}
	p.altUp(b, "streams.match", model.AltUpMatch, s)
	s.inputs = p.openInputs(b, s.streams[0])
	attend := p.attention(b)
	for i := range c.Layers {
		b.layer = i
		p.layer(b, &s, fmt.Sprintf("layers.%d.", i), attend)
	}
	b.layer = model.None
	p.join(b, &s)
	b.rmsNorm("final.norm", "norm", s.x, s.normed)
	b.cappedLogits(s.normed, table, false, p.softcap)
}

func (p gemma3nPlan) slots(b *builder) (s gemma3nSlots) {
	c := b.cfg
	for j := range p.streams {
		s.streams = append(s.streams, b.slot(fmt.Sprintf("stream.%d", j), model.SlotF32, c.Hidden))
	}
	s.x, s.branch = b.slot("active", model.SlotF32, c.Hidden), b.slot("branch", model.SlotF32, c.Hidden)
	s.normed = b.slot("normed", model.SlotOperand, c.Hidden)
	s.router = b.slot("altup.router", model.SlotF32, c.Hidden)
	s.modes = b.slot("altup.modes", model.SlotF32, p.streams)
	s.coefs = b.slot("altup.predict", model.SlotF32, p.streams*p.streams)
	s.weights = b.slot("altup.correct", model.SlotF32, p.streams)
	s.low = b.slot("laurel", model.SlotOperand, p.rank)
	s.gate, s.up = newSlots("gate", model.SlotF32), newSlots("up", model.SlotF32)
	s.mid = newSlots("mid", model.SlotOperand)
	return s
}

// layer appends a layer: it predicts all streams, runs its blocks on the active one, and corrects all of them by what has become of it.
func (p gemma3nPlan) layer(b *builder, s *gemma3nSlots, at string, attend func(at string, in int) int) {
	c := b.cfg
	p.route(b, s, at, s.streams[p.active])
	b.linear("altup.predict", s.modes, s.coefs, model.ActNone, b.part(at+"altup.prediction_coefs", false, p.streams*p.streams, p.streams))
	p.altUp(b, "altup.predicted", model.AltUpPredict, *s)

	// x = the norm, which attention and LAuReL read, and which LAuReL's sum begins with.
	b.rmsNorm("attn.norm", at+"input_layernorm", s.streams[p.active], s.x)
	b.linear("laurel.left", s.x, s.low, model.ActNone, b.part(at+"laurel.linear_left", false, p.rank, c.Hidden))
	out := attend(at+"self_attn.", s.x)
	p.selectInLast(b, s, &out)
	b.linear("laurel.right", s.low, s.branch, model.ActNone, b.part(at+"laurel.linear_right", false, c.Hidden, p.rank))
	b.addNorm("laurel.norm", at+"laurel.post_laurel_norm", s.branch, s.x)
	b.linear("attn.out", out, s.branch, model.ActNone, p.outPart(b, at+"self_attn."))
	b.addNorm("attn.post_norm", at+"post_attention_layernorm", s.branch, s.x)
	b.addRows("attn.sum", s.streams[p.active], s.x, math.Sqrt2/2)

	b.rmsNorm("mlp.norm", at+"pre_feedforward_layernorm", s.x, s.normed)
	p.mlp(b, s, at+"mlp.")
	b.addNorm("mlp.post_norm", at+"post_feedforward_layernorm", s.branch, s.x)

	p.route(b, s, at, s.x)
	b.linear("altup.correct", s.modes, s.weights, model.ActNone, b.part(at+"altup.correction_coefs", false, p.streams, p.streams))
	p.altUp(b, "altup.corrected", model.AltUpCorrect, *s)

	active := s.streams[p.active]
	if p.activeScale {
		op := newOp(model.OpNorm, "altup.scale", active, s.normed)
		op.Norm, op.Weight = model.NormNone, b.tensor(at+"altup.correct_output_scale", c.Hidden)
		b.op(op)
		active = s.normed
	}
	p.applyInput(b, s.inputs, at, active, s.branch)
	for j := 1; j < p.streams; j++ {
		b.addNorm("input.post_norm", at+"post_per_layer_input_norm", s.branch, s.streams[j])
	}
}

// route appends what coefficients are made of: the tanh of a projection of the norm of a row, which is divided by its width.
func (p gemma3nPlan) route(b *builder, s *gemma3nSlots, at string, in int) {
	b.rmsNorm("altup.norm", at+"altup.router_norm", in, s.router)
	b.last().NormScale = 1 / float32(b.cfg.Hidden)
	b.linear("altup.router", s.router, s.modes, model.ActSoftcap, b.part(at+"altup.modality_router", false, p.streams, b.cfg.Hidden))
	b.last().ActA = 1
}

func (p gemma3nPlan) altUp(b *builder, name string, step model.AltUpStep, s gemma3nSlots) {
	op := newOp(model.OpAltUp, name, s.streams[0], s.streams[0])
	op.AltUp = &model.AltUp{Step: step, Streams: p.streams, Coefs: model.None, X: model.None}
	switch step {
	case model.AltUpPredict:
		op.AltUp.Coefs = s.coefs
	case model.AltUpCorrect:
		op.AltUp.Coefs, op.AltUp.X, op.AltUp.Active = s.weights, s.x, p.active
	case model.AltUpMatch:
	}
	b.op(op)
}

// mlp appends branch = the MLP of normed.
func (p gemma3nPlan) mlp(b *builder, s *gemma3nSlots, at string) {
	c, width := b.cfg, p.layers[b.layer].intermediate
	gate, up := b.part(at+"gate_proj", false, width, c.Hidden), b.part(at+"up_proj", false, width, c.Hidden)
	mid := s.mid.of(b, width)
	if sparsity := p.sparsity[b.layer]; sparsity > 0 {
		gates, ups := s.gate.of(b, width), s.up.of(b, width)
		b.linear("mlp.gate", s.normed, gates, model.ActNone, gate)
		b.linear("mlp.up", s.normed, ups, model.ActNone, up)
		b.gate("mlp.sparse", ups, mid, model.Gate{
			Gates: gates, Activation: model.GateGELUTanh, Weight: model.None, Sparse: true,
			Cutoff: float32(math.Sqrt2 * math.Erfinv(2*sparsity-1)), // the normal distribution's quantile
		})
	} else {
		b.gatedLinear("mlp.gate_up", s.normed, mid, c.Activation, gate, up)
	}
	b.linear("mlp.down", mid, s.branch, model.ActNone, b.part(at+"down_proj", false, c.Hidden, width))
}

// selectInLast keeps the rows of outputs of all that later ops read. The streams are adjacent again.
func (p gemma3nPlan) selectInLast(b *builder, s *gemma3nSlots, out *int) {
	var slots []*int
	for j := range s.streams {
		slots = append(slots, &s.streams[j])
	}
	b.selectInLast(append(slots, &s.x, &s.low, out, &s.inputs.all)...)
}

// join appends x = the mean of the streams, but for the first of projections as long as that.
func (p gemma3nPlan) join(b *builder, s *gemma3nSlots) {
	c := b.cfg
	last := *s
	last.streams = nil
	for j := range p.streams {
		last.streams = append(last.streams, b.slot(fmt.Sprintf("joined.%d", j), model.SlotF32, c.Hidden))
	}
	b.copyRows("streams.first", s.streams[0], last.streams[0])
	for j := 1; j < p.streams; j++ {
		b.linear("streams.out", s.streams[j], last.streams[j], model.ActNone, p.projection(b, "altup_unembed_projections", j))
	}
	p.altUp(b, "streams.match", model.AltUpMatch, last)
	b.copyRows("streams.sum", last.streams[0], s.x)
	for j := 1; j < p.streams; j++ {
		b.addRows("streams.sum", last.streams[j], s.x, 0)
	}
	b.last().NormScale = 1 / float32(p.streams)
}

// copyRows appends out = in, of two F32 slots.
func (b *builder) copyRows(name string, in, out int) {
	op := newOp(model.OpNorm, name, in, out)
	op.Norm = model.NormNone
	b.op(op)
}

// addRows appends out = scale x (out + in); 0 is no factor.
func (b *builder) addRows(name string, in, out int, scale float32) {
	b.copyRows(name, in, out)
	b.last().Accumulate, b.last().NormScale = true, scale
}

// gemma3nGGUF: sparse gates are those above their mean plus a factor of their deviation, which is the quantile of the normal distribution.
func gemma3nGGUF(f *fields) {
	f.gemmaGGUF()
	if t, ok := f.tensors.Describe("model.layers.0.laurel.linear_left.weight"); ok && len(t.Shape) == 2 {
		f.set("laurel_rank", t.Shape[0])
	}
	pattern := make([]float64, f.size(maxLayers, "num_hidden_layers"))
	for i, cutoff := range list[any](f, "gguf.sparsity", "a list of numbers") {
		if x, ok := cutoff.(float64); ok && i < len(pattern) { // that of no sparsity is -Inf, a string
			pattern[i] = math.Erfc(-x/math.Sqrt2) / 2
		}
	}
	f.set("activation_sparsity_pattern", pattern)
}

// projection is one of the projections of streams: a tensor of its own, or one of a stack as GGUF files have it.
func (p gemma3nPlan) projection(b *builder, name string, stream int) model.Part {
	n := b.cfg.Hidden
	if _, ok := b.find(b.name(name + ".weight")); ok {
		return b.stacked(name+".weight", p.streams-1, n, n)[stream-1]
	}
	return b.part(fmt.Sprintf("%s.%d", name, stream-1), false, n, n)
}
