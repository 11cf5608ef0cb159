package explain

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/compute/family"
	"github.com/millrace/millrace/compute/weights"
)

// eachModel runs a test for each committed model, with its configuration and its weights.
func eachModel(t *testing.T, test func(t *testing.T, cfg *family.Config, w *weights.Checkpoint)) {
	t.Helper()
	files, err := filepath.Glob("../../testdata/models/*/config.json")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		dir := filepath.Dir(file)
		t.Run(filepath.Base(dir), func(t *testing.T) {
			cfg, err := family.LoadConfig(dir)
			require.NoError(t, err)
			w, err := family.OpenWeights(cfg)
			require.NoError(t, err)
			defer func() { require.NoError(t, w.Close()) }()
			test(t, cfg, w)
		})
	}
}
