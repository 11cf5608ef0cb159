package ollama

import (
	"context"
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/call"
	"github.com/millrace/millrace/compute/sample"
)

var models = []api.Model{{ID: "m", WeightFacts: api.WeightFacts{ContextLength: 1000}}}

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
	sampling := decoded(t, DecodeChat, `{"model":"m","options":{"dry_multiplier":0.8,"dry_base":2,"dry_allowed_length":1,"dry_penalty_last_n":9,"dry_sequence_breakers":["x"],
		"xtc_probability":0.5,"xtc_threshold":0.2,"top_n_sigma":2},"messages":[{"role":"user","content":"hi"}]}`).Requests[0].Sampling
	require.Equal(t, &sample.DRY{Multiplier: 0.8, Base: 2, Allowed: 1, Last: 9, Breakers: []string{"x"}}, sampling.DRY)
	require.Equal(t, sample.XTC{Probability: 0.5, Threshold: 0.2}, sampling.XTC)
	require.InDelta(t, 2, sampling.TopNSigma, 0)
	require.Zero(t,
		decoded(t, DecodeChat,
			`{"model":"m","options":{"num_predict":-1},"messages":[{"role":"user","content":"hi"}]}`).Requests[0].MaxTokens)
}

func TestAPromptIsAUsersMessageUnlessItIsRaw(t *testing.T) {
	r := decoded(t, DecodeGenerate, `{"model":"m","prompt":"hi","system":"be kind"}`).Requests[0]
	require.Equal(t, []api.Message{{Role: "system", Content: "be kind"}, {Role: "user", Content: "hi"}}, r.Messages)
	c := decoded(t, DecodeGenerate, `{"model":"m","prompt":"hi","raw":true}`)
	require.Equal(t, "hi", c.Requests[0].Prompt)
	require.Equal(t, call.OllamaGenerate, c.Kind)
}

func TestAResultBelongsToTheCallWithItsID(t *testing.T) {
	r := decoded(t, DecodeChat, `{"model":"m","messages":[{"role":"user","content":"hi"},
		{"role":"assistant","tool_calls":[{"id":"x","function":{"name":"f"}},{"id":"y","function":{"name":"f"}},{"function":{"name":"f"}}]},
		{"role":"tool","content":"2","tool_call_id":"y"},{"role":"tool","content":"9","tool_call_id":"z"},{"role":"tool","content":"1"},{"role":"tool","content":"3"}]}`).Requests[0]
	var ids []string
	for _, m := range r.Messages[2:] {
		ids = append(ids, m.Content+" "+m.ToolCallID)
	}
	require.Equal(t, []string{"2 y", "9 z", "1 x", "3 call_2"}, ids)
}

// TestACallWithoutAPromptGeneratesNothing: clients of Ollama load a model that way.
func TestACallWithoutAPromptGeneratesNothing(t *testing.T) {
	for body, decode := range map[string]decoder{
		`{"model":"m","messages":[],"format":"json"}`: DecodeChat, `{"model":"m","logprobs":true}`: DecodeChat,
		`{"model":"m","prompt":"","system":"be kind"}`: DecodeGenerate,
		`{"model":"m","raw":true,"keep_alive":0}`:      DecodeGenerate,
	} {
		c := decoded(t, decode, body)
		r := c.Requests[0]
		require.Equal(t, &api.Pool{Pooling: api.PoolNone}, r.Pool, body)
		require.NotEmpty(t, r.Messages)
		require.Nil(t, r.Grammar)
		want := Part{Model: "m", Done: true, DoneReason: "load", LoadDuration: new(int64)}
		if c.Kind == call.OllamaChat {
			want.Message = &Turn{Role: "assistant"}
		} else {
			want.Response = new(string)
		}
		end := api.Event{Seq: 1, Finish: api.FinishLength, Done: true, Usage: &api.Usage{PromptTokens: 3}}
		lines := NewStream(c, "").Encode(end)
		require.Len(t, lines, 1)
		whole, err := Encode(c, &call.Result{Choices: make([]call.Choice, 1), Usage: *end.Usage}, "")
		require.NoError(t, err)
		for _, line := range [][]byte{lines[0], whole} {
			var got Part
			require.NoError(t, json.Unmarshal(line, &got))
			require.Positive(t, got.TotalDuration)
			want.CreatedAt, want.TotalDuration = got.CreatedAt, got.TotalDuration
			require.Equal(t, want, got)
		}
	}
	require.Nil(t, decoded(t, DecodeGenerate, `{"model":"m","prompt":"hi"}`).Requests[0].Pool)
}

