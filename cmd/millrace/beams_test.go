package main

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
)

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
