package device_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/compute/device"
	"github.com/millrace/millrace/compute/family"
	"github.com/millrace/millrace/compute/model"
	"github.com/millrace/millrace/compute/weights"
)

const demo = "../../models/tiny-chat"

// nearTie is the margin, in natural logarithms, below which bf16 may choose
// the other token: three of the demo model's goldens have one.
const nearTie = 0.02

type golden struct {
	Prompt    []int32 `json:"prompt_ids"`
	Output    []int32 `json:"output_ids"`
	MinMargin float64 `json:"min_margin"`
}

// TestDemoModelGoldens generates all goldens together: one sequence each, all
// in every step.
func TestDemoModelGoldens(t *testing.T) {
	raw, err := os.ReadFile(demo + "/goldens.json")
	require.NoError(t, err)
	var file struct {
		Goldens []golden `json:"goldens"`
	}
	require.NoError(t, json.Unmarshal(raw, &file))
	require.Len(t, file.Goldens, 40)
	cfg, err := family.LoadConfig(demo)
	require.NoError(t, err)
	w, err := weights.Open(demo)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, w.Close()) })
	p, err := family.Build(cfg, w)
	require.NoError(t, err)

	var all []device.Options
	for _, backend := range backends(t) {
		o := options(t, backend, "")
		all = append(all, o)
		if device.IsOptional(backend) {
			o.DType = "f16"
			all = append(all, o)
		}
	}
	for _, o := range all {
		t.Run(filepath.Join(o.Backend, o.DType), func(t *testing.T) {
			ties := 0
			for i, got := range generate(t, o, p, w, file.Goldens) {
				g := file.Goldens[i]
				if !slices.Equal(g.Output, got) {
					require.Less(t, g.MinMargin, nearTie, "golden %d: %v, expected %v", i, got, g.Output)
					ties++
					t.Logf("near-tie: golden %d, margin %g, differs from token %d on", i, g.MinMargin, difference(g.Output, got))
				}
			}
			t.Logf("%d near-ties of %d goldens", ties, len(file.Goldens))
		})
	}
}

// generate continues every golden's prompt greedily to its length.
func generate(t *testing.T, o device.Options, p *model.Program, w device.Tensors, goldens []golden) [][]int32 {
	t.Helper()
	rows, slabs, groups := 0, 0, p.Groups().Count()
	for _, g := range goldens {
		rows += len(g.Prompt)
		slabs += groups * device.Slabs(len(g.Prompt)+len(g.Output))
	}
	d, err := device.Open(o)
	require.NoError(t, err)
	t.Cleanup(d.Close)
	e, err := d.Load(p, w, device.Limits{MaxRows: rows, MaxOutputs: len(goldens)})
	require.NoError(t, err)
	t.Cleanup(e.Close)
	require.NoError(t, e.ReserveKV(slabs))

	batch := make([]device.Rows, len(goldens))
	next := int32(0)
	for i, g := range goldens {
		r, err := e.NewRegion(len(g.Prompt) + len(g.Output))
		require.NoError(t, err)
		t.Cleanup(r.Close)
		for range device.Slabs(len(g.Prompt) + len(g.Output)) {
			var ids []int32
			for range groups {
				ids = append(ids, next)
				next++
			}
			require.NoError(t, r.Append(ids))
		}
		batch[i] = device.Rows{Region: r, Tokens: g.Prompt, OutputsFrom: len(g.Prompt) - 1}
	}
	return decode(t, e, batch, goldens)
}

// decode runs steps until each sequence has as many tokens as its golden;
// those that are done leave the batch.
func decode(t *testing.T, e *device.Engine, batch []device.Rows, goldens []golden) [][]int32 {
	t.Helper()
	out := make([][]int32, len(goldens))
	running := make([]int, len(goldens)) // golden of each sequence in the batch
	for i := range running {
		running[i] = i
	}
	for len(batch) > 0 {
		logits, err := e.Run(batch)
		require.NoError(t, err)
		var nextBatch []device.Rows
		var nextRunning []int
		for i, s := range batch {
			g := running[i]
			token := argmax(logits.Row(i))
			out[g] = append(out[g], token)
			if len(out[g]) < len(goldens[g].Output) {
				nextBatch = append(nextBatch, device.Rows{Region: s.Region, Tokens: []int32{token}, Position: s.Position + len(s.Tokens)})
				nextRunning = append(nextRunning, g)
			}
		}
		batch, running = nextBatch, nextRunning
	}
	return out
}

// difference is the first index at which a and b differ.
func difference(a, b []int32) int {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return i
		}
	}
	return min(len(a), len(b))
}
