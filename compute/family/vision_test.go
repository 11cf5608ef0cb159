package family

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestModelsWithImagesReadTheirTextModel, in text_config or beside vision_config, with the defaults of its class.
func TestModelsWithImagesReadTheirTextModel(t *testing.T) {
	text := with(llamaJSON(), object{"architectures": nil, "rope_theta": "absent", "rms_norm_eps": "absent"})
	for class, want := range map[string]struct {
		read  string
		theta float64
		eps   float32
	}{
		"Qwen2VLForConditionalGeneration":    {"Qwen2ForCausalLM", 1e6, 1e-5},
		"Qwen2_5_VLForConditionalGeneration": {"Qwen2ForCausalLM", 1e6, 1e-5},
		"Qwen3VLForConditionalGeneration":    {"Qwen3ForCausalLM", 500000, 1e-6},
		"Mistral3ForConditionalGeneration":   {"MistralForCausalLM", 10000, 1e-6},
	} {
		for _, config := range []object{
			{"architectures": []string{class}, "vision_config": object{"depth": 1}, "text_config": text},
			with(text, object{"architectures": []string{class}, "vision_config": object{"depth": 1}}),
		} {
			c, err := parse(t, config)
			require.NoError(t, err)
			require.Equal(t, want.read, c.Architecture)
			require.InDelta(t, want.theta, c.Rope.Theta, 0)
			require.InDelta(t, want.eps, c.Eps, 1e-12)
		}
	}
	_, err := parse(t, object{"architectures": []string{"Qwen2VLForConditionalGeneration"}, "vision_config": object{},
		"text_config": object{"vocab_size": 0}})
	require.ErrorContains(t, err, "text_config.vocab_size: found 0")
}

// TestMRopeOfTextIsThePlainRotation: the three positions of a token of text are the same.
func TestMRopeOfTextIsThePlainRotation(t *testing.T) {
	c, err := parse(t, with(llamaJSON(), object{"rope_scaling": object{"type": "mrope", "mrope_section": []int{1, 2, 2}}}))
	require.NoError(t, err)
	require.Equal(t, "default", c.Rope.Type)
}

// TestDynamicRotationIsThePlainOne of sequences of up to max_position_embeddings.
func TestDynamicRotationIsThePlainOne(t *testing.T) {
	plain, err := parse(t, llamaJSON())
	require.NoError(t, err)
	c, err := parse(t, with(llamaJSON(), object{"rope_scaling": object{"type": "dynamic", "factor": 4}}))
	require.NoError(t, err)
	require.Equal(t, plain.MaxPositions, c.MaxPositions)
	want, _ := plain.Rope.Table(8)
	got, scale := c.Rope.Table(8)
	require.Equal(t, want, got)
	require.InDelta(t, 1, scale, 0)
	_, err = parse(t, with(llamaJSON(), object{"rope_scaling": object{"type": "dynamic"}}))
	require.ErrorContains(t, err, "rope_scaling.factor: found nothing")
}
