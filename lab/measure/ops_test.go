package measure

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/compute/device"
	"github.com/millrace/millrace/compute/model"
	"github.com/millrace/millrace/lab/roofline"
)

func open(t *testing.T) *compute.Model {
	t.Helper()
	m, err := compute.Open(compute.Options{
		Dir: "../../testdata/models/llama-gqa", Device: device.Options{Threads: 1, Profile: true},
		MaxRows: 40, MaxOutputs: 8, MaxSequences: 8, KVMemory: 1 << 22,
	})
	require.NoError(t, err)
	t.Cleanup(m.Close)
	return m
}

func profile(t *testing.T, m *compute.Model, repeat int) Profile {
	t.Helper()
	info, err := m.Device.Info()
	require.NoError(t, err)
	roof, err := OpenRoof(m.Device, info)
	require.NoError(t, err)
	t.Cleanup(roof.Close)
	return Profile{Model: m, Roof: roof, Repeat: repeat}
}

func TestTheLimitsOfAKnownGPUAreThoseOfTheTable(t *testing.T) {
	m := open(t)
	roof, err := OpenRoof(m.Device, device.Info{Backend: "sycl", Name: "Intel(R) Arc(TM) A770 Graphics (level_zero:0)"})
	require.NoError(t, err)
	defer roof.Close()
	limits, err := roof.Measure()
	require.NoError(t, err)
	require.InDelta(t, 560, limits.ReadGBps, 0)
	require.InDelta(t, 137626, limits.PeakGFLOPS, 1)
	require.Equal(t, "limits of the built-in table, arc-a770", roof.Source)
}

func TestTheLimitsOfTheProcessorAreMeasuredNatively(t *testing.T) {
	m := open(t)
	info, err := m.Device.Info()
	require.NoError(t, err)
	info.Backend = "sycl"
	for name, native := range map[string]bool{info.Name + " (opencl:0)": true, "another GPU (level_zero:0)": false} {
		info.Name = name
		roof, err := OpenRoof(m.Device, info)
		require.NoError(t, err)
		require.Equal(t, native, roof.native != nil, name)
		roof.Close()
	}
}

func TestOpsOfAStepAreSummedByNameAgainstTheLimits(t *testing.T) {
	p, err := roofline.PaperModel{Name: "llama-2-7b"}.Program()
	require.NoError(t, err)
	step := roofline.Step{Batch: 1, Beams: 1, Rows: 1, Past: 9, Tiles: 1}
	limits := device.Measurement{ReadGBps: 100, PeakGFLOPS: 1000}
	run := timedStep{step: time.Hour}
	for range p.Ops {
		run.ops = append(run.ops, device.OpTime{Time: time.Millisecond, Launches: 2})
	}
	o := newOps(p, run, step, limits)

	names := map[string]Op{}
	for i, op := range o.Ops {
		names[op.Name] = op
		if i > 0 {
			require.LessOrEqual(t, op.Time, o.Ops[i-1].Time, "longest first")
		}
	}
	require.Len(t, names, 12)
	qkv := names["attn.qkv"]
	require.Equal(t, 32, qkv.Ops)
	require.Equal(t, 64, qkv.Launches)
	require.InDelta(t, 0.032, qkv.Time, 1e-12)
	bytes := 32 * (3*4096*4096*2 + 4096*2 + 3*4096*4)
	require.EqualValues(t, bytes, qkv.Bytes)
	require.InEpsilon(t, float64(bytes)/0.032/1e9, qkv.GBps, 1e-12)
	require.InEpsilon(t, float64(bytes)/100e9/0.032, qkv.Share, 1e-12)
	require.InEpsilon(t, 32*2*3*4096*4096/0.032/1e9, qkv.GFLOPS, 1e-12)

	require.Equal(t, len(p.Ops), o.Total.Ops)
	require.InEpsilon(t, float64(len(p.Ops))*1e-3, o.Total.Time, 1e-12)
	require.InEpsilon(t, 3600, o.Total.Time+o.Outside, 1e-12)
}

