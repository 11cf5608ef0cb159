package family

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/compute/weights"
)

// ggufMetadata is of a small Llama.
func ggufMetadata() weights.Metadata {
	return weights.Metadata{
		"general.architecture": "llama", "llama.embedding_length": int64(48), "llama.block_count": int64(2),
		"llama.feed_forward_length": int64(104), "llama.attention.head_count": int64(6), "llama.context_length": int64(128),
		"llama.attention.layer_norm_rms_epsilon": 1e-5, "llama.vocab_size": int64(131),
		"tokenizer.ggml.eos_token_id": int64(2), "tokenizer.ggml.eot_token_id": int64(5), "tokenizer.ggml.eom_token_id": int64(2),
	}
}

// tables is a source with a token table.
type tables map[string]weights.Tensor

func (t tables) Describe(name string) (weights.Tensor, bool) {
	found, ok := t[name]
	return found, ok
}

func (t tables) Tensor(name string) (weights.Tensor, bool) { return t.Describe(name) }

func ggufTables() tables {
	return tables{"model.embed_tokens.weight": {DType: weights.F16, Shape: []int64{131, 48}}}
}

func TestGGUFMetadataGivesTheConfigurationWithLlamaCppsDefaults(t *testing.T) {
	f, err := ggufFields("a.gguf", ggufMetadata(), ggufTables())
	require.NoError(t, err)
	c, err := parseConfig(f)
	require.NoError(t, err)
	require.Equal(t, "LlamaForCausalLM", c.Architecture)
	require.Equal(t, []int{131, 48, 2, 104, 128}, []int{c.Vocab, c.Hidden, c.Layers, c.Intermediate, c.MaxPositions})
	require.Equal(t, []int{6, 6, 8}, []int{c.Heads, c.KVHeads, c.HeadDim}, "as many KV heads as heads, hidden / heads")
	require.True(t, c.TieEmbeddings, "no output.weight")
	require.False(t, c.QKVBias)
	require.Equal(t, []int32{2, 5}, c.Generation.EOS)
	require.InDelta(t, 10000, c.Rope.Theta, 0)
	require.InDelta(t, 1e-5, c.Eps, 1e-12)

	// Qwen3's class has a head size of its own where config.json says nothing; GGUF means hidden / heads.
	m := weights.Metadata{}
	for k, v := range ggufMetadata() {
		if k[:5] == "llama" {
			k = "qwen3" + k[5:]
		}
		m[k] = v
	}
	m["general.architecture"] = "qwen3"
	f, err = ggufFields("a.gguf", m, ggufTables())
	require.NoError(t, err)
	c, err = parseConfig(f)
	require.NoError(t, err)
	require.Equal(t, 8, c.HeadDim)
	require.True(t, c.QKNorm)
}

