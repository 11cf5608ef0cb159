package explain

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/compute/family"
	"github.com/millrace/millrace/compute/model"
	"github.com/millrace/millrace/compute/weights"
)

func TestTheProgramOfAConfigurationAloneCostsWhatThatOfTheCheckpointDoes(t *testing.T) {
	eachModel(t, func(t *testing.T, cfg *family.Config, w *weights.Checkpoint) {
		with, err := family.Build(cfg, w)
		require.NoError(t, err)
		if slices.ContainsFunc(with.Tensors, func(t model.Tensor) bool { return t.Blocks != "" }) {
			return // only the checkpoint says what is in blocks
		}
		without, err := family.Build(cfg, nil)
		require.NoError(t, err)
		require.Equal(t, Describe(with, Options{}), Describe(without, Options{}))
	})
}
