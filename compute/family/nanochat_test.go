package family

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/compute/model"
)

func TestNanoChatCapsLogitsUnlessItSaysNull(t *testing.T) {
	c, p := llamaPlanOf(t, "NanoChatForCausalLM", nil)
	require.InDelta(t, 15, p.finalSoftcap, 0)
	require.Equal(t, model.ActReLU2, c.Activation)
	_, p = llamaPlanOf(t, "NanoChatForCausalLM", object{"final_logit_softcapping": nil})
	require.Zero(t, p.finalSoftcap)
}
