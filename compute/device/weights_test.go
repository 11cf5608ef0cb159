package device_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/compute/model"
	"github.com/millrace/millrace/compute/model/fixture"
)

// allowed is how far the cpu backend may be from ref: it rounds activations to bf16 before
// they become codes, so that some codes are the neighbours of ref's.
const allowed = 0.04

// TestQuantisedWeightsAreThoseOfRef runs a fixture with quantised weights: on every
// instruction set its logits are near those of ref, whose codes are the same, are not
// those of 16-bit weights, and do not depend on how the tokens are cut into steps.
func TestQuantisedWeightsAreThoseOfRef(t *testing.T) {
	for _, name := range []string{"int8", "int4", "int4-64", "int4-128"} {
		t.Run(name, func(t *testing.T) {
			w, err := model.ParseWeights(name)
			require.NoError(t, err)
			m, err := fixture.Open("../../testdata/models/llama-gqa")
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, m.Weights.Close()) })
			tokens := m.Expected.Tokens()
			plain := open(t, "ref", "", m.Program, m.Weights, len(tokens)).run(t, tokens)
			m.Program.SetWeights(w)
			ref := open(t, "ref", "", m.Program, m.Weights, len(tokens)).run(t, tokens)
			effect := distance(plain, ref)
			t.Logf("quantising moves the logits by %.2g of their size", effect)
			require.Greater(t, effect, 0.002, "ref took no notice of the weights' type")
			for _, isa := range isas(t, "cpu") {
				s := open(t, "cpu", isa, m.Program, m.Weights, len(tokens))
				whole := s.run(t, tokens)
				off := distance(ref, whole)
				t.Logf("%s is %.2g away from ref", isa, off)
				require.LessOrEqual(t, off, allowed, isa)
				s.restart()
				for i := range tokens {
					requireSameBits(t, whole[i], s.run(t, tokens[i:i+1])[0], i)
				}
			}
		})
	}
}
