package family

import (
	"encoding/json"
	"math"
	"os"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// ulps is the distance of two positive float32 in units of the last place.
func ulps(a, b float32) int {
	return int(math.Abs(float64(int64(math.Float32bits(a)) - int64(math.Float32bits(b)))))
}

// torch's vectorized pow may differ from the correctly rounded one by a unit.
const powUlps = 3

func requireTable(t *testing.T, want, got []float32) {
	t.Helper()
	require.Len(t, got, len(want))
	for i := range want {
		require.LessOrEqual(t, ulps(want[i], got[i]), powUlps, "entry %d: transformers %g, ours %g", i, want[i], got[i])
	}
}

func TestPositionTablesEqualThoseOfTransformers(t *testing.T) {
	raw, err := os.ReadFile("testdata/positions.json")
	require.NoError(t, err)
	var tables struct {
		Rotary map[string]struct {
			HeadDim      int       `json:"head_dim"`
			MaxPositions int       `json:"max_position_embeddings"`
			Parameters   object    `json:"rope_parameters"`
			InvFreq      []float32 `json:"inv_freq"`
			Scale        float32   `json:"rotary_scale"`
		}
		ALiBi map[string][]float32 `json:"alibi"`
	}
	require.NoError(t, json.Unmarshal(raw, &tables))
	require.Len(t, tables.Rotary, 8)
	require.Len(t, tables.ALiBi, 12)

	for name, want := range tables.Rotary {
		t.Run(name, func(t *testing.T) {
			cfg, err := parse(t, with(llamaJSON(), object{"head_dim": want.HeadDim,
				"max_position_embeddings": want.MaxPositions, "rope_parameters": want.Parameters}))
			require.NoError(t, err)
			invFreq, scale := cfg.Rope.Table(cfg.HeadDim)
			requireTable(t, want.InvFreq, invFreq)
			require.LessOrEqual(t, ulps(want.Scale, scale), 1)
		})
	}
	for heads, want := range tables.ALiBi {
		t.Run("alibi "+heads, func(t *testing.T) {
			n, err := strconv.Atoi(heads)
			require.NoError(t, err)
			requireTable(t, want, ALiBiSlopes(n))
		})
	}
}
