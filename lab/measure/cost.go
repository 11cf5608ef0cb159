package measure

import (
	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/compute/model"
)

// linearCost is the cost of all linear ops of some rows, of which outputs are
// turned into logits: the logits op runs for a prompt's last row only.
func linearCost(m *compute.Model, rows, outputs int) (sum model.Cost) {
	costs := model.Costs(m.Program, model.Work{Rows: rows, Outputs: outputs}, model.BF16Sizes())
	for i, op := range m.Program.Ops {
		if op.Kind == model.OpLinear {
			sum = sum.Plus(costs[i])
		}
	}
	return sum
}
