package main

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/lab/explain"
)

func TestExplainPrintsTheDemoModelsProgram(t *testing.T) {
	code, stdout, stderr := millrace(t, nil, "explain", "--prefill", "7", "--context", "33", "--json")
	require.Equal(t, 0, code, stderr)
	var e explain.Explanation
	require.NoError(t, json.Unmarshal([]byte(stdout), &e))
	require.Equal(t, "LlamaForCausalLM", e.Architecture)
	require.Equal(t, 8, e.Layers)
	require.Equal(t, 7, e.Prefill.Rows)
	require.Equal(t, 33, e.Decode.Past)

	code, stdout, stderr = millrace(t, nil, "explain", "--kv-eviction", "streaming:sinks=3,window=21,context=5000", "--json")
	require.Equal(t, 0, code, stderr)
	require.Contains(t, stdout, "window 21, sinks 3")
	require.Contains(t, stdout, `"max_positions":5000`)

	code, stdout, stderr = millrace(t, nil, "explain", "--kv-eviction", "h2o:heavy=30,recent=20", "--json")
	require.Equal(t, 0, code, stderr)
	require.Contains(t, stdout, "heavy 30, recent 20")

	code, stdout, stderr = millrace(t, nil, "explain")
	require.Equal(t, 0, code, stderr)
	require.Contains(t, stdout, "LlamaForCausalLM: 8 layers, hidden 256, vocabulary 4096")
	require.Contains(t, stdout, "KV cache of a server here: 0.54 GB reserved, what 64 sequences of 2048 tokens need")
}

func TestExplainNamesWhatIsWrong(t *testing.T) {
	for _, tt := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"no/such"}, 1, "no/such"},
		{[]string{"a", "--model", "b"}, 2, `found MODEL "a" and --model "b", expected one of them`},
		{[]string{"--prefill", "0"}, 2, "--prefill 0"},
		{[]string{"a", "b"}, 2, `found the arguments ["a" "b"], expected MODEL alone`},
		{[]string{"--kv-eviction", "snapkv"}, 2, `--kv-eviction: found "snapkv"`},
		{[]string{"--kv-eviction", "h2o:heavy=100000"}, 2, "found 100000 heavy and"},
		{[]string{"--kv-eviction", "streaming:window=1000000"}, 2, "found 4 sinks and a window of 1000000"},
		{[]string{"--backend", "gpu"}, 2, `--backend: found "gpu", expected cpu or ref or sycl or cuda`},
	} {
		code, _, stderr := millrace(t, nil, append([]string{"explain"}, tt.args...)...)
		require.Equal(t, tt.code, code, stderr)
		require.Contains(t, stderr, tt.want)
	}
}
