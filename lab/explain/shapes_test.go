package explain

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/compute/model"
	"github.com/millrace/millrace/compute/weights"
)

func TestTheProgramOfAConfigurationAloneCostsWhatThatOfTheCheckpointDoes(t *testing.T) {
	files, err := filepath.Glob("../../testdata/models/*/config.json")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		dir := filepath.Dir(file)
		t.Run(filepath.Base(dir), func(t *testing.T) {
			cfg, err := model.LoadConfig(dir)
			require.NoError(t, err)
			w, err := weights.Open(dir)
			require.NoError(t, err)
			defer func() { require.NoError(t, w.Close()) }()
			with, err := model.Build(cfg, w)
			require.NoError(t, err)
			without, err := model.Build(cfg, nil)
			require.NoError(t, err)
			require.Equal(t, Describe(with, Options{}), Describe(without, Options{}))
		})
	}
}