func TestEachTokenHasItsLogProbability(t *testing.T) {
	c := decoded(t, DecodeChat, `{"model":"m","messages":[{"role":"user","content":"hi"}],"logprobs":true,"top_logprobs":1}`)
	require.Equal(t, 1, c.Requests[0].TopLogprobs)
	require.Equal(t, 2,
		decoded(t, DecodeGenerate, `{"model":"m","prompt":"hi","raw":true,"logprobs":true,"top_logprobs":2}`).Requests[0].TopLogprobs)
	require.Equal(t, -1, decoded(t, DecodeGenerate, `{"model":"m","prompt":"hi","top_logprobs":2}`).Requests[0].TopLogprobs)

	impossible := float32(math.Inf(-1))
	tokens := []api.TokenLogprob{
		{Token: 1, Text: "é", Bytes: []byte("é"), Logprob: -0.5,
			Top: []api.TokenLogprob{{Token: 2, Text: "e", Bytes: []byte("e"), Logprob: impossible}}},
		{Token: 3, Text: "!", Bytes: []byte("!"), Logprob: -1},
	}
	want := []Logprob{{"é", -0.5, []int{195, 169}, []Logprob{{"e", -9999, []int{101}, nil}}}, {"!", -1, []int{33}, nil}}

	e := NewStream(c, "")
	var got []Logprob
	for _, ev := range []api.Event{
		{Seq: 1, Text: "", Tokens: []int32{1}, Logprobs: tokens[:1]}, // its text comes later
		{Seq: 2, Text: "é!", Tokens: []int32{3}, Logprobs: tokens[1:]}, {Seq: 3, Finish: api.FinishStop, Done: true, Usage: &api.Usage{}},
	} {
		for _, line := range e.Encode(ev) {
			var part Part
			require.NoError(t, json.Unmarshal(line, &part))
			got = append(got, part.Logprobs...)
		}
	}
	require.Equal(t, want, got)

	whole, err := Encode(c, &call.Result{Choices: []call.Choice{{Text: "é!", Logprobs: tokens}}}, "")
	require.NoError(t, err)
	var part Part
	require.NoError(t, json.Unmarshal(whole, &part))
	require.Equal(t, want, part.Logprobs)
}

func TestTheCardNamesWhatAModelCanDo(t *testing.T) {
	for want, m := range map[string]api.Model{
		`["completion"]`: {ID: "m", WeightFacts: api.WeightFacts{Embedding: api.Embedding{Width: 4,
			Pooling: api.PoolLast}}},
		`["completion","embedding"]`: {ID: "m", WeightFacts: api.WeightFacts{Embedding: api.Embedding{Width: 4,
			Pooling: api.PoolMean, Named: true}}},
		`["completion","insert"]`:           {ID: "m", TextFacts: api.TextFacts{Infill: []string{"a", "b", "c"}}},
		`["completion","tools","thinking"]`: {ID: "m", TextFacts: api.TextFacts{Format: "hermes+think"}},
	} {
		answer, err := Show([]byte(`{"model":"m"}`), []api.Model{m})
		require.NoError(t, err)
		var c Card
		require.NoError(t, json.Unmarshal(answer, &c))
		got, err := json.Marshal(c.Capabilities)
		require.NoError(t, err)
		require.Equal(t, want, string(got))
	}
}

