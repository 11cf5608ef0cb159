package api_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api"
)

// TestMetadataHasTheBoundsOfOpenAI counts characters, not bytes.
func TestMetadataHasTheBoundsOfOpenAI(t *testing.T) {
	fields := func(n int, key, value string) json.RawMessage {
		all := map[string]string{}
		for i := range n {
			all[fmt.Sprintf("%02d%s", i, key)] = value
		}
		text, err := json.Marshal(all)
		require.NoError(t, err)
		return text
	}
	long := strings.Repeat("é", 62)
	for _, good := range []json.RawMessage{nil, json.RawMessage("null"), json.RawMessage("{}"), fields(16, long, strings.Repeat("é", 512)),
		fields(16, long, strings.Repeat("\x01", 512))} {
		require.NoError(t, api.CheckMetadata("metadata", good))
	}
	for bad, want := range map[string]string{
		string(fields(17, "", "")):                        "found 17 fields, expected at most 16",
		string(fields(1, long+"x", "")):                   "found a key of 65 characters, expected at most 64",
		string(fields(1, "", strings.Repeat("é", 513))):   "found 513 characters, expected at most 512",
		string(fields(1, "", strings.Repeat("x", 7<<20))): "bytes, expected at most 16 fields",
		`{"k":1}`:       `"k": found another type, expected a text`,
		`{"k":{"a":1}}`: `"k": found another type, expected a text`,
		`[]`:            "found no object",
		`"text"`:        "found no object",
	} {
		err := api.CheckMetadata("metadata", json.RawMessage(bad))
		require.ErrorContains(t, err, want)
		require.Equal(t, "metadata", api.AsError(err).Param)
		require.Less(t, len(err.Error()), 300)
	}
}
