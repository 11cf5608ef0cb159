package document_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api/codec"
	"github.com/millrace/millrace/api/document"
)

func TestEveryCallHasCompleteSchemas(t *testing.T) {
	all, err := document.Schemas()
	require.NoError(t, err)
	for _, e := range codec.Endpoints() {
		require.NotNil(t, all[e.Path], e.Path)
	}
	for path, bodies := range all {
		require.Len(t, bodies, 2, path)
		for name, text := range bodies {
			var s struct {
				Ref  string                     `json:"$ref"`
				Defs map[string]json.RawMessage `json:"$defs"`
			}
			require.NoError(t, json.Unmarshal([]byte(text), &s))
			require.Contains(t, s.Defs, strings.TrimPrefix(s.Ref, "#/$defs/"), "%s %s", path, name)
			for _, rest := range strings.Split(text, `"$ref":"`)[1:] {
				ref, _, _ := strings.Cut(rest, `"`)
				require.Contains(t, s.Defs, strings.TrimPrefix(ref, "#/$defs/"), "%s %s", path, name)
			}
		}
	}
	require.Contains(t, all["/v1/embeddings"]["request"], `"dimensions"`)
}
