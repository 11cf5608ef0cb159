package model

import (
	"errors"
	"fmt"
	"slices"
)

// ErrEarly is a number of first layers whose draft tokens a model cannot have.
var ErrEarly = errors.New("model: draft tokens by the first layers")

// SetEarly gives the first n layers a group of the KV cache of their own, for the program that Early returns. Error: ErrEarly for a program
// whose tokens cannot be taken back, whose layers do not all keep their own keys and values of all tokens, or whose last ops read more than
// the residual.
func (p *Program) SetEarly(n int) error {
	least := (p.Layers + mostGroups - 1) / mostGroups
	if n < least || n >= p.Layers {
		return fmt.Errorf("%w: found %d of %d layers, expected %d to %d", ErrEarly, n, p.Layers, least, p.Layers-1)
	}
	if found := p.notEarly(); found != "" {
		return fmt.Errorf("%w: found %s, expected layers with keys and values of all tokens, which stay", ErrEarly, found)
	}
	if _, err := p.earlyOps(n); err != nil {
		return err
	}
	p.EarlyLayers = n
	return nil
}

// notEarly is what the program has that its first layers cannot be computed apart from; "": nothing.
func (p *Program) notEarly() string {
	switch {
	case !p.Generates():
		return "an encoder or a classifier"
	case p.StateBytes() > 0:
		return "layers with a state"
	case !p.Eviction.None():
		return "the eviction " + p.Eviction.String()
	case p.KV == KVKivi:
		return "a KV cache of " + p.KV.String()
	case p.OneGroup:
		return "a KV cache of one group of layers, as a disk has it"
	}
	for i := range p.Ops {
		switch op := &p.Ops[i]; {
		case op.Kind != OpAttention:
		case op.Window > 0:
			return fmt.Sprintf("a window in layer %d", op.Layer)
		case op.CacheLayer() != op.Layer:
			return fmt.Sprintf("keys and values of layer %d in layer %d", op.CacheLayer(), op.Layer)
		}
	}
	return ""
}

// Early returns the program of the first EarlyLayers layers, followed by the last norm and the head: early exit (LayerSkip, Elhoushi et
// al. 2024, arXiv:2404.16710, section 4.2). It uses the weights of this program, and the slabs of its first group of layers.
func (p *Program) Early() (*Program, error) {
	ops, err := p.earlyOps(p.EarlyLayers)
	if err != nil {
		return nil, err
	}
	early := *p
	early.Ops, early.Layers, early.EarlyLayers = ops, p.EarlyLayers, 0
	return &early, nil
}

// earlyOps are the ops of the first n layers, the selection of rows, and the ops after the last layer. An op of those reads what an op
// before it has written, or a slot that the first layers have written and that the last layer selects rows of.
func (p *Program) earlyOps(n int) ([]Op, error) {
	inLast := func(op Op) bool { return op.Layer == p.Layers-1 }
	end := slices.IndexFunc(p.Ops, func(op Op) bool { return op.Layer == n })
	last, after := slices.IndexFunc(p.Ops, inLast), len(p.Ops)
	for after > 0 && !inLast(p.Ops[after-1]) {
		after--
	}
	ops, written := slices.Clone(p.Ops[:end]), map[int]bool{}
	for i := range ops {
		written[ops[i].Out] = true
	}
	selected := map[int]bool{}
	for i := after; i < len(p.Ops); i++ {
		op := &p.Ops[i]
		if !selected[op.In] {
			at := slices.IndexFunc(p.Ops[last:after], func(s Op) bool { return s.Kind == OpSelectRows && s.Out == op.In })
			if at < 0 || !written[p.Ops[last+at].In] {
				return nil, fmt.Errorf("%w: found %s, which reads %s, expected the residual", ErrEarly, op.Name, p.Slots[op.In].Name)
			}
			ops = append(ops, p.Ops[last+at])
		}
		selected[op.In], selected[op.Out] = true, true
	}
	return append(ops, p.Ops[after:]...), nil
}
