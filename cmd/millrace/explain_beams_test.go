package main

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/lab/explain"
)

func TestExplainPrintsTheKVCacheOfBeamSearches(t *testing.T) {
	args := []string{"explain", "--prefill", "100", "--beams", "4", "--batch", "3", "--gen", "17"}
	code, stdout, stderr := millrace(t, nil, append(args, "--json")...)
	require.Equal(t, 0, code, stderr)
	var e struct {
		KVBytesPerToken uint64        `json:"kv_bytes_per_token"`
		Beams           explain.Beams `json:"beams"`
	}
	require.NoError(t, json.Unmarshal([]byte(stdout), &e))
	require.EqualValues(t, 4096, e.KVBytesPerToken)
	require.Equal(t, explain.Beams{
		Beams: 4, Batch: 3, Prompt: 100, Gen: 17, Token: 4096,
		Standard: 3 * 4 * 117 * 4096, Segment: 3 * (100 + 4*32) * 4096,
	}, e.Beams)
	code, stdout, stderr = millrace(t, nil, args...)
	require.Equal(t, 0, code, stderr)
	require.Contains(t, stdout, "segments (what Millrace uses)  2.80 MB")
	code, _, stderr = millrace(t, nil, "explain", "--beams", "-1")
	require.Equal(t, 2, code, stderr)
}
