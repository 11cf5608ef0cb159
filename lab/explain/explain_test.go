package explain

import (
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/compute/family"
	"github.com/millrace/millrace/compute/model"
	"github.com/millrace/millrace/compute/weights"
)

func TestExplainTotalsAreTheSumOfAllOps(t *testing.T) {
	eachModel(t, func(t *testing.T, cfg *family.Config, w *weights.Checkpoint) {
		p, err := family.Build(cfg, w)
		require.NoError(t, err)

		e := Describe(p, Options{Prefill: 37, Context: 51})
		var want StepCosts
		for _, c := range model.Costs(p, model.Prefill(37), model.BF16Sizes()) {
			want.Prefill = want.Prefill.Plus(c)
		}
		for _, c := range model.Costs(p, model.Decode(51), model.BF16Sizes()) {
			want.Decode = want.Decode.Plus(c)
		}
		require.Equal(t, want, e.Totals)
		layers := 0
		for _, g := range e.Groups {
			if g.First >= 0 {
				require.Equal(t, layers, g.First)
				layers += g.Count
			}
		}
		require.Equal(t, cfg.Layers, layers)
	})
}

func TestExplainTable(t *testing.T) {
	cfg, err := family.LoadConfig("../../testdata/models/qwen2-window")
	require.NoError(t, err)
	w, err := weights.Open("../../testdata/models/qwen2-window")
	require.NoError(t, err)
	defer func() { require.NoError(t, w.Close()) }()
	p, err := family.Build(cfg, w)
	require.NoError(t, err)
	var out bytes.Buffer
	e := Describe(p, Options{Prefill: 100})
	require.NoError(t, e.Print(&out))
	golden := "testdata/explain.txt"
	if os.Getenv("UPDATE_GOLDEN") != "" {
		require.NoError(t, os.WriteFile(golden, out.Bytes(), 0o600))
	}
	want, err := os.ReadFile(golden)
	require.NoError(t, err)
	require.Equal(t, string(want), out.String())

	raw, err := json.Marshal(e)
	require.NoError(t, err)
	require.Contains(t, string(raw),
		`"groups":[{"first":-1,"count":1,"ops":[{"name":"embed","kind":"embed","shape":"131 x 48","prefill":{"weight_bytes":`)
}

func TestAStateIsPrinted(t *testing.T) {
	cfg, err := family.LoadConfig("../../testdata/models/mamba2")
	require.NoError(t, err)
	p, err := family.Build(cfg, nil)
	require.NoError(t, err)
	e := Describe(p, Options{})
	require.Equal(t, p.StateBytes(), e.StateBytes)
	var b strings.Builder
	require.NoError(t, e.Print(&b))
	require.Contains(t, b.String(), "KV cache 0 B per token, state 18.2 KiB per sequence\n")
}