func TestABadCallNamesItsField(t *testing.T) {
	const messages = `"messages":[{"role":"user","content":"hi"}]`
	for body, want := range map[string]string{
		`{"model":"m","options":{"temperature":9},` + messages + `}`:                  "options.temperature",
		`{"model":"m","options":{"repeat_penalty":-1},` + messages + `}`:              "options.repeat_penalty",
		`{"model":"m","options":{"dry_base":0},` + messages + `}`:                     "options.dry_base",
		`{"model":"m","options":{"xtc_probability":2},` + messages + `}`:              "options.xtc_probability",
		`{"model":"m","options":{"num_predict":"x"},` + messages + `}`:                "options.num_predict",
		`{"model":"m","format":"xml",` + messages + `}`:                               "format",
		`{"model":"m","think":3,` + messages + `}`:                                    "think",
		`{"model":"m","think":"huge",` + messages + `}`:                               "think",
		`{"model":"m","template":"x",` + messages + `}`:                               "template",
		`{"model":"m","context":[1,2],` + messages + `}`:                              "context",
		`{"model":"m","top_logprobs":21,` + messages + `}`:                            "top_logprobs",
		`{"model":"m","tools":{}}`:                                                    "tools",
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

func TestATextToEmbedIsNoListOfTokens(t *testing.T) {
	embeds := []api.Model{{ID: "m", WeightFacts: api.WeightFacts{ContextLength: 1000,
		Embedding: api.Embedding{Width: 4, Pooling: api.PoolLast}}}}
	for _, input := range []string{`[1,2]`, `[[1,2],[3]]`} {
		_, err := DecodeEmbed([]byte(`{"model":"m","input":`+input+`}`), embeds, time.Unix(5, 0))
		require.Equal(t, "input", api.AsError(err).Param, input)
	}
	c, err := DecodeEmbed([]byte(`{"model":"m","input":["a","b"]}`), embeds, time.Unix(5, 0))
	require.NoError(t, err)
	require.Len(t, c.Requests, 2)
}

func callOf(kind call.Kind) *call.Call {
	return &call.Call{ID: "chatcmpl-1", Kind: kind, Model: "m", N: 1, Created: time.Unix(100, 0),
		Parsing:  call.Parsing{Format: "hermes+think", Calls: true, Held: true},
		Requests: []*api.Request{{Tools: []any{json.RawMessage(`{"type":"function","function":{"name":"f"}}`)}}}}
}

func eventsOf(texts ...string) (list []api.Event) {
	for i, text := range texts {
		list = append(list, api.Event{Seq: uint64(i + 1), Text: text, Tokens: []int32{1}})
	}
	return append(list, api.Event{Seq: uint64(len(texts) + 1), Finish: api.FinishStop, Done: true,
		Usage: &api.Usage{PromptTokens: 10, CompletionTokens: len(texts)}})
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

		result, err := call.Collect(context.Background(), callOf(kind), call.EventsOf(eventsOf(texts...)...))
		require.NoError(t, err)
		body, err := Encode(callOf(kind), result, "")
		require.NoError(t, err)
		var whole Part
		require.NoError(t, json.Unmarshal(body, &whole))
		require.Positive(t, whole.PromptEvalDuration)
		require.Positive(t, whole.EvalDuration)
		require.InDelta(t, whole.TotalDuration, whole.PromptEvalDuration+whole.EvalDuration, 1e6)
		if kind == call.OllamaGenerate {
			require.Equal(t, all.Content, *whole.Response)
			require.Equal(t, "Hello", all.Content)
			continue
		}
		require.Equal(t, all.Content, whole.Message.Content)
		require.Equal(t, all.Thinking, whole.Message.Thinking)
		require.Equal(t, all.ToolCalls, whole.Message.ToolCalls)
		require.Regexp(t, "^call_", all.ToolCalls[0].ID)
		require.Equal(t, []TurnCall{{all.ToolCalls[0].ID, CalledFunction{0, "f", json.RawMessage(`{"a":1}`)}}},
			compact(t, whole.Message.ToolCalls))
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

// TestACallIsCutToTheContextUnlessItSaysOtherwise: what is too long leaves, and num_predict is a maximum.
func TestACallIsCutToTheContextUnlessItSaysOtherwise(t *testing.T) {
	for _, c := range []struct {
		decode   decoder
		body     string
		truncate bool
	}{
		{DecodeChat, `{"model":"m","messages":[{"role":"user","content":"hi"}],"options":{"num_predict":100000}}`, true},
		{DecodeChat, `{"model":"m","truncate":true,"messages":[{"role":"user","content":"hi"}]}`, true},
		{DecodeChat, `{"model":"m","truncate":null,"messages":[{"role":"user","content":"hi"}]}`, true},
		{DecodeChat, `{"model":"m","truncate":false,"messages":[{"role":"user","content":"hi"}]}`, false},
		{DecodeGenerate, `{"model":"m","prompt":"hi"}`, true}, {DecodeGenerate, `{"model":"m","prompt":"hi","truncate":false}`, false},
		{DecodeGenerate, `{"model":"m","prompt":"hi","raw":true}`, false}, // its beginning would stay, and the answer continues its end
	} {
		r := decoded(t, c.decode, c.body).Requests[0]
		require.Equal(t, c.truncate, r.Truncate, c.body)
		require.True(t, r.ClipMaxTokens, c.body)
	}
	_, err := DecodeChat([]byte(`{"model":"m","truncate":"no","messages":[]}`), models, time.Unix(5, 0))
	require.EqualError(t, err, "truncate: found a string, expected true or false")
}

func TestAnAnswerSaysHowManyMessagesLeft(t *testing.T) {
	c := decoded(t, DecodeChat, `{"model":"m","messages":[{"role":"user","content":"hi"}]}`)
	e := NewStream(c, "")
	first := e.Encode(api.Event{Text: "a", Tokens: []int32{1}, Extra: &api.Extra{Dropped: 3}})
	require.NotContains(t, string(first[0]), "truncated")
	last := e.Encode(api.Event{Finish: api.FinishStop, Done: true, Usage: &api.Usage{}})
	require.Contains(t, string(last[len(last)-1]), `"truncated_messages":3`)
	body, err := Encode(c, &call.Result{Choices: []call.Choice{{Text: "a"}}, Dropped: 2}, "")
	require.NoError(t, err)
	require.Contains(t, string(body), `"truncated_messages":2`)
	body, err = Encode(c, &call.Result{Choices: []call.Choice{{Text: "a"}}}, "")
	require.NoError(t, err)
	require.NotContains(t, string(body), "truncated_messages")
}
