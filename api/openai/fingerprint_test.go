package openai

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/apitest"
	"github.com/millrace/millrace/api/call"
)

// collected is the whole answer to a completion whose engine follows the script.
func collected(t *testing.T, body string, script func(*api.Request, *apitest.Stream)) (a TextCompletion) {
	t.Helper()
	engine := apitest.New(script)
	c, err := DecodeCompletion([]byte(body), engine.Models(), time.Now())
	require.NoError(t, err)
	answer, err := call.NewDirect(engine).Run(t.Context(), c)
	require.NoError(t, err)
	defer answer.Close()
	result, err := call.Collect(t.Context(), c, answer.Events(t.Context()))
	require.NoError(t, err)
	data, err := EncodeAnswer(c, result, "unknown")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(data, &a))
	for _, r := range engine.Requests() {
		require.True(t, r.Buffered)
	}
	return a
}

func pinned(digest string, ev api.Event) api.Event {
	ev.Pin = &api.Pin{Numerics: digest}
	return ev
}

// TestAnAnswerThatBeginsAgainHasNothingOfWhatItDropped, and one that stands beside it in the
// same call keeps all.
func TestAnAnswerThatBeginsAgainHasNothingOfWhatItDropped(t *testing.T) {
	a := collected(t, `{"model":"tiny-chat","prompt":["p","q"],"n":2,"echo":true,"max_tokens":4,"return_token_ids":true}`,
		func(r *api.Request, s *apitest.Stream) {
			s.Send(pinned("a", api.Event{Text: "x", Tokens: []int32{1}}))
			if r.Prompt == "q" {
				s.Send(api.Event{Choice: 1, Text: "z", Tokens: []int32{3}, Finish: api.FinishStop})
				s.Send(api.Event{Restart: true})
				s.Send(pinned("b", api.Event{Choice: 1, Text: "y", Tokens: []int32{2}}))
			}
			s.Send(api.Event{Choice: 1, Finish: api.FinishStop})
			s.Send(api.Event{Finish: api.FinishStop, Done: true, Usage: &api.Usage{PromptTokens: 1, CompletionTokens: 1}})
		})
	var texts []string
	for _, c := range a.Choices {
		texts = append(texts, c.Text)
	}
	require.Equal(t, []string{"px", "p", "q", "qy"}, texts)
	require.Equal(t, []int32{2}, a.Choices[3].TokenIDs)
	require.Equal(t, "fp_a,fp_b", a.SystemFingerprint)
	require.Equal(t, 2, a.Usage.CompletionTokens)
}

func TestAChunkNamesTheDigestThatItsOwnRequestIsBoundTo(t *testing.T) {
	c := NewChunks(&call.Call{ID: "cmpl-x", Kind: call.Completion, N: 2, Model: "m", Requests: []*api.Request{{}, {}}}, "unknown")
	fingerprint := func(chunks [][]byte) string {
		var x struct {
			Print string `json:"system_fingerprint"`
		}
		require.NoError(t, json.Unmarshal(chunks[0], &x))
		return x.Print
	}
	require.Equal(t, "unknown", fingerprint(c.Encode(api.Event{Text: "a"})))
	require.Equal(t, "fp_b", fingerprint(c.Encode(pinned("b", api.Event{Choice: 3, Text: "a"}))))
	require.Equal(t, "fp_b", fingerprint(c.Encode(api.Event{Choice: 2, Text: "a"})))
	require.Equal(t, "unknown", fingerprint(c.Encode(api.Event{Choice: 1, Text: "a"})))
	c.Observe(pinned("a", api.Event{}))
	require.Equal(t, "fp_a", fingerprint(c.Open()))
	require.Equal(t, "fp_a", fingerprint(c.Encode(pinned("", api.Event{Text: "a"}))), "no digest names nothing")
}
