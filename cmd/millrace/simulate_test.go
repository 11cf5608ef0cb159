package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/compute/sim"
	"github.com/millrace/millrace/lab/calibrate"
	"github.com/millrace/millrace/lab/simulate"
	"github.com/millrace/millrace/lab/simulate/prefix"
)

// simulateOut runs the command and returns what it prints.
func simulateOut(t *testing.T, args ...string) (code int, out string) {
	t.Helper()
	var b bytes.Buffer
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	require.NoError(t, err)
	defer null.Close()
	code = run(t.Context(), append([]string{"simulate"}, args...), nil, &b, null)
	return code, b.String()
}

func TestSimulatePrintsTheSameForTheSameSeed(t *testing.T) {
	args := []string{"--device", "flex-170", "--qps", "5,50", "--requests", "300", "--workers", "2", "--prompt-mean", "40", "--output-mean",
		"40", "--json"}
	code, first := simulateOut(t, args...)
	require.Zero(t, code)
	_, second := simulateOut(t, args...)
	require.Equal(t, first, second)
	_, other := simulateOut(t, append(args, "--seed", "2")...)
	require.NotEqual(t, first, other)
	var r simulate.Study
	require.NoError(t, json.Unmarshal([]byte(first), &r))
	require.Len(t, r.Runs, 2)
	for _, run := range r.Runs {
		require.Equal(t, 300, run.Served+run.RefusedSum())
	}
}

func TestSimulateDrawsCurves(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sim")
	code, _ := simulateOut(t, "--device", "flex-170", "--qps", "50,5", "--requests", "100", "--prompt-mean", "40", "--output-mean", "40",
		"--curves", path)
	require.Zero(t, code)
	for _, name := range []string{"-ttft.svg", "-tpot.svg", "-gap.svg"} {
		text, err := os.ReadFile(path + name)
		require.NoError(t, err)
		require.Equal(t, 4, strings.Count(string(text), "<circle"), "p50 and p99 at two rates")
		require.Contains(t, string(text), "Flex 170, simulated")
	}
	code, _ = simulateOut(t, "--device", "flex-170", "--requests", "10", "--curves", filepath.Join(path, "no", "folder"))
	require.Equal(t, 1, code)
}

func TestSimulateFindsARateAndShowsARamp(t *testing.T) {
	small := []string{"--device", deviceFile(t, `{"base": "cpu", "gbps": 1, "tflops": 0.01}`), "--requests", "200", "--prompt-mean", "40",
		"--output-mean", "40"}
	code, out := simulateOut(t, append(small, "--find-qps", "--slo-tpot", "200ms")...)
	require.Zero(t, code)
	require.Contains(t, out, "largest rate that holds TTFT 2s and TPOT 200ms")
	code, out = simulateOut(t, append(small, "--find-qps", "--slo-tpot", "1ns")...)
	require.Zero(t, code)
	require.Contains(t, out, "no rate holds")
	code, out = simulateOut(t, append(small, "--qps", "20", "--ramp-from", "1")...)
	require.Zero(t, code)
	require.Contains(t, out, "by tenths of the arrivals")
}

func TestSimulateComparesAdmissions(t *testing.T) {
	of := func(admissions string) []string {
		return []string{"--device", "flex-170", "--qps", "100000", "--requests", "300", "--kv-memory", "12MiB", "--max-tokens", "500",
			"--prompt-mean", "40", "--output-mean", "40", "--admission", admissions}
	}
	all := of("context,declared,recompute,predicted,spill")
	code, out := simulateOut(t, all...)
	require.Zero(t, code)
	require.Regexp(t, `QPS +admission +tokens/s +sequences +slabs with tokens`, out)
	require.Equal(t, 2, strings.Count(out, " recompute "), out)
	_, out = simulateOut(t, append(all, "--json")...)
	var r simulate.Study
	require.NoError(t, json.Unmarshal([]byte(out), &r))
	require.Len(t, r.Runs, 5)
	require.Greater(t, r.Runs[3].Waiting.Sequences, 2*r.Runs[1].Waiting.Sequences)
	require.Zero(t, r.Runs[3].Tier)
	require.Positive(t, r.Runs[4].Tier.Restores)
	_, out = simulateOut(t, of("recompute")...)
	require.NotContains(t, out, "slabs with tokens")
}

