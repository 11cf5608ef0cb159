package sim_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/compute/family/fixture"
	"github.com/millrace/millrace/compute/model"
	"github.com/millrace/millrace/compute/sim"
)

// TestATableWhoseRowsAreAddedTakesNoMemory: it is read where the file is mapped. The token table does.
func TestATableWhoseRowsAreAddedTakesNoMemory(t *testing.T) {
	m, err := fixture.Open("../../testdata/models/gemma4-e")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, m.Weights.Close()) })
	without := sim.WeightBytes(m.Program)
	for i := range m.Program.Ops {
		if op := &m.Program.Ops[i]; op.Kind == model.OpEmbed {
			op.Accumulate = false
		}
	}
	const rows, layers, width = 131, 6, 12
	require.Equal(t, without+rows*layers*width*2, sim.WeightBytes(m.Program))
}
