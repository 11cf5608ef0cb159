package tokenizer

import (
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/compute/weights"
)

// TestDocsListThePreTokenizers of GGUF files.
func TestDocsListThePreTokenizers(t *testing.T) {
	text, err := os.ReadFile("../docs/models.md")
	require.NoError(t, err)
	for name := range preTokenizers() {
		require.Contains(t, string(text), "`"+name+"`")
	}
}

// TestEachPreTokenizerHasCases: a file of testdata names it, or one that is equal.
func TestEachPreTokenizerHasCases(t *testing.T) {
	files, err := filepath.Glob("../testdata/quantized/tokenizers/*.gguf")
	require.NoError(t, err)
	var proven []preTokenizer
	for _, file := range files {
		g, err := weights.OpenGGUF(file, nil)
		require.NoError(t, err)
		require.NoError(t, g.Close())
		name, _ := g.Metadata["tokenizer.ggml.pre"].(string)
		if p, ok := preTokenizers()[name]; ok {
			proven = append(proven, p)
		}
	}
	for name, p := range preTokenizers() {
		has := false
		for _, other := range proven {
			has = has || reflect.DeepEqual(p, other)
		}
		require.True(t, has, name)
	}
}