func TestSimulateComparesDivisionsOfTheWorkers(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sim")
	code, out := simulateOut(t, "--device", "flex-170", "--qps", "20,40", "--requests", "200", "--workers", "3", "--prefill-workers",
		"0,1,2",
		"--prompt-mean", "400", "--output-mean", "300", "--curves", path)
	require.Zero(t, code)
	require.Equal(t, 2, strings.Count(out, "3 compute"), out)
	require.Equal(t, 2, strings.Count(out, "1 prefill, 2 decode"), out)
	require.Regexp(t, `2 prefill, 1 decode .* [1-9]\d+ +0\n`, out)
	text, err := os.ReadFile(path + "-gap.svg")
	require.NoError(t, err)
	require.Equal(t, 6, strings.Count(string(text), "<polyline"), "p50 and p99 of three divisions")
	require.Contains(t, string(text), "p99: 1 prefill, 2 decode")
}

func TestSimulateRefusesWhatMakesNoSense(t *testing.T) {
	for _, args := range [][]string{
		{"--qps", "0"}, {"--qps", "NaN"}, {"--workers", "0"}, {"--requests", "0"}, {"--device", "b300"}, {"--weights", "fp4"},
		{"--prompt-mean", "0.5"}, {"--output-sigma", "9"}, {"--slo-quantile", "p42"}, {"--max-batch-size", "0"},
		{"--find-qps", "--slo-ttft", "0s", "--slo-tpot", "0s"}, {"--device", deviceFile(t, `{"base": "cpu", "gbps": -1}`)},
		{"--calibrate", "device.txt"},
		{"--admission", "all"}, {"--admission", ""}, {"--admission", "predicted,declared", "--find-qps"},
		{"--admission", "predicted,declared", "--curves", "x"},
		{"--admission", "recompute", "--validate"}, {"--admission", "spill", "--validate"}, {"--kv-spill-size", "1"},
		{"--admission", "spill", "--kv-spill-size", "0"},
		{"--prefill-workers", "1"}, {"--prefill-workers", "-1"}, {"--prefill-workers", ""}, {"--workers", "3", "--prefill-workers", "0,3"},
		{"--workers", "3", "--prefill-workers", "0,1", "--find-qps"},
		{"--workers", "3", "--prefill-workers", "1", "--admission", "recompute"},
	} {
		code, out := simulateOut(t, args...)
		require.Equal(t, 2, code, "%v", args)
		require.Empty(t, out)
	}
}

func TestSimulateReplaysATraceOfPrefixes(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "trace.jsonl")
	require.NoError(t, os.WriteFile(file, []byte(strings.Repeat(`{"hash_ids": [1, 2]}`+"\n"+`{"hash_ids": [3]}`+"\n", 3)), 0o600))
	code, out := simulateOut(t, "--prefix-trace", file, "--cache-blocks", "4,3", "--curves", filepath.Join(dir, "p"), "--json")
	require.Zero(t, code)
	var s prefix.Study
	require.NoError(t, json.Unmarshal([]byte(out), &s))
	require.Equal(t, []int{6, 9, 3}, []int{s.Prompts, s.Blocks, s.Distinct})
	require.InDelta(t, 6.0/9, s.Sizes[1].Server, 1e-9)
	require.FileExists(t, filepath.Join(dir, "p-hits.svg"))

	code, _ = simulateOut(t, "--prefix-trace", filepath.Join(dir, "none"))
	require.Equal(t, 1, code)
	code, _ = simulateOut(t, "--prefix-trace", filepath.Join(dir, "p-hits.svg"))
	require.Equal(t, 1, code)
	code, _ = simulateOut(t, "--prefix-trace", file, "--cache-blocks", "0")
	require.Equal(t, 2, code)
}

func TestACalibratedDeviceIsReadAgainAndComparedWithTheEngine(t *testing.T) {
	file := filepath.Join(t.TempDir(), "mine.json")
	batch := []string{"--max-batch-size", "4", "--max-batch-tokens", "32"}
	code, _ := simulateOut(t, append(batch, "--calibrate", file)...)
	require.Zero(t, code)
	d, _, err := sim.Find(file)
	require.NoError(t, err)
	for _, kind := range []string{"linear", "attention", "norm"} {
		require.NotEmpty(t, d.Reached[kind])
	}
	code, out := simulateOut(t, append(batch, "--device", file, "--validate", "--requests", "6", "--qps", "100", "--output-mean", "5",
		"--json")...)
	require.Zero(t, code)
	var v calibrate.Comparison
	require.NoError(t, json.Unmarshal([]byte(out), &v))
	require.Equal(t, 6, v.Requests)
	require.Equal(t, v.Simulated.OutputTokens, v.Real.OutputTokens)
	require.Positive(t, v.Real.TokensPerSecond)
	require.Positive(t, v.Real.TTFT.P50)
}
