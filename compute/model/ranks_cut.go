package model

import (
	"fmt"
	"slices"
)

// span are elements [from, to) of a row.
type span struct{ from, to int }

func (s span) width() int { return s.to - s.from }

// share is the part of a row that a rank has: the elements of these spans, one span after the other. nil is the whole row.
type share []span

func (s share) width() (all int) {
	for _, v := range s {
		all += v.width()
	}
	return all
}

// columns is the tensor of some columns of another one, or of some elements of a vector.
func (s *splitter) columns(of int, v span) (int, error) {
	t := s.p.Tensors[of]
	last := len(t.Shape) - 1
	whole := t.Shape[last]
	if b := t.BlockSize; b > 0 && (v.from%b != 0 || v.to%b != 0) {
		return 0, fmt.Errorf("found columns %d to %d of %s in blocks of %d, expected whole blocks", v.from, v.to, t.Name, b)
	}
	if t.Order != "" {
		return 0, fmt.Errorf("found columns %d to %d of %s, whose columns are in an order of their own (act-order), expected all of them",
			v.from, v.to, t.Name)
	}
	t.Shape = slices.Clone(t.Shape)
	t.Shape[last], t.First, t.Whole = int64(v.width()), int64(v.from), whole
	t.Bytes = t.Bytes * t.Shape[last] / whole
	if i := slices.IndexFunc(s.out.Tensors, func(o Tensor) bool {
		return o.Name == t.Name && o.First == t.First && o.Whole == t.Whole && slices.Equal(o.Shape, t.Shape)
	}); i >= 0 {
		return i, nil
	}
	s.out.Tensors = append(s.out.Tensors, t)
	return len(s.out.Tensors) - 1, nil
}

// rows is the part with some of its rows.
func (part Part) rows(v span) (Part, error) {
	if v.from == 0 && v.to == part.Rows {
		return part, nil
	}
	block := v.from / part.Block
	switch {
	case v.from%part.Block == 0 && v.to%part.Block == 0:
		part.Rows = v.width()
	case block == (v.to-1)/part.Block && !part.Interleaved:
		part.Offset += v.from % part.Block
		part.Rows, part.Block = v.width(), v.width()
	default:
		return part, fmt.Errorf("found rows %d to %d in blocks of %d, expected whole blocks or rows of one", v.from, v.to, part.Block)
	}
	part.Offset += block * part.Stride
	return part, nil
}

// rowsOf are the rows of a share of parts, one below the other.
func rowsOf(parts []Part, s share) (rows []Part, err error) {
	for _, v := range s {
		first := 0
		for _, part := range parts {
			a, b := max(v.from, first), min(v.to, first+part.Rows)
			if a < b {
				cut, err := part.rows(span{a - first, b - first})
				if err != nil {
					return nil, err
				}
				rows = append(rows, cut)
			}
			first += part.Rows
		}
	}
	return rows, nil
}

// compact drops slots and tensors that no op has.
func (p *Program) compact() {
	slots, tensors := map[int]int{}, map[int]int{}
	var keptSlots []Slot
	var keptTensors []Tensor
	slot := func(i *int) {
		if *i == None {
			return
		}
		if _, ok := slots[*i]; !ok {
			slots[*i] = len(keptSlots)
			keptSlots = append(keptSlots, p.Slots[*i])
		}
		*i = slots[*i]
	}
	tensor := func(i *int) {
		if *i == None {
			return
		}
		if _, ok := tensors[*i]; !ok {
			tensors[*i] = len(keptTensors)
			keptTensors = append(keptTensors, p.Tensors[*i])
		}
		*i = tensors[*i]
	}
	for i := range p.Ops {
		op := &p.Ops[i]
		slot(&op.In)
		slot(&op.Out)
		if op.Routed != RoutedNone {
			slot(&op.Route)
		}
		if op.Gate != nil {
			slot(&op.Gate.Gates)
			tensor(&op.Gate.Weight)
		}
		for _, t := range []*int{&op.Weight, &op.Bias, &op.Types, &op.QNorm, &op.KNorm, &op.NullScores} {
			tensor(t)
		}
		op.Parts = slices.Clone(op.Parts)
		for k := range op.Parts {
			tensor(&op.Parts[k].Weight)
			tensor(&op.Parts[k].Bias)
		}
	}
	p.Slots, p.Tensors = keptSlots, keptTensors
}
