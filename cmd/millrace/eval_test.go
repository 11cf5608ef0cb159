package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
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

// TestEvalComparesTypes: of weights and of KV caches. lab/eval measures how much each may cost.
func TestEvalComparesTypes(t *testing.T) {
	raw, err := os.ReadFile("../../testdata/eval/tiny-chat.txt")
	require.NoError(t, err)
	text := filepath.Join(t.TempDir(), "text")
	require.NoError(t, os.WriteFile(text, []byte(strings.ToValidUTF8(string(raw[:500]), "")), 0o600))
	for compare, types := range map[string]string{"--compare-weights": "int8,nf4", "--compare-kv": "int8,int4"} {
		code, stdout, stderr := millrace(t, nil, "eval", "--text", text, "--context", "32", compare, types, "--prompts", "1",
			"--prompt-tokens",
			"4", "--gen", "2", "--json")
		require.Equal(t, 0, code, stderr)
		var r eval.Report
		require.NoError(t, json.Unmarshal([]byte(stdout), &r))
		require.Len(t, r.Results, 3)
		nats := map[float64]string{}
		for i, result := range r.Results {
			require.NotContains(t, nats, result.Nats, "%s: %s", compare, result.Name)
			nats[result.Nats] = result.Name
			if i > 0 {
				require.Contains(t, result.Name, strings.Split(types, ",")[i-1])
				require.NotNil(t, result.Agreement)
			}
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
