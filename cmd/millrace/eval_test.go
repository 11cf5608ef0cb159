package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/lab/eval"
)

// absolute: commands under test run in a directory of their own.
func absolute(t *testing.T, path string) string {
	t.Helper()
	path, err := filepath.Abs(path)
	require.NoError(t, err)
	return path
}

func TestEvalComparesModels(t *testing.T) {
	raw, err := os.ReadFile("../../testdata/eval/tiny-chat.txt")
	require.NoError(t, err)
	demo := absolute(t, "../../models/tiny-chat") // millrace changes the directory
	text := filepath.Join(t.TempDir(), "text")
	require.NoError(t, os.WriteFile(text, raw[:3000], 0o600))
	args := []string{"eval", "--text", text, "--context", "64", "--prompts", "3", "--gen", "5"}

	code, stdout, stderr := millrace(t, nil, append(args, "--json")...)
	require.Equal(t, 0, code, stderr)
	var r eval.Report
	require.NoError(t, json.Unmarshal([]byte(stdout), &r))
	require.Equal(t, 32, r.Stride, "half of the context")
	require.Len(t, r.Results, 1)
	require.Greater(t, r.Results[0].Tokens, 500)
	require.Nil(t, r.Results[0].Agreement, "with itself")

	// With itself: every figure is that of equal models.
	args = append(args, "--against", demo)
	code, stdout, stderr = millrace(t, nil, append(args, "--json")...)
	require.Equal(t, 0, code, stderr)
	single := r.Results[0].Nats
	r = eval.Report{}
	require.NoError(t, json.Unmarshal([]byte(stdout), &r))
	require.Len(t, r.Results, 2)
	require.InDelta(t, single, r.Results[1].Nats, 0)
	require.InDelta(t, 1, r.Results[1].Relative, 0)
	require.InDelta(t, 1, r.Results[1].Agreement.Best, 0)
	require.InDelta(t, 1, r.Results[1].Agreement.Greedy, 0)
	require.Equal(t, 3, r.Results[1].Agreement.Whole)

	code, stdout, stderr = millrace(t, nil, args...)
	require.Equal(t, 0, code, stderr)
	require.Contains(t, stdout, "tokens scored, windows of 64 tokens every 32")
	require.Contains(t, stdout, "100.00%")
}

// TestQuantizedWeightsKeepTheirQuality: the perplexity of the demo model rises by at
// most 1% with int8 weights, 8% with int4 in groups of 32, 1.5% with fp8 and 8% with nf4.
func TestQuantizedWeightsKeepTheirQuality(t *testing.T) {
	requireQuality(t, "--compare-weights", "int8,int4,fp8,nf4", 1.01, 1.08, 1.015, 1.08)
}

// TestKVCachesOfCodesKeepTheirQuality: the perplexity of the demo model rises by at most
// 0.5% with keys and values of int8 and 2% with int4.
func TestKVCachesOfCodesKeepTheirQuality(t *testing.T) {
	requireQuality(t, "--compare-kv", "int8,int4", 1.005, 1.02)
}

// requireQuality compares types with the floats: the ratio of
// their perplexities is at most the limit.
func requireQuality(t *testing.T, compare, types string, limits ...float64) {
	t.Helper()
	code, stdout, stderr := millrace(t, nil, "eval", "--text", absolute(t, "../../testdata/eval/tiny-chat.txt"),
		compare, types, "--prompts", "4", "--json")
	require.Equal(t, 0, code, stderr)
	var r eval.Report
	require.NoError(t, json.Unmarshal([]byte(stdout), &r))
	require.Len(t, r.Results, 1+len(limits))
	for i, limit := range append([]float64{1}, limits...) {
		result := r.Results[i]
		t.Logf("%s: perplexity %.4f, %.4f of the first", result.Name, result.Perplexity, result.Relative)
		require.LessOrEqual(t, result.Relative, limit, result.Name)
		if i > 0 {
			require.NotEqual(t, r.Results[0].Nats, result.Nats, "%s: %s had no effect", result.Name, compare)
		}
	}
}

func TestEvalRefusesWhatCannotBeMeasured(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "empty")
	require.NoError(t, os.WriteFile(empty, nil, 0o600))
	text, other := absolute(t, "../../testdata/eval/tiny-chat.txt"), absolute(t, "../../testdata/models/llama-gqa")
	for _, tt := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{}, 2, "--text: found nothing, expected a file"},
		{[]string{"--text", "no/such"}, 1, "no/such"},
		{[]string{"--text", empty}, 1, "found 0 tokens, expected at least 2"},
		{[]string{"--text", text, "--context", "1"}, 2, "--context: found 1"},
		{[]string{"--text", text, "--context", "8", "--stride", "8"}, 2, "--stride: found 8, expected 1 to 7"},
		{[]string{"--text", text, "--context", "4096"}, 2, "found sequences of 4096 tokens, expected at most the 2048"},
		{[]string{"--text", text, "--prompts", "0"}, 2, "--prompts 0"},
		{[]string{"--text", text, "--compare-weights", "int3"}, 2, `found "int3", expected file, bf16, int8`},
		{[]string{"--text", text, "--compare-kv", "int3"}, 2, `KV type "int3", expected auto, f16`},
		{[]string{"--text", text, "--against", other}, 1, "tokenizer.json"},
	} {
		code, _, stderr := millrace(t, nil, append([]string{"eval"}, tt.args...)...)
		require.Equal(t, tt.code, code, stderr)
		require.Contains(t, stderr, tt.want)
	}
}
