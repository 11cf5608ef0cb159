package main

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestExplainPrintsTheKVCacheOfBeamSearches(t *testing.T) {
	args := []string{"explain", "--prefill", "100", "--beams", "4", "--batch", "3", "--gen", "17"}
	code, stdout, stderr := millrace(t, nil, append(args, "--json")...)
	require.Equal(t, 0, code, stderr)
	var e struct {
		KVBytesPerToken uint64    `json:"kv_bytes_per_token"`
		Beams           beamBytes `json:"beams"`
	}
	require.NoError(t, json.Unmarshal([]byte(stdout), &e))
	require.EqualValues(t, 4096, e.KVBytesPerToken)
	require.Equal(t, beamBytes{
		Beams: 4, Batch: 3, Prompt: 100, Gen: 17, Token: 4096,
		Standard: 3 * 4 * 117 * 4096, Segment: 3 * (100 + 4*32) * 4096,
	}, e.Beams)
	code, stdout, stderr = millrace(t, nil, args...)
	require.Equal(t, 0, code, stderr)
	require.Contains(t, stdout, "segments (what Millrace uses)  2.80 MB")
	code, _, stderr = millrace(t, nil, "explain", "--beams", "-1")
	require.Equal(t, 2, code, stderr)
}

func TestGenerateWithBeams(t *testing.T) {
	generate := func(args ...string) answer {
		t.Helper()
		code, stdout, stderr := millrace(t, nil, append([]string{"generate", "--tokens", "5,6,7", "-n", "20", "--json"}, args...)...)
		require.Equal(t, 0, code, stderr)
		var a answer
		require.NoError(t, json.Unmarshal([]byte(stdout), &a))
		require.NotEmpty(t, a.Tokens)
		return a
	}
	wide := generate("--beams", "4", "--length-penalty", "0")
	require.Equal(t, wide, generate("--beams", "4", "--length-penalty", "0", "--early-stopping=never"))
	require.NotEqual(t, wide, generate(), "a search that finds what greedy decoding finds shows nothing")
}

func TestGenerateNamesWhatBeamsDoNotObey(t *testing.T) {
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"--beams", "65"}, "num_beams: found 65, expected 1 to 64"},
		{[]string{"--beams", "2", "--temperature", "1"}, "--temperature: not together with --beams"},
		{[]string{"--beams", "2", "--stop", "x"}, "--stop"},
		{[]string{"--beams", "2", "--early-stopping=maybe"}, `--early-stopping: found "maybe"`},
		{[]string{"--length-penalty", "2"}, "--length-penalty: only with --beams"},
	} {
		code, _, stderr := millrace(t, nil, append([]string{"generate", "--tokens", "5"}, tt.args...)...)
		require.Equal(t, 2, code, stderr)
		require.Contains(t, stderr, tt.want)
	}
}
