package roofline_test

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/compute/family"
	"github.com/millrace/millrace/compute/model"
	"github.com/millrace/millrace/compute/sim"
	"github.com/millrace/millrace/lab/roofline"
)

// programs are of different norms, heads, windows and tables.
var programs = []string{"llama-gqa", "llama-tied", "mistral-window", "qwen2-window", "qwen3", "gptj", "opt-proj", "bloom-6-heads"}

func program(t *testing.T, name string) *model.Program {
	t.Helper()
	cfg, err := family.LoadConfig(filepath.Join("../../testdata/models", name))
	require.NoError(t, err)
	p, err := family.Build(cfg, nil)
	require.NoError(t, err)
	return p
}

// small is a device at which some ops are bound by memory, others by products.
func small() sim.Device {
	return sim.Device{Peak: sim.Peak{ID: "small", GBps: 10, TFLOPS: 0.05}}
}

// bound is what package roofline says of a step.
func bound(p *model.Program, s roofline.Step, d sim.Device) roofline.OpGroup {
	return roofline.Total(roofline.OpGroups(p, roofline.Costs(p, s, model.BF16Sizes()), d.Peak))
}

func TestWithoutLossesAStepTakesItsRoofline(t *testing.T) {
	for _, name := range programs {
		for _, weights := range []string{"bf16", "int8", "int4"} {
			p := program(t, name)
			w, err := model.ParseWeights(weights)
			require.NoError(t, err)
			require.NoError(t, p.SetWeights(w))
			timer := sim.NewTimer(p, small(), 64, 16)
			for _, s := range []roofline.Step{
				{Batch: 1, Beams: 1, Rows: 1, Tiles: 1},
				{Batch: 1, Beams: 1, Rows: 64, Tiles: 1},
				{Batch: 3, Beams: 1, Rows: 1, Past: 37, Tiles: 1},
				{Batch: 2, Beams: 1, Rows: 17, Past: 5, Tiles: 1},
				{Batch: 2, Beams: 4, Rows: 1, Past: 21, Prompt: 15, Tiles: 1},
			} {
				timer.Begin()
				for range s.Batch {
					if s.Beams > 1 {
						timer.AddBeams(s.Beams, s.Past, s.Prompt)
					} else {
						timer.Add(s.Rows, s.Past, 1)
					}
				}
				want, got := bound(p, s, small()), timer.End()
				require.InEpsilon(t, want.Seconds, got.Device, 1e-9, "%s %s %+v", name, weights, s)
				require.Equal(t, want.Bytes, got.Bytes, "%s %s %+v", name, weights, s)
				require.Equal(t, want.Flops, got.Flops, "%s %s %+v", name, weights, s)
				require.Zero(t, got.Host)
			}
		}
	}
}

func TestMoreWorkNeverTakesLess(t *testing.T) {
	timer := sim.NewTimer(program(t, "mistral-window"), small(), 64, 64)
	last := 0.0
	for rows := 1; rows <= 64; rows++ {
		timer.Begin()
		timer.Add(rows, 9, 1)
		now := timer.End().Device
		require.Greater(t, now, last, "%d rows", rows)
		last = now
	}
	last = 0
	for past := range 200 { // beyond a window it stays the same
		timer.Begin()
		timer.Add(1, past, 1)
		timer.Add(1, 2*past, 1)
		now := timer.End().Device
		require.GreaterOrEqual(t, now, last, "past %d", past)
		last = now
	}
	last = 0
	for sequences := 1; sequences <= 64; sequences++ {
		timer.Begin()
		for range sequences {
			timer.Add(1, 30, 1)
		}
		now := timer.End().Device
		require.Greater(t, now, last, "%d sequences", sequences)
		last = now
	}
}

func TestLossesAreAddedToTheBound(t *testing.T) {
	p := program(t, "llama-gqa")
	least := func(d sim.Device, rows int) sim.Time {
		timer := sim.NewTimer(p, d, 64, 8)
		timer.Begin()
		timer.Add(rows, 0, 1)
		return timer.End()
	}
	lossy := small()
	lossy.OpSeconds, lossy.StepSeconds, lossy.OutputSeconds = 1e-3, 0.5, 0.25
	require.InDelta(t, least(small(), 5).Device+float64(len(p.Ops))*1e-3, least(lossy, 5).Device, 1e-12)
	require.InDelta(t, 0.75, least(lossy, 5).Host, 1e-12)

	half := small()
	half.Reached = map[string][]sim.Share{}
	for kind := model.OpEmbed; kind <= model.OpSelectRows; kind++ {
		half.Reached[kind.String()] = []sim.Share{{Rows: 4, Share: 0.5}, {Rows: 16, Share: 2}}
	}
	require.NoError(t, half.Validate())
	// Ops after OpSelectRows have one row each: the share of the smallest count.
	outputs, after := 0.0, false
	for i, c := range roofline.Costs(p, roofline.Step{Batch: 1, Beams: 1, Rows: 1, Tiles: 1}, model.BF16Sizes()) {
		after = after || p.Ops[i].Kind == model.OpSelectRows
		if after {
			outputs += small().On(&p.Ops[i]).Seconds(c)
		}
	}
	for rows, share := range map[int]float64{1: 0.5, 4: 0.5, 8: 1, 16: 2, 64: 2} {
		want := (least(small(), rows).Device-outputs)/share + outputs/0.5
		require.InEpsilon(t, want, least(half, rows).Device, 1e-9, "%d rows", rows)
	}
}

func TestAStepCostsNoMemory(t *testing.T) {
	timer := sim.NewTimer(program(t, "mistral-window"), small(), 64, 64)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		timer.Begin()
		timer.Add(1, 30, 1)
		timer.Add(16, 0, 0)
		timer.End()
	}))
}

// TestTilesTakeTheTimeOfTheirShare: of half of the model, with an op for each sum over tiles, which a slow exchange makes longer.
func TestTilesTakeTheTimeOfTheirShare(t *testing.T) {
	p := program(t, "llama-gqa")
	shares, err := p.Split(2)
	require.NoError(t, err)
	seconds := func(p *model.Program, d sim.Device) float64 {
		timer := sim.NewTimer(p, d, 64, 16)
		timer.Begin()
		timer.Add(1, 37, 1)
		return timer.End().Device
	}
	d := small()
	d.OpSeconds = 1e-6
	share := seconds(shares[0], d)
	d.Tiles = 2
	require.InEpsilon(t, share, seconds(p, d), 1e-9)
	require.Greater(t, len(shares[0].Ops), len(p.Ops))
	var sums int64
	for i, c := range model.Costs(shares[0], model.Decode(37), model.BF16Sizes()) {
		if shares[0].Ops[i].Kind == model.OpAllReduce {
			sums += c.Bytes()
		}
	}
	d.ExchangeGBps = d.GBps / 10
	require.InEpsilon(t, share+9*float64(sums)/(d.GBps*1e9), seconds(p, d), 1e-6)
	_, err = d.Share(program(t, "opt-proj"))
	require.ErrorIs(t, err, model.ErrRanks)
}