func TestGGUFFaultsNameTheFilesKeys(t *testing.T) {
	for _, c := range []struct {
		key   string
		value any // nil: absent
		want  string
	}{
		{"general.architecture", "gemma", `general.architecture: found "gemma", expected llama, qwen2, qwen3, gemma2, gemma3, olmo2, qwen3moe, gpt-oss or olmoe`},
		{"llama.embedding_length", nil, "llama.embedding_length: found nothing, expected an integer"},
		{"llama.embedding_length", int64(50), "llama.attention.key_length: found nothing, expected a number, as 50 is no multiple of 6 heads"},
		{"llama.block_count", int64(-1), "llama.block_count: found -1, expected an integer in 1.."},
		{"llama.attention.head_count", []any{int64(6), int64(6)}, "llama.attention.head_count: found [6,6]"},
		{"llama.attention.head_count_kv", int64(4), "llama.attention.head_count_kv: found 4, expected a divisor of the 6 attention heads"},
		{"llama.attention.layer_norm_rms_epsilon", "x", `llama.attention.layer_norm_rms_epsilon: found "x"`},
		{"llama.rope.freq_base", 0.5, "llama.rope.freq_base: found 0.5"},
		{"llama.rope.scaling.type", "longrope", `llama.rope.scaling.type: found "longrope"`},
		{"llama.rope.scaling.factor", 0.5, "llama.rope.scaling.factor: found 0.5, expected a number in 1.."},
		{"llama.rope.scale_linear", "2", `llama.rope.scale_linear: found "2", expected a number in 1..`},
		{"llama.expert_count", int64(8), "llama.expert_count: found 8, expected none"},
		{"llama.attention.sliding_window", int64(4096), "llama.attention.sliding_window: found 4096, expected none"},
		{"llama.rope.scaling.attn_factor", 1.2, "llama.rope.scaling.attn_factor: found 1.2, expected none"},
		{"llama.rope.dimension_count", int64(4), "llama.rope.dimension_count: found 4, expected the size of a head: 8"},
		{"llama.attention.value_length", int64(16), "llama.attention.value_length: found 16, expected the size of a head: 8"},
	} {
		m := ggufMetadata()
		m[c.key] = c.value
		if c.value == nil {
			delete(m, c.key)
		}
		f, err := ggufFields("a.gguf", m, ggufTables())
		if err == nil {
			_, err = parseConfig(f)
		}
		require.ErrorContains(t, err, "a.gguf: "+c.want, c.key)
		require.NotContains(t, err.Error(), "\n")
	}
	_, err := ggufFields("a.gguf", ggufMetadata(), tables{})
	require.ErrorContains(t, err, "token_embd.weight: found no such matrix")
}

func TestGGUFRopeScalingIsSpelledAsInAConfiguration(t *testing.T) {
	m := ggufMetadata()
	m["llama.rope.scaling.type"], m["llama.rope.scaling.factor"] = "yarn", 4.0
	m["llama.rope.scaling.original_context_length"] = int64(32)
	f, err := ggufFields("a.gguf", m, ggufTables())
	require.NoError(t, err)
	var got map[string]any
	require.NoError(t, json.Unmarshal(f.members["rope_scaling"], &got))
	require.Equal(t, map[string]any{"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32.0}, got)
}

// TestGGUFRopeFactorIsLlamaCpps: llama_model_base::load_hparams of llama-model.cpp.
func TestGGUFRopeFactorIsLlamaCpps(t *testing.T) {
	for _, c := range []struct {
		name   string
		keys   weights.Metadata
		kind   string
		factor float64
		most   int
	}{
		{"the key of old files", weights.Metadata{"rope.scale_linear": 4.0}, "linear", 4, 512},
		{"the key of old files, with a type", weights.Metadata{"rope.scale_linear": 4.0, "rope.scaling.type": "linear"}, "linear", 4, 512},
		{"both keys", weights.Metadata{"rope.scale_linear": 4.0, "rope.scaling.factor": 2.0}, "linear", 2, 256},
		{"no type", weights.Metadata{"rope.scaling.factor": 2.0}, "linear", 2, 256},
		{"no scaling by its type", weights.Metadata{"rope.scale_linear": 4.0, "rope.scaling.type": "none"}, "default", 0, 128},
		{"0 is 1", weights.Metadata{"rope.scale_linear": 0.0}, "default", 0, 128},
		{"linear without a factor", weights.Metadata{"rope.scaling.type": "linear"}, "default", 0, 128},
		{"yarn with the key of old files", weights.Metadata{"rope.scaling.type": "yarn", "rope.scale_linear": 4.0}, "yarn", 4, 512},
		{"yarn without a factor", weights.Metadata{"rope.scaling.type": "yarn"}, "yarn", 1, 128},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := ggufMetadata()
			for key, v := range c.keys {
				m["llama."+key] = v
			}
			f, err := ggufFields("a.gguf", m, ggufTables())
			require.NoError(t, err)
			cfg, err := parseConfig(f)
			require.NoError(t, err)
			require.Equal(t, c.kind, cfg.Rope.Type)
			require.InDelta(t, c.factor, cfg.Rope.Factor, 0)
			require.Equal(t, c.most, cfg.MaxPositions)
		})
	}
}
