package responses

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/call"
	"github.com/millrace/millrace/api/openai"
	"github.com/millrace/millrace/api/proof"
)

var served = []api.Model{{ID: "m", WeightFacts: api.WeightFacts{ContextLength: 1000}}}

func decoded(t *testing.T, body string) *call.Call {
	t.Helper()
	c, err := Decode([]byte(body), served, time.Unix(5, 0))
	require.NoError(t, err, body)
	return c
}

func TestItemsBecomeMessages(t *testing.T) {
	c := decoded(t, `{"model":"m","instructions":"be brief","max_output_tokens":9,"temperature":0.5,"stream":true,"input":[
		{"role":"user","content":"hi"},
		{"type":"reasoning","id":"rs_1","summary":[],"content":[{"type":"reasoning_text","text":"hm"}]},
		{"type":"message","role":"assistant","content":[{"type":"output_text","text":"I will look."}]},
		{"type":"function_call","call_id":"c1","name":"f","arguments":"{\"a\":1}"},
		{"type":"function_call","call_id":"c2","name":"f","arguments":"{}"},
		{"type":"function_call_output","call_id":"c1","output":"42"},
		{"type":"function_call_output","call_id":"c2","output":[{"type":"input_text","text":"43"}]},
		{"role":"user","content":[{"type":"input_text","text":"and?"}]}]}`)
	require.Equal(t, call.Responses, c.Kind)
	r := c.Requests[0]
	require.Equal(t, 9, r.MaxTokens)
	var roles []string
	for _, m := range r.Messages {
		roles = append(roles, m.Role+" "+m.Content)
	}
	require.Equal(t, []string{"system be brief", "user hi", "assistant I will look.", "tool 42", "tool 43", "user and?"}, roles)
	require.Equal(t, "hm", r.Messages[2].Reasoning)
	calls, err := json.Marshal(r.Messages[2].ToolCalls)
	require.NoError(t, err)
	require.JSONEq(t,
		`[{"id":"c1","type":"function","function":{"name":"f","arguments":{"a":1}}},{"id":"c2","type":"function","function":{"name":"f","arguments":{}}}]`, string(calls))
	require.Equal(t, "c2", r.Messages[4].ToolCallID)
}

// TestTheSamplersOfAChatAreThoseOfAResponse: DRY, XTC, top_n_sigma and bad_words, and what is wrong with one names it.
func TestTheSamplersOfAChatAreThoseOfAResponse(t *testing.T) {
	samplers := `"dry_multiplier":0.8,"dry_base":1.5,"dry_allowed_length":3,"dry_penalty_last_n":64,"dry_sequence_breakers":["x"],"xtc_probability":0.5,"xtc_threshold":0.2,
		"top_n_sigma":1.5,"bad_words":["no"],"top_k":4,"min_p":0.1,"repetition_penalty":1.1,"seed":7`
	chat, err := openai.DecodeChat([]byte(`{"model":"m","messages":[{"role":"user","content":"x"}],"temperature":1,`+samplers+`}`), served,
		time.Unix(5, 0))
	require.NoError(t, err)
	c := decoded(t, `{"model":"m","input":"x","temperature":1,`+samplers+`}`)
	require.Equal(t, chat.Requests[0].Sampling, c.Requests[0].Sampling)
	require.Equal(t, []string{"no"}, c.Requests[0].Sampling.BadWords)
	for field, value := range map[string]string{"dry_multiplier": "-1", "xtc_probability": "2", "top_n_sigma": `"a"`, "bad_words": `"no"`,
		"dry_sequence_breakers": "1"} {
		_, err := Decode([]byte(`{"model":"m","input":"x","`+field+`":`+value+`}`), served, time.Unix(5, 0))
		require.Equal(t, field, api.AsError(err).Param, "%v", err)
	}
}

