package family

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/millrace/millrace/compute/model"
)

// experts are the MLPs of a mixture: each row goes through those that it chooses, and through the shared one.
type experts struct {
	routing      model.Routing
	intermediate int     // of an expert
	shared       int     // of the shared MLP; 0: there is none
	sharedGate   bool    // the shared MLP's result is times the sigmoid of a number of its own
	dense        []int   // layers that have a plain MLP
	plain        bool    // no expert has a gate
	biased       bool    // all projections, that of the router too, have biases
	alternate    bool    // rows of gate and up alternate in one tensor
	biasIfThere  bool    // some checkpoints lack the bias of choices
	weighsIn     bool    // the weight of an expert is a factor of what it reads, not of what it gives
	limit, alpha float32 // of SwiGLU with limits; 0: the configuration's activation
	names        expertNames
}

// expertNames are those of the tensors in a layer's MLP, without .weight.
type expertNames struct {
	layer          string // before all of them but those of the shared MLP
	router, bias   string // "": choices have no bias
	factors        string // of the weights of each expert; "": there are none
	fused          string // gate and up of all experts as one tensor, with .weight; "": gate_up_proj of the experts, or none
	gate, up, down string // of an expert, or of all
	shared         string // before those of the shared MLP
	sharedFused    string // its gate and up as one tensor; "": they are gate_proj and up_proj
	sharedDown     string // "": down_proj
	sharedGate     string
}

// expertSlots are shared by all layers.
type expertSlots struct{ logits, chosen, mid, sharedMid, sharedLogit, sharedChosen int }

// qwenExperts are the names that most checkpoints took from Qwen's mixtures.
func qwenExperts() expertNames {
	return expertNames{layer: "mlp.", router: "gate", gate: "gate_proj", up: "up_proj", down: "down_proj", shared: "mlp.shared_expert.",
		sharedGate: "shared_expert_gate"}
}

// maxExperts is kMostExperts of the kernels.
const maxExperts = 1 << 12

// readExperts reads the number of experts, of those that a row chooses, and their width.
func readExperts(f *fields, count, chosen, width []string) *experts {
	e := &experts{names: qwenExperts(), routing: model.Routing{Scale: 1}}
	e.routing.Experts = f.size(maxExperts, count...)
	e.routing.TopK = f.size(maxExperts, chosen...)
	e.intermediate = f.size(maxWidth, width...)
	if f.err == nil && e.routing.TopK > e.routing.Experts {
		f.fault(chosen[0], fmt.Sprint(e.routing.TopK), fmt.Sprintf("at most the %d experts", e.routing.Experts))
	}
	return e
}

// sparse reads which layers have experts: every decoder_sparse_step-th one but mlp_only_layers.
func (e *experts) sparse(f *fields, c *Config) {
	step := f.integer(1, 1, maxLayers, "decoder_sparse_step")
	plain := f.integers("mlp_only_layers")
	for i := range c.Layers {
		if (i+1)%step != 0 || slices.Contains(plain, i) {
			e.dense = append(e.dense, i)
		}
	}
}

// makeSlots makes what the layers share.
func (e *experts) makeSlots(b *builder) (s expertSlots) {
	r := e.routing
	s.logits = b.slot("router", model.SlotF32, r.Experts)
	s.chosen = b.slot("chosen", model.SlotF32, 2*r.TopK)
	s.mid = b.slot("experts", model.SlotOperand, r.TopK*e.intermediate)
	if e.shared > 0 {
		s.sharedMid = b.slot("shared", model.SlotOperand, e.shared)
	}
	if e.sharedGate {
		s.sharedLogit, s.sharedChosen = b.slot("shared.gate", model.SlotF32, 1), b.slot("shared.chosen", model.SlotF32, 2)
	}
	return s
}

// build appends x += the experts' sum of in, or x = that sum. at is before the layer's tensors.
func (e *experts) build(b *builder, s expertSlots, at string, in, x int, adds bool) {
	e.choose(b, s, at+e.names.layer, in)
	e.run(b, s, at, in, x, adds)
}

// choose appends the choice of experts by in.
func (e *experts) choose(b *builder, s expertSlots, at string, in int) {
	bias := model.None
	if _, ok := b.find(b.name(at + e.names.bias)); e.names.bias != "" && (ok || !e.biasIfThere || b.source == nil) {
		bias = b.biasOf(at+e.names.bias, e.routing.Experts)
	}
	b.linear(model.Router, in, s.logits, model.ActNone, b.part(at+e.names.router, e.biased, e.routing.Experts, b.cfg.Hidden))
	b.route("mlp.route", s.logits, s.chosen, bias, e.routing)
	if e.names.factors != "" {
		b.last().Weight = b.tensor(at+e.names.factors, e.routing.Experts)
	}
}

