package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/lab/bench"
)

func TestBenchRefusesKivi(t *testing.T) {
	code, _, stderr := millrace(t, nil, "bench", "--kv-type", "kivi")
	require.Equal(t, 2, code)
	require.Contains(t, stderr, "found --kv-type kivi, expected another value")
}

func TestBenchRefusesHeavyTokens(t *testing.T) {
	code, _, stderr := millrace(t, nil, "bench", "--kv-eviction", "h2o:recent=9")
	require.Equal(t, 2, code)
	require.Contains(t, stderr, "found --kv-eviction h2o:recent=9, expected another value")
}

func TestBenchOfEachPromptWithEachBatch(t *testing.T) {
	curves := filepath.Join(t.TempDir(), "grid")
	args := []string{"bench", "--prompt", "20,40", "--gen", "2", "--batch", "1,3", "--repeat", "1", "--threads", "1"}
	code, stdout, stderr := millrace(t, nil, append(args, "--json", "--curves", curves)...)
	require.Equal(t, 0, code, stderr)
	var r bench.Report
	require.NoError(t, json.Unmarshal([]byte(stdout), &r))
	require.Len(t, r.Results, 4)
	for i, want := range [][2]int{{20, 1}, {20, 3}, {40, 1}, {40, 3}} {
		require.Equal(t, want, [2]int{r.Results[i].Prompt, r.Results[i].Batch})
		require.GreaterOrEqual(t, r.Results[i].AllFirst, r.Results[i].TTFT)
	}
	for name, lines := range map[string][]string{
		"-ttft.svg": {"prompt tokens of each sequence", "1 sequences", "3 sequences"},
		"-tpot.svg": {"20 prompt tokens", "40 prompt tokens"},
	} {
		picture, err := os.ReadFile(curves + name)
		require.NoError(t, err)
		for _, line := range lines {
			require.Contains(t, string(picture), line)
		}
	}
}

func TestBenchOfOnePromptOnly(t *testing.T) {
	for _, flags := range [][]string{{"--ops"}, {"--sdpa"}, {"--beams", "2"}, {"--shared", "16"}, {"--url", "http://127.0.0.1:1"}} {
		code, _, stderr := millrace(t, nil, append([]string{"bench", "--prompt", "20,40"}, flags...)...)
		require.Equal(t, 2, code, flags)
		require.Contains(t, stderr, "--prompt: found 2 numbers of tokens, expected one", flags)
	}
}

func TestBenchOpByOp(t *testing.T) {
	args := []string{"bench", "--ops", "--sdpa", "--prompt", "20", "--gen", "3", "--batch", "1,2", "--repeat", "1", "--threads", "1"}
	code, stdout, stderr := millrace(t, nil, append(args, "--json")...)
	require.Equal(t, 0, code, stderr)
	var r bench.ProfileReport
	require.NoError(t, json.Unmarshal([]byte(stdout), &r))
	require.Len(t, r.Ops, 3)
	require.Equal(t, 20, r.Ops[0].Rows)
	require.Equal(t, 2, r.Ops[2].Batch)
	for _, o := range r.Ops {
		require.Equal(t, 69, o.Total.Launches)
		require.InEpsilon(t, o.Step, o.Total.Time+o.Outside, 1e-9)
	}
	require.Equal(t, 4, r.SDPA.Beams)
	require.Len(t, r.SDPA.Batches, 2)

	code, stdout, stderr = millrace(t, nil, args...)
	require.Equal(t, 0, code, stderr)
	for _, want := range []string{"measured on ", "prefill of 20 tokens", "decode, batch 2, beams 1, after 20 tokens", "not in ops",
		"of roofline",
		"4 beams after a prompt of 20 tokens and responses of 3"} {
		require.Contains(t, stdout, want)
	}
}
