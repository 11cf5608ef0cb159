package family

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCohereCompassRotatesLayersByTheirType(t *testing.T) {
	plain, other := object{"rope_type": "default", "rope_theta": 5000}, object{"rope_type": "default", "rope_theta": 9000}
	compass := func(ropes object) (*Config, error) {
		return parse(t, object{"architectures": []string{"CohereCompassForConditionalGeneration"}, "text_config": with(llamaJSON(), object{
			"hidden_size": 60, "layer_types": []string{sliding, full, sliding}, "rope_parameters": ropes,
		})})
	}
	for _, c := range []struct {
		ropes     object
		unrotated []bool
		theta     float64
	}{
		{object{sliding: plain, full: nil}, []bool{false, true, false}, 5000},
		{object{sliding: nil, full: other}, []bool{true, false, true}, 9000},
		{object{sliding: plain, full: plain}, []bool{false, false, false}, 5000},
		{object{"rope_type": "default", "rope_theta": 7000}, []bool{false, false, false}, 7000},
	} {
		cfg, err := compass(c.ropes)
		require.NoError(t, err)
		require.Equal(t, c.unrotated, cfg.plan.(blockPlan).unrotated)
		require.InDelta(t, c.theta, cfg.Rope.Theta, 0)
		require.InDelta(t, 1, cfg.plan.(blockPlan).logitScale, 0)
	}
	_, err := compass(object{sliding: plain, full: other})
	require.ErrorContains(t, err, "rope_parameters.full_attention: found")
}

func TestApertus15LeavesTokensWithoutAnOutputOut(t *testing.T) {
	c, err := parse(t, object{"architectures": []string{"Apertus1p5ForConditionalGeneration"},
		"text_config": with(llamaJSON(), object{"output_vocab_size": 100})})
	require.NoError(t, err)
	require.Equal(t, 100, c.Vocab)
}

func TestMuseGlimmerRotatesAllButEveryFourthLayerFromTheLast(t *testing.T) {
	c, err := parse(t, object{"architectures": []string{"MuseGlimmerForConditionalGeneration"},
		"text_config": with(llamaJSON(), object{"num_hidden_layers": 6, "sliding_window": 7})})
	require.NoError(t, err)
	require.Equal(t, []bool{false, true, false, false, false, true}, c.plan.(musePlan).unrotated)
	require.Equal(t, []int{7, 0, 7, 7, 7, 0}, c.Windows)
	_, err = parse(t, object{"architectures": []string{"MuseGlimmerForConditionalGeneration"},
		"text_config": with(llamaJSON(), object{"layer_rope_theta": []int{0}})})
	require.ErrorContains(t, err, "layer_rope_theta: found 1 entries, expected one for each of 3 layers")
}
