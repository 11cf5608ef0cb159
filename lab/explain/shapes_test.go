package explain

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/compute/model"
	"github.com/millrace/millrace/compute/weights"
)

func TestTheProgramOfAConfigurationAloneCostsWhatThatOfTheCheckpointDoes(t *testing.T) {
	eachModel(t, func(t *testing.T, cfg *model.Config, w *weights.Checkpoint) {
		with, err := model.Build(cfg, w)
		require.NoError(t, err)
		without, err := model.Build(cfg, nil)
		require.NoError(t, err)
		require.Equal(t, Describe(with, Options{}), Describe(without, Options{}))
	})
}