func TestABadCallNamesItsField(t *testing.T) {
	for body, want := range map[string]string{
		`{"model":"m"}`: "input",
		`{"model":"m","input":"x","previous_response_id":1}`:                                                  "previous_response_id",
		`{"model":"m","input":"x","background":true,"store":false}`:                                           "background",
		`{"model":"m","input":"x","conversation":"conv_1"}`:                                                   "conversation",
		`{"model":"m","input":"x","max_output_tokens":0}`:                                                     "max_output_tokens",
		`{"model":"m","input":"x","temperature":9}`:                                                           "temperature",
		`{"model":"m","input":"x","proof":{"version":2}}`:                                                     "proof.version",
		`{"model":"m","input":"x","tools":[{"name":"f"}]}`:                                                    "tools[0].type",
		`{"model":"m","input":"x","text":{"format":{"type":"xml"}}}`:                                          "text.format.type",
		`{"model":"m","input":"x","reasoning":{"effort":"most"}}`:                                             "reasoning.effort",
		`{"model":"m","input":[{"type":"item_reference","id":"msg_1"}]}`:                                      "input[0].type",
		`{"model":"m","input":[{"role":"robot","content":"x"}]}`:                                              "input[0].role",
		`{"model":"m","input":[{"role":"user","content":[{"type":"input_image","image_url":"http://x/y"}]}]}`: "input[0].content[0].type",
		`{"model":"m","input":3}`:                                                                             "input",
		`[]`:                                                                                                  "",
	} {
		_, err := Decode([]byte(body), served, time.Unix(5, 0))
		var e *api.Error
		require.ErrorAs(t, err, &e, body)
		require.Equal(t, api.CodeInvalid, e.Code, body)
		require.True(t, strings.HasPrefix(e.Param, want), "%s: %v", body, err)
		require.True(t, strings.HasPrefix(e.Message, e.Param), e.Message)
	}
}

func callOf(t *testing.T) *call.Call {
	c := decoded(t,
		`{"model":"m","input":"hi","presence_penalty":0.5,"metadata":{"k":"v"},"tools":[{"type":"function","name":"f","parameters":{"type":"object"}}],"max_output_tokens":50}`)
	c.ID = "chatcmpl-1"
	c.Parsing = call.Parsing{Format: "hermes+think", Calls: true, Held: true}
	return c
}

const answer = "<think>hm</think>Let me see.\n" + `<tool_call>
{"name": "f", "arguments": {"a": "<b>"}}
</tool_call>`

const ended = 1_700_000_000

func events(text string, finish api.Finish, r *rand.Rand) (list []api.Event) {
	for len(text) > 0 {
		n := min(len(text), 1+r.IntN(9))
		list = append(list, api.Event{Text: text[:n], Tokens: []int32{1}})
		text = text[n:]
	}
	return append(list, api.Event{Finish: finish, Done: true, Ended: ended,
		Usage: &api.Usage{PromptTokens: 10, CompletionTokens: 20, CachedTokens: 4}})
}

// normal is a response without what differs between two answers.
func normal(t *testing.T, r *Response) string {
	t.Helper()
	for i := range r.Output {
		if r.Output[i].Type == "function_call" {
			require.NotEmpty(t, r.Output[i].CallID)
			r.Output[i].CallID = "ID"
		}
	}
	r.Usage.OutputDetails.Reasoning = 0 // by the pieces of the text
	body, err := api.Marshal(r)
	require.NoError(t, err)
	return string(body)
}

