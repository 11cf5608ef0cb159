package ollama

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/call"
)

var models = []api.Model{{ID: "m", ContextLength: 1000}}

type decoder func([]byte, []api.Model, time.Time) (*call.Call, error)

func decoded(t *testing.T, decode decoder, body string) *call.Call {
	t.Helper()
	c, err := decode([]byte(body), models, time.Unix(5, 0))
	require.NoError(t, err, body)
	return c
}

func TestAChatIsTheSameChatCall(t *testing.T) {
	c := decoded(t, DecodeChat, `{"model":"m:latest","messages":[{"role":"user","content":"hi"},
		{"role":"assistant","content":"","tool_calls":[{"function":{"name":"f","arguments":{"a":1}}}]},{"role":"tool","content":"42","tool_name":"f"}],
		"options":{"temperature":0.5,"num_predict":9,"repeat_penalty":1.5,"stop":["x"],"num_ctx":4096}}`)
	require.True(t, c.Stream, "the default")
	require.Equal(t, call.OllamaChat, c.Kind)
	r := c.Requests[0]
	require.Equal(t, 9, r.MaxTokens)
	require.EqualValues(t, 1.5, r.Sampling.RepetitionPenalty)
	require.Equal(t, []string{"x"}, r.Stop)
	calls, err := json.Marshal(r.Messages[1].ToolCalls)
	require.NoError(t, err)
	require.JSONEq(t, `[{"id":"call_0","type":"function","function":{"name":"f","arguments":{"a":1}}}]`, string(calls))
	require.Equal(t, "call_0", r.Messages[2].ToolCallID)
	require.False(t, decoded(t, DecodeChat, `{"model":"m","stream":false,"messages":[{"role":"user","content":"hi"}]}`).Stream)
	require.Zero(t, decoded(t, DecodeChat, `{"model":"m","options":{"num_predict":-1},"messages":[{"role":"user","content":"hi"}]}`).Requests[0].MaxTokens)
}

func TestAPromptIsAUsersMessageUnlessItIsRaw(t *testing.T) {
	r := decoded(t, DecodeGenerate, `{"model":"m","prompt":"hi","system":"be kind"}`).Requests[0]
	require.Equal(t, []api.Message{{Role: "system", Content: "be kind"}, {Role: "user", Content: "hi"}}, r.Messages)
	c := decoded(t, DecodeGenerate, `{"model":"m","prompt":"hi","raw":true}`)
	require.Equal(t, "hi", c.Requests[0].Prompt)
	require.Equal(t, call.OllamaGenerate, c.Kind)
}

func TestABadCallNamesItsField(t *testing.T) {
	const messages = `"messages":[{"role":"user","content":"hi"}]`
	for body, want := range map[string]string{
		`{"model":"m"}`: "messages",
		`{"model":"m","options":{"temperature":9},` + messages + `}`:                  "options.temperature",
		`{"model":"m","options":{"repeat_penalty":-1},` + messages + `}`:              "options.repeat_penalty",
		`{"model":"m","options":{"num_predict":"x"},` + messages + `}`:                "options.num_predict",
		`{"model":"m","format":"xml",` + messages + `}`:                               "format",
		`{"model":"m","think":3,` + messages + `}`:                                    "think",
		`{"model":"m","template":"x",` + messages + `}`:                               "template",
		`{"model":"m","messages":[{"role":"user","content":"hi","images":["aGk="]}]}`: "messages[0].images",
		`{"model":"m","messages":[{"role":"robot","content":"hi"}]}`:                  "messages[0].role",
		`[]`: "",
	} {
		_, err := DecodeChat([]byte(body), models, time.Unix(5, 0))
		var e *api.Error
		require.ErrorAs(t, err, &e, body)
		require.Equal(t, api.CodeInvalid, e.Code, body)
		require.Equal(t, want, e.Param, "%s: %v", body, err)
		require.True(t, strings.HasPrefix(e.Message, e.Param), e.Message)
	}
}

