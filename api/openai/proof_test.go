package openai

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/apitest"
	"github.com/millrace/millrace/api/call"
	"github.com/millrace/millrace/api/proof"
)

func TestAProofOfAnEarlierAnswerAsksForThatAnswer(t *testing.T) {
	const earlier = `"proof":{"version":1,"created":5,"settings":{"seed":"18446744073709551615","top_k":"3"},
		"prompts":[{"numerics":"n1","text":"t1","hash":"h"},{"numerics":"n2","text":"t2"}]}`
	c, err := DecodeCompletion([]byte(`{"prompt":["a","b"],`+earlier+`}`), served, arrival)
	require.NoError(t, err)
	require.True(t, c.Proof)
	require.True(t, c.TokenIDs)
	for i, want := range []api.Pin{{Numerics: "n1", Text: "t1"}, {Numerics: "n2", Text: "t2"}} {
		r := c.Requests[i]
		require.Equal(t, &want, r.Equal)
		require.Equal(t, ^uint64(0), r.Sampling.Seed)
		require.Zero(t, r.Sampling.TopK, "the request itself says what it wants")
		require.Equal(t, time.Unix(5, 0), r.TemplateClock())
		require.Equal(t, arrival, r.Arrival)
	}
	c, err = DecodeCompletion([]byte(`{"prompt":["a","b"],"seed":7,`+earlier+`}`), served, arrival)
	require.NoError(t, err)
	require.EqualValues(t, 7, c.Requests[1].Sampling.Seed)

	for body, want := range map[string]bool{`"proof":true`: true, `"proof":false`: false, `"proof":null`: false} {
		c, err := DecodeChat([]byte(`{`+userHi+`,`+body+`}`), served, arrival)
		require.NoError(t, err)
		require.Equal(t, want, c.Proof, body)
		require.Equal(t, want, c.TokenIDs, body)
		require.Nil(t, c.Requests[0].Equal)
		require.Equal(t, arrival, c.Requests[0].TemplateClock())
	}
}

func TestABadProofIsNamed(t *testing.T) {
	for value, want := range map[string]string{
		`"yes"`: "proof: expected true, false or the proof of an answer",
		`{}`:    "proof.prompts: expected 1, one for each prompt of the request, found 0",
		`{"prompts":[{"numerics":"n","text":"t"},{"numerics":"n","text":"t"}]}`: "found 2",
		`{"prompts":[{"numerics":"n"}]}`:                                        "proof.prompts[0].text: expected a digest, found none",
		`{"prompts":[3]}`:                                                       "proof.prompts[0]: expected an object",
		`{"version":2,"prompts":[{"numerics":"n","text":"t"}]}`:                 "proof.version: expected an integer from 1 to 1, found 2",
		`{"created":-1,"prompts":[{"numerics":"n","text":"t"}]}`:                "proof.created: expected an integer",
		`{"settings":{"seed":"-1"},"prompts":[{"numerics":"n","text":"t"}]}`:    "proof.settings.seed: expected an integer",
		`{"settings":{"seed":5},"prompts":[{"numerics":"n","text":"t"}]}`:       "proof.settings.seed: expected a string",
		`{"prompts":[{"numerics":"n","text":["t"]}]}`:                           "proof.prompts[0].text: expected a string",
	} {
		_, err := DecodeChat([]byte(`{`+userHi+`,"proof":`+value+`}`), served, arrival)
		require.ErrorContains(t, err, want, value)
	}
}

// TestAStreamAndAWholeAnswerHaveTheSameProof, in the last chunk and beside the choices, with the finish reasons that the client gets.
func TestAStreamAndAWholeAnswerHaveTheSameProof(t *testing.T) {
	script := func(_ *api.Request, s *apitest.Stream) {
		s.Send(api.Event{Pin: &api.Pin{Numerics: "n", Text: "t", Prompt: "h"}, Text: "x", Tokens: []int32{1}})
		s.Send(api.Event{Tokens: []int32{2}})
		s.Send(api.Event{Choice: 1, Tokens: []int32{3}, Finish: api.FinishLength})
		s.Send(api.Event{Text: "y", Finish: api.FinishStop, Done: true, Usage: &api.Usage{PromptTokens: 1, CompletionTokens: 3}})
	}
	const fields = `"prompt":"p","n":2,"seed":3,"proof":true`
	whole := collected(t, `{`+fields+`}`, script)
	require.NotNil(t, whole.Proof)
	require.Equal(t, []proof.PromptProof{{Numerics: "n", Text: "t", Hash: "h"}}, whole.Proof.Prompts)
	require.Equal(t, []proof.ChoiceProof{
		{Tokens: 2, Hash: api.HashPrompt([]int32{1, 2}), FinishReason: "stop"},
		{Tokens: 1, Hash: api.HashPrompt([]int32{3}), FinishReason: "length"},
	}, whole.Proof.Choices)
	require.Equal(t, []int32{1, 2}, whole.Choices[0].TokenIDs, "a proof comes with the tokens")
	require.Equal(t, "3", whole.Proof.Settings["seed"])

	for usage, options := range map[bool]string{false: "", true: `,"stream_options":{"include_usage":true}`} {
		engine := apitest.New(script)
		c, err := DecodeCompletion([]byte(`{`+fields+`,"stream":true`+options+`}`), engine.Models(), time.Now())
		require.NoError(t, err)
		answer, err := call.NewDirect(engine).Run(t.Context(), c)
		require.NoError(t, err)
		chunks := NewChunks(c, "fp")
		var last struct {
			Choices []any           `json:"choices"`
			Usage   json.RawMessage `json:"usage"`
			Proof   *proof.Proof    `json:"proof"`
		}
		proofs := 0
		for ev := range call.All(t.Context(), answer.Events(t.Context())) {
			for _, chunk := range chunks.Encode(ev) {
				last.Proof = nil
				require.NoError(t, json.Unmarshal(chunk, &last), string(chunk))
				if last.Proof != nil {
					proofs++
				}
			}
		}
		answer.Close()
		require.Equal(t, 1, proofs)
		require.Empty(t, last.Choices)
		require.Equal(t, usage, len(last.Usage) > 0 && string(last.Usage) != "null")
		last.Proof.Created = whole.Proof.Created // a second may have passed
		require.Equal(t, whole.Proof, last.Proof)
	}
	require.Nil(t, collected(t, `{"prompt":"p","n":2}`, script).Proof, "only on request")
}
