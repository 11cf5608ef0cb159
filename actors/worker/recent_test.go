package worker

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAWorkerRemembersItsLastStepsInOrder(t *testing.T) {
	var r recentSteps
	require.Empty(t, r.list())
	for i := range 2*keptSteps + 7 {
		r.add(Step{PromptRows: i})
	}
	list := r.list()
	require.Len(t, list, keptSteps)
	for i, s := range list {
		require.Equal(t, keptSteps+7+i, s.PromptRows)
		require.EqualValues(t, keptSteps+8+i, s.Number)
	}
}
