package plan_test

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/compute/model"
	"github.com/millrace/millrace/compute/sim"
	"github.com/millrace/millrace/kvmgr"
	"github.com/millrace/millrace/lab/plan"
)

// one is a request without beams.
func one(prompt, response int) kvmgr.Segments {
	return kvmgr.Segments{Prompt: prompt, Response: response, Beams: 1}
}

func shape(t *testing.T, text string) plan.Model {
	t.Helper()
	m, err := plan.ParseShape(text)
	require.NoError(t, err)
	return m
}

// llama7B is the model of the TGI article.
const llama7B = "params=7e9,layers=32,kv-heads=32,head-dim=128"

func a100() sim.Device {
	return sim.Device{Peak: sim.Peak{ID: "a100", Name: "an A100", GBps: 1500, TFLOPS: 312, Memory: 80}}
}

func planned(t *testing.T, o plan.Options) *plan.Report {
	t.Helper()
	r, err := plan.Make(o)
	require.NoError(t, err)
	return r
}

// TestAPlanAgreesWithTheEngine to the slab: for each committed model and type of the KV cache, the pool of some
// memory has as many slabs as the plan says, and the allocator admits as many requests.
func TestAPlanAgreesWithTheEngine(t *testing.T) {
	files, err := filepath.Glob("../../testdata/models/*/config.json")
	require.NoError(t, err)
	files = append(files, "../../models/tiny-chat/config.json")
	require.Greater(t, len(files), 20)
	for _, file := range files {
		for _, kv := range []model.KVType{model.KVAuto, model.KVBF16, model.KVInt8, model.KVInt4} {
			t.Run(filepath.Base(filepath.Dir(file))+"/"+kv.String(), func(t *testing.T) { agrees(t, filepath.Dir(file), kv) })
		}
	}
}

func agrees(t *testing.T, dir string, kv model.KVType) {
	t.Helper()
	const memory = 3_333_333
	program, err := compute.ReadProgram(dir)
	require.NoError(t, err)
	m, err := compute.Open(compute.Options{
		Dir: dir, KV: kv, MaxRows: 16, MaxOutputs: 1, MaxSequences: 1, KVMemory: memory, NoPacked: true,
	})
	codes := kv == model.KVInt8 || kv == model.KVInt4
	if codes && slices.ContainsFunc(program.Ops, func(op model.Op) bool { return op.Latent }) {
		require.ErrorContains(t, err, "a KV cache of "+kv.String()+": found latents")
		return
	}
	require.NoError(t, err)
	defer m.Close()
	program.KV = kv
	for _, request := range []kvmgr.Segments{one(20, 11), one(20, 13), {Prompt: 20, Response: 13, Beams: 3}} {
		if request.Beams > 1 && !m.KV().Beams {
			continue
		}
		r := planned(t, plan.Options{Model: plan.NewModel("", program), Devices: []sim.Device{a100()}, Request: request, KVMemory: memory})
		require.Equal(t, m.Engine().Info().SlabBytes, r.SlabBytes)
		require.Equal(t, m.Slabs(), r.Devices[0].Slabs)
		manager, err := kvmgr.New(kvmgr.Config{Slabs: m.Slabs(), Spec: m.KV()})
		require.NoError(t, err)
		admitted := 0
		for ; err == nil; admitted++ {
			if request.Beams == 1 {
				err = manager.Reserve(kvmgr.Seq(admitted), kvmgr.Declared(request.Prompt+request.Response))
			} else {
				_, err = manager.ReserveSegments(kvmgr.Seq(admitted), request, kvmgr.Prompt{})
			}
		}
		require.ErrorIs(t, err, kvmgr.ErrNoSlabs)
		require.Equal(t, admitted-1, r.Devices[0].Requests, "%+v", request)
	}
}

// TestAPlanCountsTheSlabsOfAWindow: as many requests fit as the allocator admits, whose prompts and answers are many windows long.
func TestAPlanCountsTheSlabsOfAWindow(t *testing.T) {
	requests := []kvmgr.Segments{one(20, 11), one(1000, 56), one(1000, 57), one(4000, 2000), {Prompt: 200, Response: 130, Beams: 3}}
	mistral, qwen := kvmgr.Window{Tokens: 11, Live: kvmgr.LiveSlabs(11, 2*512, 16)},
		kvmgr.Window{Tokens: 7, Live: kvmgr.LiveSlabs(7, 2*512, 16)}
	plansWindows(t, "mistral-window", kvmgr.NewSpec(16, mistral), append(requests, one(100_000, 50_000)))
	plansWindows(t, "qwen2-window", kvmgr.NewSpec(16, kvmgr.Full{}, qwen, qwen), requests)
}

