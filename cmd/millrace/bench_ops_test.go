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

func TestBenchOfAnEncoder(t *testing.T) {
	args := []string{"bench", absolute(t, "../../testdata/encoders/bert"), "--prompt", "20,40", "--batch", "5", "--max-batch-tokens", "64", "--repeat", "1",
		"--threads", "1", "--packed-weights", "off"}
	code, stdout, stderr := millrace(t, nil, append(args, "--json")...)
	require.Equal(t, 0, code, stderr)
	var r bench.Report
	require.NoError(t, json.Unmarshal([]byte(stdout), &r))
	require.Len(t, r.Results, 2)
	for i, tokens := range []int{20, 40} {
		one := r.Results[i]
		require.Equal(t, [3]int{tokens, 5, 0}, [3]int{one.Prompt, one.Batch, one.Gen})
		require.InEpsilon(t, 5/one.AllFirst, one.TextsPS, 1e-9)
		require.InEpsilon(t, float64(tokens)*one.TextsPS, one.PrefillTPS, 1e-9)
	}
	code, stdout, stderr = millrace(t, nil, args...)
	require.Equal(t, 0, code, stderr)
	require.Contains(t, stdout, "texts/s")

	// Three texts of 20 tokens fit into a step of 64.
	args[3] = "20"
	code, stdout, stderr = millrace(t, nil, append(args, "--ops")...)
	require.Equal(t, 0, code, stderr)
	require.Contains(t, stdout, "prefill of 3 texts of 20 tokens")
	require.NotContains(t, stdout, "decode")

	for flag, want := range map[string]string{
		"--sdpa": "which generates nothing", "--queries=2": "which generates nothing", "--beams=2": "which generates nothing",
		"--prompt=65": "texts of 65 tokens, a step of --max-batch-tokens has 64",
	} {
		code, _, stderr = millrace(t, nil, append(args, flag)...)
		require.Equal(t, 1, code, flag)
		require.Contains(t, stderr, want, flag)
	}
}

func TestBenchOfOnePromptOnly(t *testing.T) {
	for _, flags := range [][]string{{"--ops"}, {"--sdpa"}, {"--shared", "16"}, {"--url", "http://127.0.0.1:1"}} {
		code, _, stderr := millrace(t, nil, append([]string{"bench", "--prompt", "20,40"}, flags...)...)
		require.Equal(t, 2, code, flags)
		require.Contains(t, stderr, "--prompt: found 2 numbers of tokens, expected one", flags)
	}
}

func TestBenchOpByOp(t *testing.T) {
	args := []string{"bench", "--ops", "--sdpa", "--queries", "1,3", "--prompt", "20", "--gen", "3", "--batch", "1,2", "--repeat", "1",
		"--threads", "1"}
	curves := filepath.Join(t.TempDir(), "x")
	code, stdout, stderr := millrace(t, nil, append(args, "--json", "--curves", curves)...)
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
	for i, one := range r.SDPA.Batches {
		each := r.SDPA.Standard[i]
		require.Equal(t, 4*one.Batch, each.Batch)
		// 4 beams have 20 + 4 tokens each, or the 20 once.
		require.Equal(t, 4*24*one.KVBytes, (20+4*4)*each.KVBytes)
	}
	picture, err := os.ReadFile(curves + "-sdpa.svg")
	require.NoError(t, err)
	for _, line := range []string{"one prompt for all beams", "a prompt for each beam", "reading alone"} {
		require.Contains(t, string(picture), line)
	}
	require.Len(t, r.Queries, 2)
	require.Equal(t, 3, r.Queries[1].Rows)
	require.Equal(t, 20, r.Queries[1].Past)
	require.Positive(t, r.Queries[1].Time)

	code, stdout, stderr = millrace(t, nil, args...)
	require.Equal(t, 0, code, stderr)
	for _, want := range []string{"measured on ", "prefill of 20 tokens", "decode, batch 2, beams 1, after 20 tokens", "not in ops",
		"of roofline", "attention of queries of one sequence",
		"4 beams after a prompt of 20 tokens and responses of 3"} {
		require.Contains(t, stdout, want)
	}
}

func TestBenchOfBeamsWithEachBatch(t *testing.T) {
	args := []string{"bench", "--beams", "2", "--prompt", "20,40", "--gen", "17", "--batch", "1,3", "--repeat", "1", "--threads", "1"}
	code, stdout, stderr := millrace(t, nil, append(args, "--json")...)
	require.Equal(t, 0, code, stderr)
	var r bench.Report
	require.NoError(t, json.Unmarshal([]byte(stdout), &r))
	require.Empty(t, r.Results)
	require.Len(t, r.Beams, 4)
	one, three := r.Beams[0], r.Beams[1]
	require.Equal(t, [3]int{20, 1, 2}, [3]int{one.Prompt, one.Batch, one.Beams})
	require.Equal(t, [3]int{20, 3, 2}, [3]int{three.Prompt, three.Batch, three.Beams})
	require.Equal(t, 3*one.SegmentBytes, three.SegmentBytes)
	// Two slabs of the prompt and two of each beam; the standard cache has 37 tokens for each beam.
	require.Equal(t, 6*16*one.StandardBytes, 2*37*one.SegmentBytes)
	for _, b := range r.Beams {
		require.Positive(t, b.First)
		require.Greater(t, b.BeamTPOT, b.Choosing)
	}
	code, stdout, stderr = millrace(t, nil, args...)
	require.Equal(t, 0, code, stderr)
	require.Contains(t, stdout, "first token ms")
}

func TestBenchNamesFlagsThatDoNotGoTogether(t *testing.T) {
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"--queries", "0,2"}, "--queries: found 0, expected at least 1"},
		{[]string{"--queries", "2", "--curves", "x"}, "--curves: found it with --ops, --queries or --beams"},
		{[]string{"--beams", "2", "--curves", "x"}, "--curves: found it with --ops, --queries or --beams"},
		{[]string{"--queries", "2", "--shared", "16"}, "without --beams, --ops, --sdpa and --queries"},
	} {
		code, _, stderr := millrace(t, nil, append([]string{"bench"}, tt.args...)...)
		require.Equal(t, 2, code, stderr)
		require.Contains(t, stderr, tt.want)
	}
}
