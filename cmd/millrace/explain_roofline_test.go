package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/compute/sim"
	"github.com/millrace/millrace/lab/roofline"
)

func TestRooflineOfAConfigurationWithoutWeights(t *testing.T) {
	config, err := os.ReadFile("../../lab/roofline/paper/llama-2-7b.json")
	require.NoError(t, err)
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "config.json"), config, 0o600))

	code, stdout, stderr := millrace(t, nil, "explain", dir, "--roofline", "max-1100", "--prefill", "64", "--gen", "2", "--json")
	require.Equal(t, 0, code, stderr)
	var r roofline.Report
	require.NoError(t, json.Unmarshal([]byte(stdout), &r))
	require.Equal(t, roofline.Notice, r.Notice)
	require.Len(t, r.Bounds, 1)
	require.Equal(t, "max-1100", r.Bounds[0].Device.ID)
	// 6.6e9 of 6.74e9 values are read in a decode step: all but the token table.
	require.InEpsilon(t, 13.2e9/1228.8e9, r.Bounds[0].TPOT, 0.01)

	code, stdout, stderr = millrace(t, nil, "explain", dir, "--roofline", "max-1100")
	require.Equal(t, 0, code, stderr)
	require.Contains(t, stdout, "LOWER BOUND from counted bytes and flops, not a measurement.\nLlamaForCausalLM: 512 + 512 tokens")
	require.Contains(t, stdout, "mlp.gate_up")

	code, stdout, stderr = millrace(t, nil, "explain", dir)
	require.Equal(t, 0, code, stderr)
	require.Contains(t, stdout, "LlamaForCausalLM: 32 layers")
}

func TestRooflineOfAllDevicesMeasuresThisCPU(t *testing.T) {
	code, stdout, stderr := millrace(t, nil, "explain", "--roofline", "all", "--json")
	require.Equal(t, 0, code, stderr)
	var r roofline.Report
	require.NoError(t, json.Unmarshal([]byte(stdout), &r))
	require.Len(t, r.Bounds, len(sim.Peaks())+1)
	cpu := r.Bounds[len(r.Bounds)-1]
	require.Equal(t, roofline.ThisCPU, cpu.Device.ID)
	require.Positive(t, cpu.Device.GBps)
	require.Greater(t, cpu.TTFT, r.Bounds[0].TTFT)
}

func TestPaperPrintsBoundsBesideThePapersFigures(t *testing.T) {
	curves := filepath.Join(t.TempDir(), "x")
	code, stdout, stderr := millrace(t, nil, "explain", "--paper", "--curves", curves)
	require.Equal(t, 0, code, stderr)
	for _, want := range []string{roofline.Notice, "Figure 4: KV cache of 4 beams, 1024 + 1024 tokens",
		"bloom-176b      8  1024 + 128      4", "bends at a prompt of 512 tokens",
		"batch 1: 727 GB/s, 73% of effective, 44% of peak"} {
		require.Contains(t, stdout, want)
	}
	code, stdout, stderr = millrace(t, nil, "explain", "--paper", "--json")
	require.Equal(t, 0, code, stderr)
	var p struct {
		Notice string
		roofline.Paper
	}
	require.NoError(t, json.Unmarshal([]byte(stdout), &p))
	require.Equal(t, roofline.Notice, p.Notice)
	require.Len(t, p.Latency, 2*len(roofline.PaperModels()))
	last := p.Memory[len(p.Memory)-1]
	require.Equal(t, "bloom-176b", last.Model)
	require.Equal(t, 32, last.Batch)
	// The paper's 63% of GPT-J: 5 of 8 segments of 1024 tokens.
	require.Equal(t, 8*last.Segment, 5*last.Standard)
	picture, err := os.ReadFile(curves + "-kv.svg")
	require.NoError(t, err)
	require.Contains(t, string(picture), "bloom-176b, one prompt")
	require.Contains(t, string(picture), "gpt-j-6b, a prompt for each beam")
}

func TestRooflineNamesWhatIsWrong(t *testing.T) {
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"--roofline", "b300"},
			`no device "b300" in the table: it has max-1550-tile, max-1100, flex-170, arc-a770, arc-b580, a100-80gb, h100, h200, rtx-4090, xeon-8592, xeon-6980p, epyc-9654, epyc-9755, this-cpu and all`},
		{[]string{"--roofline", "max-1100", "--tiles", "0"}, "--tiles 0: expected at least 1"},
		{[]string{"--roofline", "max-1100", "--context", "5"}, "--context: not together with --roofline"},
		{[]string{"--paper", "DIR"}, "--model: not together with --paper"},
		{[]string{"--curves", "x"}, "--curves: found it without --paper"},
		{[]string{"--paper", "--batch", "2"}, "--batch: not together with --paper"},
	} {
		code, _, stderr := millrace(t, nil, append([]string{"explain"}, tt.args...)...)
		require.Equal(t, 2, code, stderr)
		require.Contains(t, stderr, tt.want)
	}
}