func TestAStreamEndsWithTheWholeAnswer(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for _, c := range []struct {
		text   string
		finish api.Finish
	}{{answer, api.FinishStop}, {"Hello", api.FinishStop}, {"Hello", api.FinishLength}, {"", api.FinishStop}} {
		for range 40 {
			list := events(c.text, c.finish, random)
			s := NewStream(callOf(t), "")
			var last event
			texts := map[string]string{}
			number := 0
			read := func(chunks [][]byte) {
				for _, chunk := range chunks {
					last = event{}
					require.NoError(t, json.Unmarshal(chunk, &last))
					require.True(t, strings.HasPrefix(string(chunk), `{"type":"`+last.Type+`"`))
					require.Equal(t, number, last.Number)
					number++
					if last.Response != nil {
						require.Equal(t, last.Type == "response.completed", last.Response.CompletedAt != nil, "null while it runs")
						require.Contains(t, string(chunk), `"completed_at":`)
					}
					if last.Delta != nil {
						texts[last.ItemID] += *last.Delta
					}
				}
			}
			read(s.Open())
			for _, ev := range list {
				read(s.Encode(ev))
			}
			result, err := call.Collect(context.Background(), callOf(t), call.EventsOf(list...))
			require.NoError(t, err)
			body, err := Encode(callOf(t), result, "")
			require.NoError(t, err)
			var whole Response
			require.NoError(t, json.Unmarshal(body, &whole))
			require.Equal(t, "response."+whole.Status, last.Type)
			for _, it := range last.Response.Output {
				if it.Arguments != nil {
					require.Equal(t, *it.Arguments, texts[it.ID])
				} else {
					require.Equal(t, (*it.Content)[0].Text, texts[it.ID])
				}
			}
			require.JSONEq(t, normal(t, &whole), normal(t, last.Response))
			require.JSONEq(t, `{"k":"v"}`, string(whole.Metadata))
			require.JSONEq(t, `[{"type":"function","name":"f","description":null,"parameters":{"type":"object"},"strict":null}]`,
				string(must(json.Marshal(whole.Tools))))
			require.Equal(t, "resp_1", whole.ID)
			require.InDelta(t, 0.5, whole.PresencePenalty, 0)
			if c.finish == api.FinishLength {
				require.Contains(t, string(body), `"completed_at":null`)
			} else {
				require.EqualValues(t, ended, *whole.CompletedAt)
			}
			for _, name := range []string{"max_tool_calls", "safety_identifier", "prompt_cache_key"} {
				require.Contains(t, string(body), `"`+name+`":null`, "Open Responses requires it")
			}
			if c.text == answer {
				require.Len(t, whole.Output, 3)
				require.JSONEq(t, `{"a":"<b>"}`, *whole.Output[2].Arguments)
			}
		}
	}
}

// TestAStreamAndAWholeAnswerHaveTheSameProof: the one of a chat with the same messages.
func TestAStreamAndAWholeAnswerHaveTheSameProof(t *testing.T) {
	c := decoded(t, `{"model":"m","input":"hi","seed":3,"proof":true}`)
	list := []api.Event{
		{Text: "a", Tokens: []int32{1}, Pin: &api.Pin{Numerics: "n", Text: "t", Prompt: "h"}},
		{Text: "b", Tokens: []int32{2}, Finish: api.FinishLength, Done: true, Usage: &api.Usage{}},
	}
	s := NewStream(c, "")
	require.NotContains(t, string(s.Open()[0]), `"proof"`)
	var last event
	for _, ev := range list {
		chunks := s.Encode(ev)
		last = event{}
		require.NoError(t, json.Unmarshal(chunks[len(chunks)-1], &last))
	}
	result, err := call.Collect(t.Context(), c, call.EventsOf(list...))
	require.NoError(t, err)
	body, err := Encode(c, result, "")
	require.NoError(t, err)
	var whole Response
	require.NoError(t, json.Unmarshal(body, &whole))
	chat, err := openai.DecodeChat([]byte(`{"model":"m","messages":[{"role":"user","content":"hi"}],"seed":3,"proof":true}`), served,
		time.Unix(5, 0))
	require.NoError(t, err)
	require.Equal(t, proof.Of(chat, result), whole.Proof)
	require.Equal(t, []proof.ChoiceProof{{Tokens: 2, Hash: api.HashPrompt([]int32{1, 2}), FinishReason: "length"}}, whole.Proof.Choices)
	require.Equal(t, whole.Proof, last.Response.Proof)
}

func TestACallSaysWhatIsStored(t *testing.T) {
	for body, want := range map[string][2]bool{ // store, background
		`{"model":"m","input":"x"}`:                                   {true, false},
		`{"model":"m","input":"x","store":false}`:                     {false, false},
		`{"model":"m","input":"x","background":true}`:                 {true, true},
		`{"model":"m","input":"x","store":true,"background":false}`:   {true, false},
		`{"model":"m","input":"x","store":null,"background":null}`:    {true, false},
		`{"model":"m","input":[{"role":"user","content":"x"}]}`:       {true, false},
		`{"model":"m","input":"x","previous_response_id":"resp_one"}`: {true, false},
	} {
		c := decoded(t, body)
		w := Wanted(c)
		require.Equal(t, want, [2]bool{w.Store, w.Background}, body)
		NotStored(c)
		require.False(t, Wanted(c).Store, body)
		require.NotContains(t, string(c.Repeated), `"input"`)
	}
	require.Equal(t, "resp_one", Wanted(decoded(t, `{"model":"m","input":"x","previous_response_id":"resp_one"}`)).Previous)
}

