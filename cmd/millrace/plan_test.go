package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/lab/plan"
)

// planOut runs the command and returns what it prints.
func planOut(t *testing.T, args ...string) (code int, out string) {
	t.Helper()
	var b bytes.Buffer
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	require.NoError(t, err)
	defer null.Close()
	code = run(t.Context(), append([]string{"plan"}, args...), nil, &b, null)
	return code, b.String()
}

func TestPlanReadsAModelAndDevices(t *testing.T) {
	const model = "../../testdata/models/llama-gqa"
	code, text := planOut(t, "--model", model, "--device", "h100", "--prompt", "20", "--gen", "20")
	require.Zero(t, code)
	require.Contains(t, text, "On h100 4,096 users at 40 tokens each decode at ")
	code, file := planOut(t, "--model", model+"/config.json", "--device", "h100", "--prompt", "20", "--gen", "20")
	require.Zero(t, code)
	require.Equal(t, text, file)

	slow, svg := deviceFile(t, `{"base": "cpu", "gbps": 1, "tflops": 0.01}`), filepath.Join(t.TempDir(), "plan.svg")
	code, text = planOut(t, "--model", model, "--device", slow+",epyc-9755", "--price", "1,2", "--prompt", "20", "--gen", "20",
		"--kv-type", "int8", "--weights", "int8", "--svg", svg, "--json")
	require.Zero(t, code)
	var r plan.Report
	require.NoError(t, json.Unmarshal([]byte(text), &r))
	require.Equal(t, "llama-gqa (int8)", r.Model)
	require.Equal(t, "int8", r.KVType)
	require.Len(t, r.Devices, 2)
	require.InDelta(t, 2, r.Devices[1].Price, 0)
	require.Greater(t, r.Devices[1].Within.TokensPerSecond, r.Devices[0].Within.TokensPerSecond)
	require.FileExists(t, svg)
}

func TestPlanMeasuresThisMachineByDefault(t *testing.T) {
	code, text := planOut(t, "--json")
	require.Zero(t, code)
	var r plan.Report
	require.NoError(t, json.Unmarshal([]byte(text), &r))
	require.Equal(t, "tiny-chat (bf16)", r.Model)
	require.Equal(t, "this-cpu", r.Devices[0].Device.ID)
	require.Positive(t, r.Devices[0].Requests)
}

func TestPlanRefusesWhatMakesNoSense(t *testing.T) {
	for _, args := range [][]string{
		{"--prompt", "0"}, {"--gen", "-1"}, {"--beams", "0"}, {"--beams", "1000"}, {"--slo-tpot", "-1ms"}, {"--kv-memory", "-1"},
		{"--device", "b300"}, {"--device", ""}, {"--device", "none.json"}, {"--price", "0"}, {"--price", "1,2"}, {"--price", "NaN"},
		{"--kv-type", "int3"}, {"--weights", "fp5"}, {"--prompt", "1000000000"},
		{"--shape", "params=7e9"}, {"--shape", "params=7e9", "--model", "x"},
		{"--shape", "params=7e9,layers=32,kv-heads=32,head-dim=128", "--weights", "int8"},
		{"--device", deviceFile(t, `{"gbps": 1, "tflops": 1}`)},
	} {
		if args[0] != "--device" {
			args = append(args, "--device", "h100")
		}
		code, out := planOut(t, args...)
		require.Equal(t, 2, code, "%v", args)
		require.Empty(t, out)
	}
	code, _ := planOut(t, "--device", "h100", "--model", "no-such-model")
	require.Equal(t, 1, code)
}
