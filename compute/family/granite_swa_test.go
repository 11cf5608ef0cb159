package family

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestGraniteSWARotatesEachLayerByItsBase(t *testing.T) {
	changes := object{"num_key_value_heads": 2, "layer_rope_theta": []float64{1e4, 500, 0, 1e4}}
	c, err := parse(t, plain("GraniteSWAForCausalLM", changes))
	require.NoError(t, err)
	p := c.plan.(granitePlan)
	require.Equal(t, []int{0, 128, 128, 128}, c.Windows)
	require.Equal(t, []bool{false, false, true, false}, p.unrotated)
	require.Equal(t, []float64{1e4, 500, 1e4, 1e4}, []float64{p.ropes[0].Theta, p.ropes[1].Theta, p.ropes[2].Theta, p.ropes[3].Theta})
	require.True(t, p.sinks)
	require.True(t, c.TieEmbeddings)
	c, err = parse(t, plain("GraniteMoeSWAForCausalLM", object{"rope_theta": 7000, "num_local_experts": 4}))
	require.NoError(t, err)
	require.Nil(t, c.plan.(granitePlan).ropes)
	for want, thetas := range map[string]any{
		"layer_rope_theta: found 2 entries, expected one for each of 4 layers": []int{1, 2},
		"layer_rope_theta: found 1, expected 0 or a number in 2..1e+12":        []int{0, 1, 0, 0},
		"layer_rope_theta: found 5, expected a list of numbers":                5,
	} {
		requireFault(t, "GraniteSWAForCausalLM", want, with(changes, object{"layer_rope_theta": thetas}))
	}
}

func TestHyperCLOVAXDefaults(t *testing.T) {
	c, err := parse(t, plain("HyperCLOVAXForCausalLM", object{"residual_multiplier": 0.5, "logits_scaling": 4}))
	require.NoError(t, err)
	p := c.plan.(granitePlan)
	require.InDelta(t, 1/5.656854, p.attentionScale, 1e-6, "by the size of a head")
	require.InDelta(t, 0.25, p.logitsScaling, 0)
	require.InDelta(t, 4e-6, c.Eps, 1e-12, "of norms of the residual")
	require.InDelta(t, 1e-6, p.branchEps, 1e-12)
	require.Equal(t, "post_norm2", p.norms.mlpDone)
	c, err = parse(t, plain("HyperCLOVAXForCausalLM", object{"use_post_norm": false, "attention_multiplier": 0.3}))
	require.NoError(t, err)
	require.Equal(t, layerNorms{}, c.plan.(granitePlan).norms)
	require.InDelta(t, 0.3, c.plan.(granitePlan).attentionScale, 1e-6)
}