func callOf(kind call.Kind) *call.Call {
	return &call.Call{ID: "chatcmpl-1", Kind: kind, Model: "m", N: 1, Created: time.Unix(100, 0), Parsing: call.Parsing{Format: "hermes+think", Calls: true, Held: true},
		Requests: []*api.Request{{Tools: []any{json.RawMessage(`{"type":"function","function":{"name":"f"}}`)}}}}
}

func eventsOf(texts ...string) (list []api.Event) {
	for i, text := range texts {
		list = append(list, api.Event{Seq: uint64(i + 1), Text: text, Tokens: []int32{1}})
	}
	return append(list, api.Event{Seq: uint64(len(texts) + 1), Finish: api.FinishStop, Done: true, Usage: &api.Usage{PromptTokens: 10, CompletionTokens: len(texts)}})
}

func TestAStreamHasTheTextOfTheWholeAnswer(t *testing.T) {
	texts := []string{"<thi", "nk>hm</think>", "Hel", "lo", `<tool_call>{"name": "f", "argum`, `ents": {"a": 1}}</tool_call>`}
	for _, kind := range []call.Kind{call.OllamaChat, call.OllamaGenerate} {
		e := newEncoder(callOf(kind))
		now := time.Unix(100, 0)
		e.now = func() time.Time { now = now.Add(time.Second); return now }
		var got Part
		var all Turn
		for _, ev := range eventsOf(texts...) {
			for _, line := range e.Encode(ev) {
				require.NotContains(t, string(line), "\n")
				require.False(t, got.Done)
				got = Part{}
				require.NoError(t, json.Unmarshal(line, &got))
				if kind == call.OllamaGenerate {
					all.Content, all.Thinking = all.Content+*got.Response, all.Thinking+got.Thinking
					continue
				}
				all.Content, all.Thinking = all.Content+got.Message.Content, all.Thinking+got.Message.Thinking
				all.ToolCalls = append(all.ToolCalls, got.Message.ToolCalls...)
			}
		}
		require.True(t, got.Done)
		require.Equal(t, "stop", got.DoneReason)
		require.Equal(t, 10, got.PromptEvalCount)
		require.Equal(t, len(texts), got.EvalCount)
		require.Positive(t, got.PromptEvalDuration)
		require.Positive(t, got.EvalDuration)
		require.Equal(t, got.TotalDuration, got.PromptEvalDuration+got.EvalDuration)

		in := make(chan api.Event, 10)
		for _, ev := range eventsOf(texts...) {
			in <- ev
		}
		result, err := call.Collect(context.Background(), callOf(kind), in)
		require.NoError(t, err)
		body, err := Encode(callOf(kind), result, "")
		require.NoError(t, err)
		var whole Part
		require.NoError(t, json.Unmarshal(body, &whole))
		if kind == call.OllamaGenerate {
			require.Equal(t, all.Content, *whole.Response)
			require.Equal(t, "Hello", all.Content)
			continue
		}
		require.Equal(t, all.Content, whole.Message.Content)
		require.Equal(t, all.Thinking, whole.Message.Thinking)
		require.Equal(t, all.ToolCalls, whole.Message.ToolCalls)
		require.Equal(t, []TurnCall{{CalledFunction{"f", json.RawMessage(`{"a":1}`)}}}, compact(t, whole.Message.ToolCalls))
	}
}

func compact(t *testing.T, calls []TurnCall) []TurnCall {
	t.Helper()
	for i := range calls {
		var v any
		require.NoError(t, json.Unmarshal(calls[i].Function.Arguments, &v))
		body, err := json.Marshal(v)
		require.NoError(t, err)
		calls[i].Function.Arguments = body
	}
	return calls
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"model":"m","messages":[{"role":"user","content":"hi"}],"format":"json","think":"low","options":{"stop":"x"}}`))
	f.Add([]byte(`{"model":"m","prompt":"x","raw":true,"format":{"type":"object"}}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, decode := range []decoder{DecodeChat, DecodeGenerate} {
			c, err := decode(body, models, time.Unix(5, 0))
			if (c == nil) == (err == nil) {
				t.Fatalf("%v, %v", c, err)
			}
		}
	})
}
