package family

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/compute/weights"
)

// TestTheDocumentHasEveryFamily compares docs/models.md with the registry.
func TestTheDocumentHasEveryFamily(t *testing.T) {
	raw, err := os.ReadFile("../../docs/models.md")
	require.NoError(t, err)
	doc := string(raw)
	_, table, _ := strings.Cut(doc, "\n| name |")
	table, _, _ = strings.Cut(table, "\n\n")
	require.Equal(t, Table(), "| name |"+table+"\n")
	_, names, _ := strings.Cut(doc, "); architectures `")
	names, _, _ = strings.Cut(names, "`;")
	require.Equal(t, strings.Join(ggufNames(), "`, `"), names)
	for _, f := range families() {
		require.Contains(t, doc, "`"+f.bare)
	}
}

// TestEveryFamilyHasAFixture: a family without a small model in testdata is not compared with transformers.
func TestEveryFamilyHasAFixture(t *testing.T) {
	dirs, err := filepath.Glob("../../testdata/models/*")
	require.NoError(t, err)
	encoders, err := filepath.Glob("../../testdata/encoders/*")
	require.NoError(t, err)
	dirs = append(dirs, encoders...)
	found := map[string]bool{}
	for _, dir := range dirs {
		c, err := LoadConfig(dir)
		require.NoError(t, err)
		found[c.Architecture] = true
	}
	for _, f := range families() {
		require.True(t, found[f.class], f.class)
	}
}

// TestEveryGGUFFormHasAFile: a form without one in testdata is not compared with the folder of its model.
func TestEveryGGUFFormHasAFile(t *testing.T) {
	found := map[string]bool{}
	for _, folder := range []string{"quantized/gguf", "gguf", "gguf/encoders"} {
		files, err := filepath.Glob("../../testdata/" + folder + "/*.gguf")
		require.NoError(t, err)
		for _, file := range files {
			c, err := LoadConfig(file)
			require.NoError(t, err)
			found[c.Architecture] = true
		}
	}
	for _, f := range families() {
		require.True(t, f.gguf == nil || found[f.class], f.class)
	}
}

// TestNoTwoFamiliesReadTheSame class, model_type or GGUF file.
func TestNoTwoFamiliesReadTheSame(t *testing.T) {
	seen := map[string]bool{}
	once := func(name string) {
		require.False(t, seen[name], name)
		seen[name] = true
	}
	for _, f := range families() {
		require.NotEmpty(t, f.class)
		once(f.class)
		require.Equal(t, strings.ToLower(f.kind), f.kind)
		once("model_type " + f.kind)
		if f.bare != "" {
			once(f.bare)
		}
		if f.gguf != nil && f.gguf.only == nil {
			once("GGUF " + f.gguf.name)
		}
	}
}

func TestGGUFTensorsGetTheNamesOfHuggingFace(t *testing.T) {
	layout, err := ggufLayout(ggufMetadata())
	require.NoError(t, err)
	for name, want := range map[string]string{
		"token_embd.weight": "model.embed_tokens.weight", "output.weight": "lm_head.weight", "output_norm.weight": "model.norm.weight",
		"blk.3.ffn_up.weight": "model.layers.3.mlp.up_proj.weight", "blk.12.attn_q.bias": "model.layers.12.self_attn.q_proj.bias",
		"rope_freqs.weight": "rope_freqs.weight", "blk.3.other.weight": "blk.3.other.weight", "blk.": "blk.",
	} {
		require.Equal(t, want, layout.Name(name))
	}
	for name, want := range map[string]int64{"blk.0.attn_q.weight": 6, "blk.0.attn_k.bias": 6, "blk.0.attn_v.weight": 0,
		"attn_q.weight": 0} {
		require.Equal(t, want, layout.Interleaved(name), name)
	}
	layout, err = ggufLayout(weights.Metadata{"general.architecture": "qwen2"})
	require.NoError(t, err)
	require.Nil(t, layout.Interleaved, "not of this family")
	layout, err = ggufLayout(weights.Metadata{"general.architecture": "other"})
	require.NoError(t, err)
	require.Nil(t, layout.Name, "the configuration says what is read")
	for want, heads := range map[string]any{"found nothing": nil, "found 0": int64(0), "found x": "x"} {
		m := ggufMetadata()
		delete(m, "llama.attention.head_count")
		if heads != nil {
			m["llama.attention.head_count"] = heads
		}
		_, err = ggufLayout(m)
		require.ErrorContains(t, err, "llama.attention.head_count: "+want+", expected an integer of at least 1")
	}
}