// run appends x += what the chosen experts make of in, or x = that.
func (e *experts) run(b *builder, s expertSlots, at string, in, x int, adds bool) {
	c, n := b.cfg, e.names
	shared := at + n.shared
	at += n.layer
	up := newOp(model.OpLinear, "mlp.experts_up", in, s.mid)
	up.Activation, up.Gated = c.Activation, !e.plain
	if e.plain {
		up.Parts = e.parts(b, e.at(at), n.up, e.intermediate, c.Hidden)
	} else {
		up.Parts = e.gateUp(b, at)
	}
	up.Routed, up.Route, up.Routing, up.WeighsIn = model.RoutedEach, s.chosen, e.routing, e.weighsIn
	e.limited(&up)
	b.op(up)
	b.addRouted("mlp.experts_down", s.mid, x, s.chosen, e.routing, e.parts(b, e.at(at), n.down, c.Hidden, e.intermediate))
	b.last().WeighsIn, b.last().Accumulate = e.weighsIn, adds
	if e.shared == 0 {
		return
	}
	if e.plain {
		b.linear("mlp.shared_up", in, s.sharedMid, c.Activation, b.part(shared+"up_proj", c.MLPBias, e.shared, c.Hidden))
	} else {
		gate, up := e.sharedGateUp(b, shared)
		b.gatedLinear("mlp.shared_up", in, s.sharedMid, c.Activation, gate, up)
		e.limited(b.last())
	}
	part := b.part(shared+cmp.Or(n.sharedDown, "down_proj"), c.MLPBias, c.Hidden, e.shared)
	if !e.sharedGate {
		b.addLinear("mlp.shared_down", s.sharedMid, x, part)
		return
	}
	// One expert that every row chooses, by its sigmoid.
	one := model.Routing{Experts: 1, TopK: 1, Scores: model.RouteSigmoid, Scale: 1}
	b.linear(model.Router, in, s.sharedLogit, model.ActNone, b.part(at+n.sharedGate, false, 1, c.Hidden))
	b.route("mlp.shared_route", s.sharedLogit, s.sharedChosen, model.None, one)
	b.addRouted("mlp.shared_down", s.sharedMid, x, s.sharedChosen, one, []model.Part{part})
}

// limited makes the gate of a linear op SwiGLU with limits, if the family has them.
func (e *experts) limited(op *model.Op) {
	if e.limit > 0 {
		op.Activation, op.ActA, op.ActB = model.ActSwiGLU, e.limit, e.alpha
	}
}

// route appends the choice of experts.
func (b *builder) route(name string, logits, chosen, bias int, r model.Routing) {
	op := newOp(model.OpRoute, name, logits, chosen)
	op.Bias, op.Routing = bias, r
	b.op(op)
}

// addRouted appends out += the weighted sum of what the chosen experts make of their shares of in.
func (b *builder) addRouted(name string, in, out, chosen int, r model.Routing, parts []model.Part) {
	op := newOp(model.OpLinear, name, in, out)
	op.Parts, op.Accumulate = parts, true
	op.Routed, op.Route, op.Routing = model.RoutedSum, chosen, r
	b.op(op)
}

// sharedGateUp are the projections gate and up of the shared MLP.
func (e *experts) sharedGateUp(b *builder, at string) (gate, up model.Part) {
	c := b.cfg
	if _, apart := b.find(b.name(at + "gate_proj.weight")); e.names.sharedFused != "" && !apart { // GGUF files have them apart
		parts := b.fusedParts(at+e.names.sharedFused, c.MLPBias, c.Hidden, e.shared, e.shared)
		return parts[0], parts[1]
	}
	return b.part(at+"gate_proj", c.MLPBias, e.shared, c.Hidden), b.part(at+"up_proj", c.MLPBias, e.shared, c.Hidden)
}

// at is before the names of the experts' tensors.
func (e *experts) at(layer string) string {
	if e.names.fused != "" {
		return layer
	}
	return layer + "experts."
}

// gateUp are the projections gate and up of each expert.
func (e *experts) gateUp(b *builder, at string) []model.Part {
	var parts []model.Part
	n, rows, in := e.routing.Experts, e.intermediate, b.cfg.Hidden
	at = e.at(at)
	fused := cmp.Or(e.names.fused, "gate_up_proj") // as transformers 5 has them in memory
	if _, ok := b.find(b.name(at + fused)); ok || b.source == nil && e.together() {
		tensor, bias := b.matrices(at+fused, n, 2*rows, in), e.bias(b, at+fused, 2*rows)
		for i := range 2 * n {
			part := model.Part{Weight: tensor, Bias: bias, Offset: i * rows, Rows: rows, Block: rows, Stride: rows}
			if e.alternate {
				part.Offset, part.Block, part.Stride = i/2*2*rows+i%2, 1, 2
			}
			parts = append(parts, part)
		}
		return parts
	}
	gate, up := e.parts(b, at, e.names.gate, rows, in), e.parts(b, at, e.names.up, rows, in)
	for i := range gate {
		parts = append(parts, gate[i], up[i])
	}
	return parts
}

// together says that checkpoints have the experts of a layer in one tensor only.
func (e *experts) together() bool { return e.names.fused != "" || e.biased }

// bias is the index of all experts' biases of a projection.
func (e *experts) bias(b *builder, name string, rows int) int {
	if !e.biased {
		return model.None
	}
	if matrix, ok := strings.CutSuffix(name, ".weight"); ok {
		return b.flat(matrix+".bias", e.routing.Experts, rows)
	}
	return b.flat(name+"_bias", e.routing.Experts, rows)
}

// parts are a projection of each expert: a tensor of each, or of all.
func (e *experts) parts(b *builder, at, name string, rows, in int) []model.Part {
	parts := make([]model.Part, e.routing.Experts)
	for _, all := range []string{at + name, at + name + ".weight"} {
		if t, ok := b.find(b.name(all)); ok && len(t.Shape) == 3 || b.source == nil && e.together() {
			tensor, bias := b.matrices(all, len(parts), rows, in), e.bias(b, all, rows)
			for i := range parts {
				parts[i] = model.Part{Weight: tensor, Bias: bias, Offset: i * rows, Rows: rows, Block: rows, Stride: rows}
			}
			return parts
		}
	}
	for i := range parts {
		parts[i] = b.part(fmt.Sprintf("%s%d.%s", at, i, name), false, rows, in)
	}
	return parts
}