func plansWindows(t *testing.T, name string, kv kvmgr.Spec, requests []kvmgr.Segments) {
	t.Helper()
	const memory = 3_333_333
	program, err := compute.ReadProgram("../../testdata/models/" + name)
	require.NoError(t, err)
	program.MaxPositions = 1 << 20
	for _, request := range requests {
		r := planned(t, plan.Options{Model: plan.NewModel("", program), Devices: []sim.Device{a100()}, Request: request, KVMemory: memory})
		slabs := r.Devices[0].Slabs
		manager, err := kvmgr.New(kvmgr.Config{Slabs: slabs, Spec: kv})
		require.NoError(t, err)
		admitted := 0
		for ; err == nil; admitted++ {
			if request.Beams == 1 {
				err = manager.Reserve(kvmgr.Seq(admitted), kvmgr.Declared(request.Prompt+request.Response))
			} else {
				_, err = manager.ReserveSegments(kvmgr.Seq(admitted), request, kvmgr.Prompt{})
			}
		}
		require.ErrorIs(t, err, kvmgr.ErrNoSlabs)
		require.Equal(t, admitted-1, r.Devices[0].Requests, "%+v", request)
		require.Equal(t, slabs-manager.Stats().Free, r.RequestSlabs*r.Devices[0].Requests)
	}
}

// TestAShapeHasTheTimesOfTheTGIArticle, and the time to read the KV cache on top.
func TestAShapeHasTheTimesOfTheTGIArticle(t *testing.T) {
	r := planned(t, plan.Options{Model: shape(t, llama7B), Devices: []sim.Device{a100()}, Request: one(512, 1024)})
	require.Equal(t, uint64(14e9), r.WeightBytes)
	require.Equal(t, uint64(524288), r.TokenBytes)
	four := r.Devices[0].Users[2]
	require.Equal(t, 4, four.Users)
	require.InDelta(t, 91.9e-3, four.TTFT, 0.1e-3)
	kv := 4 * 1024 * 524288 / 1.5e12 // of the mean context
	require.InDelta(t, 9.33e-3+kv, four.TPOT, 0.02e-3)
	require.InDelta(t, 4*1024/(four.TTFT+1023*four.TPOT), four.TokensPerSecond, 1e-6, "equation (4)")
	require.Equal(t, r.RequestBytes*4, four.KVBytes)
	small := planned(t, plan.Options{Model: shape(t, llama7B+",bits=4"), Devices: []sim.Device{a100()}, Request: one(512, 1024)})
	require.Equal(t, uint64(3.5e9), small.WeightBytes)
	require.Greater(t, small.Devices[0].Requests, r.Devices[0].Requests)
}

// TestTheUsersWithinABoundAreTheMost: with one more the bound is passed.
func TestTheUsersWithinABoundAreTheMost(t *testing.T) {
	program, err := compute.ReadProgram("../../models/tiny-chat")
	require.NoError(t, err)
	slow := sim.Device{Peak: sim.Peak{ID: "slow", GBps: 1, TFLOPS: 0.01, Memory: 0.5}}
	for _, request := range []kvmgr.Segments{one(600, 100), {Prompt: 600, Response: 100, Beams: 4}} {
		o := plan.Options{Model: plan.NewModel("", program), Devices: []sim.Device{slow}, Request: request, TPOT: 0.05,
			Prices: []float64{2}}
		f := planned(t, o).Devices[0]
		require.NotNil(t, f.Within)
		require.LessOrEqual(t, f.Within.TPOT, o.TPOT)
		require.Less(t, f.Within.Users, f.Requests)
		o.KVMemory = uint64(f.Within.Users+1) * f.Within.KVBytes / uint64(f.Within.Users)
		more := planned(t, o).Devices[0]
		require.Equal(t, f.Within.Users+1, more.Requests)
		require.Greater(t, more.Users[len(more.Users)-1].TPOT, o.TPOT)
		require.InDelta(t, 2/3.6e3*1e6/f.Within.TokensPerSecond, f.Within.PricePerMillion, 1e-9)
		o.TPOT = 1e-9
		require.Nil(t, planned(t, o).Devices[0].Within)
	}
}

