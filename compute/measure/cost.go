package measure

import (
	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/compute/model"
)

// linearFLOPs is the number of floating point operations of all linear ops
// for one row: 2 per weight. The logits op runs for a prompt's last row only
// and is left out.
func linearFLOPs(m *compute.Model) float64 {
	flops := 0.0
	for _, op := range beforeSelect(m.Program.Ops) {
		flops += 2 * float64(weightsOf(m.Program, &op))
	}
	return flops
}

// streamedBytes are the bytes of weights that a decode step reads, at two bytes
// a weight (the cpu backend's bf16): every linear op once.
func streamedBytes(m *compute.Model) int64 {
	n := int64(0)
	for i := range m.Program.Ops {
		n += weightsOf(m.Program, &m.Program.Ops[i])
	}
	return 2 * n
}

func weightsOf(p *model.Program, op *model.Op) int64 {
	n := int64(0)
	for _, part := range op.Parts {
		shape := p.Tensors[part.Weight].Shape
		n += int64(part.Rows) * shape[len(shape)-1]
	}
	return n
}

func beforeSelect(ops []model.Op) []model.Op {
	for i := range ops {
		if ops[i].Kind == model.OpSelectRows {
			return ops[:i]
		}
	}
	return ops
}
