package gateway

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/actors/msg"
	"github.com/millrace/millrace/api"
)

func encoderRequest(pooling api.Pooling) *api.Request {
	return &api.Request{ID: "r", Model: "m", N: 1, MaxTokens: 1, IgnoreEOS: true, TopLogprobs: -1, Pool: &api.Pool{Pooling: pooling}}
}

func TestATextForAnEncoderHasNoMoreTokensThanAStep(t *testing.T) {
	limits := modelLimits{context: 200, pool: 400, slabTokens: 16, vocab: 9, rows: 150}
	r := newRequest(encoderRequest(api.PoolText), limits)
	require.NoError(t, r.tokenized(prompt{ids: make([]int32, 150), second: 7}))
	require.Equal(t, 150, r.needs(), "nothing follows")
	require.Equal(t, 150, r.end())
	gen, _ := r.start(0, func() msg.SeqID { return 1 })
	require.Equal(t, 7, gen.Second)

	r = newRequest(encoderRequest(api.PoolText), limits)
	err := r.tokenized(prompt{ids: make([]int32, 151)})
	require.ErrorContains(t, err,
		"the text has 151 tokens, expected at most 150: an encoder computes a text in one step (rows of a step 150, context of the model 200 tokens)")
	require.Equal(t, "context_length_exceeded", api.AsError(err).Reason)

	limits.rows = 500
	require.NoError(t, newRequest(encoderRequest(api.PoolText), limits).tokenized(prompt{ids: make([]int32, 200)}),
		"it may fill the context")
	require.ErrorContains(t, newRequest(encoderRequest(api.PoolText), limits).tokenized(prompt{ids: make([]int32, 201)}),
		"expected at most 200")

	cut := encoderRequest(api.PoolText)
	cut.Truncate = true
	r = newRequest(cut, limits)
	ids := make([]int32, 300)
	ids[299] = 3
	require.NoError(t, r.tokenized(prompt{ids: ids}))
	require.Len(t, r.prompt, 200)
	require.Equal(t, int32(3), r.prompt[199], "the special token at the end stays")
	require.Zero(t, r.prompt[198])
}

func TestEncodersGenerateNothing(t *testing.T) {
	encoder := &model{Model: api.Model{ID: "m", WeightFacts: api.WeightFacts{Embedding: api.Embedding{Width: 8, Encoder: true, Rows: 100}}}}
	decoder := &model{Model: api.Model{ID: "m", WeightFacts: api.WeightFacts{Embedding: api.Embedding{Width: 8}}}}
	require.NoError(t, checkPool(encoderRequest(api.PoolText), encoder))
	require.NoError(t, checkPool(encoderRequest(api.PoolClasses), encoder))
	require.NoError(t, checkPool(encoderRequest(api.PoolMean), decoder))
	require.ErrorContains(t, checkPool(&api.Request{N: 1}, encoder),
		`model "m" is an encoder, which generates nothing: expected a call of /v1/embeddings`)
	require.ErrorContains(t, checkPool(encoderRequest(api.PoolMean), encoder), "is an encoder")
	require.ErrorContains(t, checkPool(encoderRequest(api.PoolText), decoder), `found "text", which is of encoders`)
	pair := encoderRequest(api.PoolMean)
	pair.Second = "b"
	require.ErrorContains(t, checkPool(pair, decoder), "is no encoder")
	scored := encoderRequest(api.PoolText)
	scored.PromptLogprobs = new(int)
	require.ErrorContains(t, checkPool(scored, encoder), "not supported together with a vector")
}