func TestAConversationContinuesWithReasoningAndCalls(t *testing.T) {
	first := decoded(t, `{"model":"m","instructions":"be brief","input":"one","tools":[{"type":"function","name":"f"}]}`)
	answer := &call.Result{Choices: []call.Choice{{Text: "two", Reasoning: "hm",
		Calls: []call.ToolCall{{ID: "c1", Name: "f", Arguments: `{"b":1,"a":2}`}}}}}
	stored, _, _, err := api.EncodeChat(Conversation(first, answer), nil, nil)
	require.NoError(t, err)
	earlier, _, _, err := api.DecodeChat(stored, nil, nil)
	require.NoError(t, err)

	second := decoded(t,
		`{"model":"m","instructions":"be long","previous_response_id":"resp_1","input":[{"type":"function_call_output","call_id":"c1","output":"42"}]}`)
	Continue(second, earlier)
	var got []string
	for _, m := range second.Requests[0].Messages {
		got = append(got, m.Role+" "+m.Content)
	}
	require.Equal(t, []string{"system be long", "user one", "assistant two", "tool 42"}, got)
	m := second.Requests[0].Messages[2]
	require.Equal(t, "hm", m.Reasoning)
	calls, err := json.Marshal(m.ToolCalls)
	require.NoError(t, err)
	require.Equal(t, `[{"id":"c1","type":"function","function":{"name":"f","arguments":{"b":1,"a":2}}}]`, string(calls),
		"in the order of the keys")
}

func TestInputItemsAreWholeItems(t *testing.T) {
	for input, want := range map[string]string{
		`"hi"`: `[{"id":"msg_1_in0","type":"message","role":"user","status":"completed","content":[{"type":"input_text","text":"hi"}]}]`,
		`[{"role":"assistant","content":"so"},{"type":"function_call_output","call_id":"c","output":"1"}]`: `[
			{"id":"msg_1_in0","type":"message","role":"assistant","status":"completed","content":[{"type":"output_text","text":"so","annotations":[]}]},
			{"id":"fco_1_in1","type":"function_call_output","status":"completed","call_id":"c","output":"1"}]`,
	} {
		c := decoded(t, `{"model":"m","input":`+input+`}`)
		c.ID = "chatcmpl-1"
		items, err := InputItems(c)
		require.NoError(t, err)
		body, err := json.Marshal(items)
		require.NoError(t, err)
		require.JSONEq(t, want, string(body))
	}
	require.Equal(t, "chatcmpl-1", CallID("resp_1"))
	for _, id := range []string{"", "resp_", "chatcmpl-1", "resp_a.b", "resp_*", "resp_" + strings.Repeat("x", 100)} {
		require.Empty(t, CallID(id), id)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"model":"m","input":[{"type":"function_call_output","call_id":"c","output":[{"type":"input_text","text":"x"}]},{"role":"user","content":"x"}]}`))
	f.Add([]byte(`{"model":"m","input":"x","text":{"format":{"type":"json_schema","name":"n","schema":{}}},"tool_choice":{"type":"function","name":"f"}}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		c, err := Decode(body, served, time.Unix(5, 0))
		if (c == nil) == (err == nil) {
			t.Fatalf("%v, %v", c, err)
		}
	})
}

func TestAStreamThatFailsEndsWithAFailedResponse(t *testing.T) {
	s := NewStream(callOf(t), "")
	n := len(s.Open()) + len(s.Encode(api.Event{Text: "a"}))
	chunks := s.(call.Failer).Fail(&api.Error{Code: api.CodeTimeout, Message: "late"})
	require.Len(t, chunks, 2)
	require.JSONEq(t, fmt.Sprintf(`{"type":"error","sequence_number":%d,"code":"deadline_exceeded","message":"late","param":null}`, n),
		string(chunks[0]))
	var last event
	require.NoError(t, json.Unmarshal(chunks[1], &last))
	require.Equal(t, "response.failed", last.Type)
	require.Equal(t, n+1, last.Number)
	require.Equal(t, "failed", last.Response.Status)
	require.Equal(t, &ErrorObject{Code: "server_error", Message: "late"}, last.Response.Error)
}
