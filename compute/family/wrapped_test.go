package family

import (
	"cmp"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestWrappedModelsReadTheFamilyOfTheirTextModel, with the sizes of its class where text_config leaves them out.
func TestWrappedModelsReadTheFamilyOfTheirTextModel(t *testing.T) {
	small := object{"vocab_size": 131, "hidden_size": 48, "intermediate_size": 104, "num_hidden_layers": 2, "num_attention_heads": 6,
		"num_key_value_heads": 2, "kv_lora_rank": 24, "hybrid_override_pattern": "M-"}
	for class, kind := range wrapped() {
		kind = cmp.Or(wrappedTexts()[kind].kind, kind)
		for text, want := range map[string]string{"qwen2": "Qwen2ForCausalLM", "mistral": "MistralForCausalLM",
			"": find(func(f *family) bool { return f.kind == kind }).class} {
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
	c, err := parse(t, object{"architectures": []string{"LlavaForConditionalGeneration"},
		"text_config": object{"vocab_size": 32064, "rms_norm_eps": 1e-5}})
	require.NoError(t, err)
	require.Equal(t, []int{32064, 4096, 11008, 32, 32, 2048}, []int{c.Vocab, c.Hidden, c.Intermediate, c.Layers, c.Heads, c.MaxPositions})
	require.InDelta(t, 1e-5, c.Eps, 1e-9)
	c, err = parse(t, object{"architectures": []string{"InternVLForConditionalGeneration"}, "vision_config": object{},
		"text_config": object{}})
	require.NoError(t, err)
	require.InDelta(t, 10000, c.Rope.Theta, 0, "not that of Qwen2-VL")
	require.InDelta(t, 1e-6, c.Eps, 1e-12)
	require.True(t, c.TieEmbeddings, "a head goes before it")
}

// TestFactorsOfLogitsAreThoseOfTheWholeModel: transformers leaves those of the text model out, but for some classes.
func TestFactorsOfLogitsAreThoseOfTheWholeModel(t *testing.T) {
	granite := func(class string) granitePlan {
		c, err := parse(t, object{"architectures": []string{class},
			"text_config": with(llamaJSON(), object{"model_type": "hyperclovax", "logits_scaling": 4})})
		require.NoError(t, err)
		return c.plan.(granitePlan)
	}
	require.InDelta(t, 1, granite("LlavaForConditionalGeneration").logitsScaling, 0)
	require.InDelta(t, 0.25, granite("HyperCLOVAXVisionV2ForConditionalGeneration").logitsScaling, 0, "a factor")
	c, err := parse(t, object{"architectures": []string{"AyaVisionForConditionalGeneration"},
		"text_config": with(llamaJSON(), object{"model_type": "cohere2"})})
	require.NoError(t, err)
	require.InDelta(t, 1, c.plan.(blockPlan).logitScale, 0)
	for class, want := range map[string]float64{"LlavaForConditionalGeneration": 0, "PaliGemmaForConditionalGeneration": 30} {
		c, err := parse(t, object{"architectures": []string{class},
			"text_config": with(llamaJSON(), object{"model_type": "gemma2", "layer_types": nil})})
		require.NoError(t, err)
		require.InDelta(t, want, c.plan.(llamaPlan).finalSoftcap, 0)
	}
}

func TestWrappedModelsOfUnknownTextModelsAreRefused(t *testing.T) {
	_, err := parse(t, object{"architectures": []string{"LlavaNextForConditionalGeneration"},
		"text_config": with(llamaJSON(), object{"model_type": "qwen9"})})
	require.ErrorContains(t, err,
		`text_config.model_type: found "qwen9", expected that of a text model of docs/models.md, where the nearest are qwen, qwen2, qwen3`)
}
