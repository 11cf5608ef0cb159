package family

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/compute/model"
)

func TestNomicExpertsAreInEachNthLayer(t *testing.T) {
	const class = "NomicBertModel"
	two := object{
		"num_hidden_layers": 5, "activation_function": "gelu", "qkv_proj_bias": true, "mlp_fc1_bias": true, "mlp_fc2_bias": true,
		"moe_every_n_layers": 2, "num_experts": 8, "moe_top_k": 2,
	}
	c, err := parse(t, with(bertJSON(class), two))
	require.NoError(t, err)
	p := c.plan.(bertPlan)
	require.Equal(t, []any{false, model.ActGELUErf, true, true, true}, []any{p.gated, c.Activation, c.QKVBias, c.OutBias, c.MLPBias})
	require.Equal(t, []int{0, 2, 4}, p.experts.dense)
	require.Equal(t, model.Routing{Experts: 8, TopK: 2, Scale: 1}, p.experts.routing)
	for want, changes := range map[string]object{
		"moe_normalize_expert_weights: found true, expected false": {"moe_normalize_expert_weights": true},
		"expert_choice_router: found true, expected false":         {"expert_choice_router": true},
		"num_shared_experts: found 1, expected 0":                  {"num_shared_experts": 1},
		"ffn_div: found 2, expected 1":                             {"ffn_div": 2},
		"mlp_fc2_bias: found false, expected true, as mlp_fc1":     {"mlp_fc2_bias": false},
		"qkv_proj_bias: found true, expected false":                {"activation_function": "swiglu"},
		`activation_function: found "geglu", expected swiglu or`:   {"activation_function": "geglu"},
		"moe_top_k: found 9, expected at most the 8 experts":       {"moe_top_k": 9},
	} {
		_, err := parse(t, with(with(bertJSON(class), two), changes))
		require.ErrorContains(t, err, want)
	}
}
