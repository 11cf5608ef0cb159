package model

import (
	"fmt"
	"slices"
	"strings"
)

// WeightPlan is how the linear ops of a program keep their weights: all alike, but for those
// that are named. Its text is "int8", or "int4+attn.out=bf16+mlp.down=int8". The zero plan is "file".
type WeightPlan struct {
	all Weights
	ops []opWeights
}

type opWeights struct {
	op      string // Op.Name
	weights Weights
}

// ParseWeights reads a plan: one of WeightNames, then "+OP=NAME" for ops that differ. "" is
// the first of the names.
func ParseWeights(text string) (p WeightPlan, err error) {
	if text == "" {
		return p, nil
	}
	parts := strings.Split(text, "+")
	if p.all, err = parseWeights(parts[0]); err != nil {
		return WeightPlan{}, err
	}
	for _, part := range parts[1:] {
		op, name, found := strings.Cut(part, "=")
		if !found || op == "" {
			return WeightPlan{}, fmt.Errorf("found %q, expected OP=TYPE, such as attn.out=bf16", part)
		}
		if slices.ContainsFunc(p.ops, func(o opWeights) bool { return o.op == op }) {
			return WeightPlan{}, fmt.Errorf("found %s twice", op)
		}
		w, err := parseWeights(name)
		if err != nil {
			return WeightPlan{}, fmt.Errorf("%s: %w", op, err)
		}
		p.ops = append(p.ops, opWeights{op, w})
	}
	return p, nil
}

func (p WeightPlan) String() string {
	parts := []string{p.all.name()}
	for _, o := range p.ops {
		parts = append(parts, o.op+"="+o.weights.name())
	}
	return strings.Join(parts, "+")
}

// Router is the name of the linear ops whose logits choose experts. They have 16 bits unless they are named.
const Router = "mlp.router"

// of is what an op keeps. Those outside of the decoder layers, the logits first of all,
// keep at least 8 bits unless they are named: their errors meet no residual that outweighs
// them.
func (p WeightPlan) of(op *Op) Weights {
	for _, o := range p.ops {
		if o.op == op.Name {
			return o.weights
		}
	}
	switch {
	case op.Name == Router: // few, and what they choose is a matter of small differences
		return Weights{}
	case op.Layer == None && p.all.Type == WeightsInt4:
		return Weights{Type: WeightsInt8}
	case op.Layer == None && p.all.Type == WeightsNF4:
		return Weights{Type: WeightsFP8}
	}
	return p.all
}

// WeightsText says what the program's weights are with a plan: its text, where "file" is the type of most blocks, such as Q4_K, or bf16.
func (p *Program) WeightsText(plan WeightPlan) string {
	text := plan.String()
	rest, ofFile := strings.CutPrefix(text, "file")
	if !ofFile {
		return text
	}
	bytes, most := map[string]int64{}, "bf16"
	for _, t := range p.Tensors {
		if bytes[t.Blocks] += t.Bytes; bytes[t.Blocks] > bytes[most] {
			most = t.Blocks
		}
	}
	return most + rest
}

// WithoutBlocks is the plan for a device that keeps no blocks: in their place it has 16 bits.
func (p WeightPlan) WithoutBlocks() WeightPlan {
	p.ops = slices.Clone(p.ops)
	for i := range p.ops {
		p.ops[i].weights = p.ops[i].weights.withoutBlocks()
	}
	p.all = p.all.withoutBlocks()
	return p
}

func (w Weights) withoutBlocks() Weights {
	if w == (Weights{}) {
		return Weights{Type: expanded}
	}
	return w
}

// resolve makes of what a plan has for an op what the op keeps.
func (p *Program) resolve(w Weights, op *Op) Weights {
	switch {
	case w.Type == expanded:
		return Weights{}
	case w == (Weights{}) && p.keepsBlocks(op):
		return Weights{Type: WeightsBlocks}
	}
	return w
}

// keepsBlocks says whether all parts of an op are of blocks that one kernel multiplies.
func (p *Program) keepsBlocks(op *Op) bool {
	each := len(op.Parts) // of an expert
	if op.Routed != RoutedNone {
		each /= op.Routing.Experts
	}
	for i, part := range op.Parts {
		t, first, expert := &p.Tensors[part.Weight], &p.Tensors[op.Parts[0].Weight], &p.Tensors[op.Parts[i-i%each].Weight]
		if t.Blocks == "" || t.floats() != first.floats() || t.Order != expert.Order {
			return false
		}
	}
	return len(op.Parts) > 0
}

// SetWeights makes the linear ops keep their weights as planned. An op that is named and not
// there is an error. An op whose parts are not all of blocks, or of those of floats and of integers, or have columns in several orders, has
// 16 bits where the plan has the file's.
func (p *Program) SetWeights(plan WeightPlan) error {
	var names []string
	for i := range p.Ops {
		op := &p.Ops[i]
		if op.Kind != OpLinear {
			continue
		}
		op.Weights = p.resolve(plan.of(op), op)
		if !slices.Contains(names, op.Name) {
			names = append(names, op.Name)
		}
	}
	for _, o := range plan.ops {
		if !slices.Contains(names, o.op) {
			return fmt.Errorf("weights %q: found op %q, expected one of %s", plan, o.op, strings.Join(names, ", "))
		}
	}
	return nil
}
