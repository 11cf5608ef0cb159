package family

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/compute/model"
)

// blockJSON is a configuration with what the classes of layer norms require, and nothing else.
func blockJSON(class string, changes object) object {
	return with(object{
		"architectures": []string{class}, "vocab_size": 131, "hidden_size": 256, "intermediate_size": 104,
		"num_hidden_layers": 2, "num_attention_heads": 8,
	}, changes)
}

func TestStarcoder2Defaults(t *testing.T) {
	c, err := parse(t, blockJSON("Starcoder2ForCausalLM", nil))
	require.NoError(t, err)
	require.Equal(t, []int{8, 2, 32, 4096}, []int{c.Heads, c.KVHeads, c.HeadDim, c.MaxPositions})
	require.InDelta(t, 1e-5, c.Eps, 1e-12)
	require.Equal(t, model.ActGELUTanh, c.Activation)
	require.True(t, c.TieEmbeddings && c.QKVBias && c.OutBias && c.MLPBias)
	require.Nil(t, c.Windows)
	require.Equal(t, 10000.0, c.Rope.Theta)
	_, err = parse(t, blockJSON("Starcoder2ForCausalLM", object{"partial_rotary_factor": 0.5}))
	require.ErrorContains(t, err, "partial_rotary_factor: found 0.5, expected 1")
}
