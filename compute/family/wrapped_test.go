package family

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestWrappedModelsReadTheFamilyOfTheirTextModel, with the sizes of its class where text_config leaves them out.
func TestWrappedModelsReadTheFamilyOfTheirTextModel(t *testing.T) {
	small := object{"vocab_size": 131, "hidden_size": 48, "intermediate_size": 104, "num_hidden_layers": 2, "num_attention_heads": 6, "num_key_value_heads": 2, "kv_lora_rank": 24}
	for class, kind := range wrapped() {
		for text, want := range map[string]string{"qwen2": "Qwen2ForCausalLM", "mistral": "MistralForCausalLM", "": find(func(f *family) bool { return f.kind == kind }).class} {
			config := with(small, object{"model_type": text})
			if text == "" {
				delete(config, "model_type")
			}
			c, err := parse(t, object{"architectures": []string{class}, "vision_config": object{}, "text_config": config})
			require.NoError(t, err, "%s with %q", class, text)
			require.Equal(t, want, c.Architecture, class)
			require.Equal(t, []int{131, 48, 2}, []int{c.Vocab, c.Hidden, c.Layers}, class)
		}
	}
	c, err := parse(t, object{"architectures": []string{"LlavaForConditionalGeneration"}, "text_config": object{"vocab_size": 32064, "rms_norm_eps": 1e-5}})
	require.NoError(t, err)
	require.Equal(t, []int{32064, 4096, 11008, 32, 32, 2048}, []int{c.Vocab, c.Hidden, c.Intermediate, c.Layers, c.Heads, c.MaxPositions})
	require.InDelta(t, 1e-5, c.Eps, 1e-9)
	c, err = parse(t, object{"architectures": []string{"InternVLForConditionalGeneration"}, "vision_config": object{}, "text_config": object{}})
	require.NoError(t, err)
	require.InDelta(t, 10000, c.Rope.Theta, 0, "not that of Qwen2-VL")
	require.InDelta(t, 1e-6, c.Eps, 1e-12)
	require.True(t, c.TieEmbeddings, "a head goes before it")
}

// TestTextModelsWithAFactorOfLogitsAreNotReadFromWrappedModels: transformers leaves the factor out there.
func TestTextModelsWithAFactorOfLogitsAreNotReadFromWrappedModels(t *testing.T) {
	for _, kind := range []string{"cohere2", "granite", "gemma2", "unknown"} {
		_, err := parse(t, object{"architectures": []string{"LlavaNextForConditionalGeneration"}, "text_config": with(llamaJSON(), object{"model_type": kind})})
		require.ErrorContains(t, err, `text_config.model_type: found "`+kind+`", expected one of deepseek_v3, lfm2, llama`)
	}
}
