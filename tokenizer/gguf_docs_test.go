package tokenizer

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestDocsListThePreTokenizers of GGUF files.
func TestDocsListThePreTokenizers(t *testing.T) {
	text, err := os.ReadFile("../docs/models.md")
	require.NoError(t, err)
	for name := range preTokenizers() {
		require.Contains(t, string(text), "`"+name+"`")
	}
}