func TestWhatDoesNotFitIsSaid(t *testing.T) {
	o := plan.Options{Model: shape(t, llama7B), Devices: []sim.Device{a100()}, Request: one(100, 100)}
	o.Devices[0].Memory = 10
	require.Contains(t, planned(t, o).Devices[0].Misfit,
		"weights of 14.0 GB and 8.4 MB for 16 tokens, expected at most 9.0 GB, 90% of its memory")
	o.KVMemory = 1 << 25
	require.Contains(t, planned(t, o).Devices[0].Misfit, "a request takes 13 slabs, the KV cache has 4")
	o.KVMemory = 1000
	require.Contains(t, planned(t, o).Devices[0].Misfit, "a slab of 16 tokens takes 8.4 MB, the KV cache has 1.0 kB")
	o.KVMemory, o.Devices[0].Memory = 0, 0
	_, err := plan.Make(o)
	require.ErrorIs(t, err, plan.ErrRequest)
	require.ErrorContains(t, err, "the memory of the device a100 is unknown")

	program, err := compute.ReadProgram("../../models/tiny-chat")
	require.NoError(t, err)
	o.Model = plan.NewModel("", program)
	for _, r := range []kvmgr.Segments{one(0, 1), one(1, 0), {Prompt: 1, Response: 1}, one(program.MaxPositions, 1)} {
		o.Request = r
		_, err := plan.Make(o)
		require.ErrorIs(t, err, plan.ErrRequest, "%+v", r)
	}
}

func TestAShapeThatIsNoneIsAnError(t *testing.T) {
	for text, want := range map[string]string{
		"":                                   `found ""`,
		"params=7e9":                         "layers is missing",
		llama7B + ",heads=3":                 `found "heads=3"`,
		llama7B + ",layers=1.5":              `found layers="1.5"`,
		llama7B + ",layers=100000":           `found layers="100000"`,
		"params=-1":                          `found params="-1"`,
		"params=NaN":                         `found params="NaN"`,
		"params=7e9,layers=32,kv-heads=many": `found kv-heads="many"`,
	} {
		_, err := plan.ParseShape(text)
		require.ErrorIs(t, err, plan.ErrShape, text)
		require.ErrorContains(t, err, want)
	}
}

// TestPrint compares what people read with testdata. UPDATE_GOLDEN=1 writes it.
func TestPrint(t *testing.T) {
	small := sim.Device{Peak: sim.Peak{ID: "small", Name: "a small device", GBps: 300, TFLOPS: 50, Memory: 10}}
	measured := a100()
	measured.ID, measured.Reached = "measured", map[string][]sim.Share{"linear": {{Rows: 1, Share: 0.5}}}
	program, err := compute.ReadProgram("../../models/tiny-chat")
	require.NoError(t, err)
	demo := plan.NewModel("tiny-chat (bf16)", program)
	for name, o := range map[string]plan.Options{
		"bound":   {Model: shape(t, llama7B), Devices: []sim.Device{a100()}, Prices: []float64{2}, Request: one(1536, 512), TPOT: 0.03},
		"all-fit": {Model: shape(t, llama7B), Devices: []sim.Device{a100()}, Request: one(1536, 512), TPOT: 1},
		"none":    {Model: shape(t, llama7B), Devices: []sim.Device{a100()}, Request: one(1536, 512), TPOT: 0.001},
		"misfit":  {Model: shape(t, llama7B), Devices: []sim.Device{small}, Request: one(1536, 512)},
		"beams":   {Model: demo, Devices: []sim.Device{measured}, Request: kvmgr.Segments{Prompt: 100, Response: 50, Beams: 4}},
		"devices": {Model: shape(t, llama7B), Devices: []sim.Device{a100(), small, measured}, Prices: []float64{2, 1, 0.5},
			Request: one(1536, 512), TPOT: 0.03},
	} {
		var out bytes.Buffer
		require.NoError(t, planned(t, o).Print(&out))
		file := filepath.Join("testdata", name+".txt")
		if os.Getenv("UPDATE_GOLDEN") != "" {
			require.NoError(t, os.MkdirAll("testdata", 0o755))
			require.NoError(t, os.WriteFile(file, out.Bytes(), 0o644))
		}
		want, err := os.ReadFile(file)
		require.NoError(t, err)
		require.Equal(t, string(want), out.String(), name)
	}
}

func TestDraw(t *testing.T) {
	h100 := a100()
	h100.ID = "h100"
	r := planned(t, plan.Options{Model: shape(t, llama7B), Devices: []sim.Device{a100(), h100}, Request: one(1536, 512), TPOT: 0.03})
	file := filepath.Join(t.TempDir(), "plan.svg")
	require.NoError(t, r.Draw(file))
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, len(r.Devices[0].Users)+len(r.Devices[1].Users), strings.Count(string(text), "<circle"))
	for _, want := range []string{">a100<", ">h100<", ">users<", ">ms per token<", "stroke-dasharray"} {
		require.Contains(t, string(text), want)
	}
	require.Error(t, r.Draw(filepath.Join(file, "no", "folder")))
}