func TestAProfileRunsEveryOpOfTheStepItNames(t *testing.T) {
	m := open(t)
	p := profile(t, m, 2)
	prefill, err := p.Prefill(37, 1)
	require.NoError(t, err)
	require.Equal(t, 37, prefill.Rows)
	decode, err := p.Decode(roofline.Workload{Prompt: 20, Gen: 3, Batch: 2, Beams: 1, Tiles: 1})
	require.NoError(t, err)
	require.Equal(t, 23, decode.Past)
	beams, err := p.Decode(roofline.Workload{Prompt: 20, Gen: 3, Batch: 2, Beams: 4, Tiles: 1})
	require.NoError(t, err)
	for _, o := range []Ops{prefill, decode, beams} {
		require.Equal(t, len(m.Program.Ops), o.Total.Ops)
		require.Equal(t, len(m.Program.Ops), o.Total.Launches)
		require.Positive(t, o.Outside)
		require.Positive(t, o.Served)
		require.Positive(t, o.Limits.ReadGBps)
	}
	require.Greater(t, beams.Total.Flops, decode.Total.Flops)
}

func TestAttentionReadsThePromptOnceForAllBeams(t *testing.T) {
	m := open(t)
	a, err := profile(t, m, 1).Attention(roofline.Workload{Prompt: 40, Gen: 5, Batch: 2, Beams: 4, Tiles: 1})
	require.NoError(t, err)
	require.Equal(t, 2*(40+4*6)*m.Program.KVBytesPerToken(model.BF16Sizes()), a.KVBytes)
	require.Positive(t, a.GBps)
}

func TestTheSameLogitsBehindACopiedPrompt(t *testing.T) {
	m := open(t)
	for _, beams := range []int{1, 2} {
		s, err := newSequences(m, 3, beams, 35, 1, 0)
		require.NoError(t, err)
		require.NoError(t, s.fill())
		rows := s.decode()
		for i := range rows {
			rows[i].Tokens = []int32{7, 8}[:beams]
		}
		logits, err := m.Run(rows)
		require.NoError(t, err)
		first := append([]float32(nil), logits.Row(0)...)
		require.Equal(t, first, logits.Row(beams))
		require.Equal(t, first, logits.Row(2*beams))
		s.close()
	}
}

func TestTheSameLogitsAfterASharedPrompt(t *testing.T) {
	m := open(t)
	s, err := newSequences(m, 3, 1, 35, 1, 32)
	require.NoError(t, err)
	defer s.close()
	require.Equal(t, 3+1+1, s.next) // two shared slabs, and one of each sequence
	for i, r := range s.requests {
		position, tokens := Case{Prompt: 35, Batch: 3, Shared: 32}.prompt(i)
		ids := []int32{7, 8, 9}
		if i == 0 {
			ids = append(randomTokens(m, tokens-3), ids...)
		}
		_, err := m.Run([]compute.Rows{{Region: r.region, Tokens: ids, Position: position}})
		require.NoError(t, err)
	}
	rows := s.decode()
	for i := range rows {
		rows[i].Tokens = []int32{7}
	}
	logits, err := m.Run(rows)
	require.NoError(t, err)
	first := append([]float32(nil), logits.Row(0)...)
	require.Equal(t, first, logits.Row(1))
	require.Equal(t, first, logits.Row(2))
}

func TestTheSharedPromptIsComputedOnce(t *testing.T) {
	r, err := Run(open(t), Case{Prompt: 40, Gen: 2, Batch: 3, Shared: 32, Repeat: 1})
	require.NoError(t, err)
	require.Equal(t, 32, r.Shared)
	require.Positive(t, r.DecodeTPS)
	require.Equal(t, 40+2*8, Case{Prompt: 40, Batch: 3, Shared: 32}.computed())
	for _, shared := range []int{33, 48} {
		_, err := Run(open(t), Case{Prompt: 40, Batch: 3, Shared: shared})
		require.ErrorIs(t, err, device.ErrInvalid)
	}
}

func TestWhatDoesNotFitIsRefused(t *testing.T) {
	m := open(t)
	p := profile(t, m, 1)
	_, err := p.Prefill(129, 1)
	require.ErrorContains(t, err, "a context of 129 tokens, the model's is 128")
	_, err = p.Decode(roofline.Workload{Prompt: 100, Batch: 1 << 20, Beams: 1, Tiles: 1})
	require.ErrorIs(t, err, device.ErrNoMemory)
	require.ErrorContains(t, err, "1048576 requests of 1 beams, 100 + 1 tokens need 7340032 KV slabs")
}
