package anthropic

import (
	"context"
	"encoding/json"
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

// answers are calls whose text has reasoning and tool calls in Hermes' form.
var answers = []struct {
	name, text string
	finish     api.Finish
	stop       string
	want       string // blocks
	reason     string
}{
	{"text", "Hello there", api.FinishStop, "", `[{"type":"text","text":"Hello there","citations":null}]`, "end_turn"},
	{"nothing", "", api.FinishStop, "", `[]`, "end_turn"},
	{"cut", "Hello", api.FinishLength, "", `[{"type":"text","text":"Hello","citations":null}]`, "max_tokens"},
	{"stopped", "Hello", api.FinishStop, "\n", `[{"type":"text","text":"Hello","citations":null}]`, "stop_sequence"},
	{"reasoning", "<think>\nhm\n</think>\n\nYes", api.FinishStop, "",
		`[{"type":"thinking","thinking":"hm","signature":""},{"type":"text","text":"Yes","citations":null}]`, "end_turn"},
	{"calls", `Let me see.` + "\n" + `<tool_call>
{"name": "f", "arguments": {"a": [1, "<b>"]}}
</tool_call>
<tool_call>
{"name": "g", "arguments": {}}
</tool_call>`, api.FinishStop, "",
		`[{"type":"text","text":"Let me see.","citations":null},{"type":"tool_use","id":"ID","name":"f","input":{"a":[1,"<b>"]},"caller":{"type":"direct"}},{"type":"tool_use","id":"ID","name":"g","input":{},"caller":{"type":"direct"}}]`, "tool_use"},
}

func callOf() *call.Call {
	tool := func(name string) any {
		return json.RawMessage(`{"type":"function","function":{"name":"` + name + `"}}`)
	}
	return &call.Call{ID: "chatcmpl-1", Kind: call.Messages, Model: "m", N: 1,
		Requests: []*api.Request{{Tools: []any{tool("f"), tool("g")}}},
		Parsing:  call.Parsing{Format: "hermes+think", Calls: true, Held: true}}
}

// events cuts a text at random places.
func events(text string, finish api.Finish, stop string, r *rand.Rand) (list []api.Event) {
	for len(text) > 0 {
		n := min(len(text), 1+r.IntN(9))
		list = append(list, api.Event{Text: text[:n], Tokens: []int32{1}})
		text = text[n:]
	}
	list = append(list, api.Event{Finish: finish, Stop: stop, Done: true,
		Usage: &api.Usage{PromptTokens: 10, CompletionTokens: len(list), CachedTokens: 4}})
	for i := range list {
		list[i].Seq = uint64(i + 1)
	}
	return list
}

// withoutIDs replaces the ids of calls, which are random.
func withoutIDs(t *testing.T, list []Block) string {
	t.Helper()
	for i := range list {
		if list[i].Type == "tool_use" {
			require.NotEmpty(t, list[i].ID)
			list[i].ID = "ID"
		}
	}
	body, err := api.Marshal(list)
	require.NoError(t, err)
	return string(body)
}

// received is what a client makes of the chunks of a stream.
func received(t *testing.T, chunks [][]byte) (m MessageAnswer, reason string, sequence *string) {
	t.Helper()
	var inputs []string
	open := -1
	for _, chunk := range chunks {
		var e struct {
			Type    string
			Index   int
			Message MessageAnswer
			Block   Block `json:"content_block"`
			Delta   struct {
				Type, Text, Thinking string
				JSON                 string  `json:"partial_json"`
				Reason               string  `json:"stop_reason"`
				Sequence             *string `json:"stop_sequence"`
			}
			Usage TokenUsage
		}
		require.NoError(t, json.Unmarshal(chunk, &e))
		require.True(t, strings.HasPrefix(string(chunk), `{"type":"`+e.Type+`"`), "the name of the event is read from the beginning")
		switch e.Type {
		case "message_start":
			m = e.Message
		case "content_block_start":
			require.Equal(t, -1, open)
			require.Len(t, m.Content, e.Index)
			m.Content, inputs, open = append(m.Content, e.Block), append(inputs, ""), e.Index
		case "content_block_delta":
			require.Equal(t, open, e.Index)
			b := &m.Content[e.Index]
			switch e.Delta.Type {
			case "text_delta":
				*b.Text += e.Delta.Text
			case "thinking_delta":
				*b.Thinking += e.Delta.Thinking
			case "input_json_delta":
				inputs[e.Index] += e.Delta.JSON
			default:
				t.Fatal(e.Delta.Type)
			}
		case "content_block_stop":
			require.Equal(t, open, e.Index)
			if inputs[open] != "" {
				m.Content[open].Input = json.RawMessage(inputs[open])
			}
			open = -1
		case "message_delta":
			reason, sequence, m.Usage = e.Delta.Reason, e.Delta.Sequence, e.Usage
		case "message_stop":
			require.Equal(t, -1, open)
		default:
			t.Fatal(e.Type)
		}
	}
	return m, reason, sequence
}

func TestAStreamGivesTheBlocksOfTheWholeAnswer(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, a := range answers {
		for range 50 {
			list := events(a.text, a.finish, a.stop, r)
			s := NewStream(callOf(), "")
			var chunks [][]byte
			for _, chunk := range s.Open() {
				chunks = append(chunks, append([]byte(nil), chunk...))
			}
			for _, ev := range list {
				for _, chunk := range s.Encode(ev) {
					chunks = append(chunks, append([]byte(nil), chunk...))
				}
			}
			m, reason, sequence := received(t, chunks)
			require.JSONEq(t, a.want, withoutIDs(t, m.Content), a.name)
			require.Equal(t, a.reason, reason, a.name)
			require.Equal(t, a.stop != "", sequence != nil)
			usage := TokenUsage{InputTokens: 6, CacheReadInputTokens: 4, OutputTokens: len(list) - 1, ServiceTier: "standard"}
			require.Equal(t, strings.Contains(a.text, "<think>"), m.Usage.OutputDetails.Thinking > 0, a.name)
			usage.OutputDetails = m.Usage.OutputDetails
			require.Equal(t, usage, m.Usage)

			result, err := call.Collect(context.Background(), callOf(), call.EventsOf(list...))
			require.NoError(t, err)
			body, err := Encode(callOf(), result, "")
			require.NoError(t, err)
			var whole MessageAnswer
			require.NoError(t, json.Unmarshal(body, &whole))
			require.JSONEq(t, a.want, withoutIDs(t, whole.Content), a.name)
			require.Equal(t, a.reason, *whole.StopReason)
			require.Equal(t, sequence, whole.StopSequence)
			require.Equal(t, m.Usage, whole.Usage)
			require.Equal(t, "msg_1", whole.ID)
		}
	}
}

// TestAStreamAndAWholeAnswerHaveTheSameProof: the one of a chat with the same messages.
func TestAStreamAndAWholeAnswerHaveTheSameProof(t *testing.T) {
	const body = `{"model":"m","max_tokens":9,"seed":3,"proof":true,"messages":[{"role":"user","content":"hi"}]}`
	c, err := Decode([]byte(body), served, time.Unix(5, 0))
	require.NoError(t, err)
	list := []api.Event{
		{Text: "a", Tokens: []int32{1}, Pin: &api.Pin{Numerics: "n", Text: "t", Prompt: "h"}},
		{Text: "b", Tokens: []int32{2}, Finish: api.FinishStop, Done: true, Usage: &api.Usage{}},
	}
	s := NewStream(c, "")
	require.NotContains(t, string(s.Open()[0]), `"proof"`)
	var streamed struct{ Proof *proof.Proof }
	for _, ev := range list {
		for _, chunk := range s.Encode(ev) {
			require.NoError(t, json.Unmarshal(chunk, &streamed))
		}
	}
	result, err := call.Collect(t.Context(), c, call.EventsOf(list...))
	require.NoError(t, err)
	answer, err := Encode(c, result, "")
	require.NoError(t, err)
	var whole MessageAnswer
	require.NoError(t, json.Unmarshal(answer, &whole))
	chat, err := openai.DecodeChat([]byte(body), served, time.Unix(5, 0))
	require.NoError(t, err)
	require.Equal(t, proof.Of(chat, result), whole.Proof)
	require.Equal(t, []proof.ChoiceProof{{Tokens: 2, Hash: api.HashPrompt([]int32{1, 2}), FinishReason: "stop"}}, whole.Proof.Choices)
	require.Equal(t, whole.Proof, streamed.Proof)
}

func TestErrorsHaveAnthropicsForm(t *testing.T) {
	for code, want := range map[api.Code]string{
		api.CodeInvalid: "invalid_request_error", api.CodeUnauthorized: "authentication_error", api.CodeNotFound: "not_found_error",
		api.CodeTooLarge: "request_too_large", api.CodeOverloaded: "rate_limit_error", api.CodeUnavailable: "overloaded_error",
		api.CodeInternal: "api_error", 405: "invalid_request_error", 410: "invalid_request_error",
	} {
		require.JSONEq(t, `{"type":"error","error":{"type":"`+want+`","message":"m"}}`,
			string(EncodeError(&api.Error{Code: code, Message: "m"})))
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"model":"m","max_tokens":9,"system":[{"type":"text","text":"x","citations":null}],"messages":[{"role":"user","content":[{"type":"tool_result","tool_use_id":"a"}]}]}`))
	f.Add([]byte(`{"model":"m","max_tokens":9,"thinking":{"type":"enabled"},"tools":[{"name":"f","input_schema":{}}],"tool_choice":{"type":"any"},"messages":[{"role":"assistant","content":""}]}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		c, err := Decode(body, served, callOf().Created)
		if (c == nil) == (err == nil) {
			t.Fatalf("%v, %v", c, err)
		}
	})
}
