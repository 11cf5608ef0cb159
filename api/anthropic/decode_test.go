package anthropic

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/call"
)

var served = []api.Model{{ID: "m", ContextLength: 1000}}

func decoded(t *testing.T, body string) *call.Call {
	t.Helper()
	c, err := Decode([]byte(body), served, time.Unix(5, 0))
	require.NoError(t, err, body)
	return c
}

func TestAMessagesCallIsTheSameChatCall(t *testing.T) {
	c := decoded(t, `{"model":"m","max_tokens":9,"system":"be brief","temperature":0.5,"top_k":3,"stop_sequences":["\n"],"stream":true,
		"messages":[{"role":"user","content":"hi"},{"role":"assistant","content":[{"type":"text","text":"yes?"}]},{"role":"user","content":"go"}]}`)
	require.Equal(t, call.Messages, c.Kind)
	require.True(t, c.Stream)
	r := c.Requests[0]
	require.Equal(t, []api.Message{{Role: "system", Content: "be brief"}, {Role: "user", Content: "hi"}, {Role: "assistant", Content: "yes?"},
		{Role: "user", Content: "go"}}, r.Messages)
	require.Equal(t, 9, r.MaxTokens)
	require.Equal(t, []string{"\n"}, r.Stop)
	require.EqualValues(t, 0.5, r.Sampling.Temperature)
	require.Equal(t, 3, r.Sampling.TopK)
}

func TestAnAnswerContinuesAPrefilledMessage(t *testing.T) {
	r := decoded(t, `{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"hi"},{"role":"assistant","content":"He"}]}`).Requests[0]
	require.True(t, r.ContinueFinal)
	require.True(t, r.NoGenerationPrompt)
}

// TestBlocksThatDifferInEachRequestLeaveThePrompt: the prefix cache would not match after them.
func TestBlocksThatDifferInEachRequestLeaveThePrompt(t *testing.T) {
	r := decoded(t, `{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"hi"}],"system":[
		{"type":"text","text":"x-anthropic-billing-header: cc_version=1; cch=abc"},
		{"type":"text","text":"be brief","cache_control":{"type":"ephemeral"}},{"type":"text","text":"be kind"}]}`).Requests[0]
	require.Equal(t, "be brief\nbe kind", r.Messages[0].Content)
}

func TestToolResultsAreMessagesOfTheirOwn(t *testing.T) {
	r := decoded(t, `{"model":"m","max_tokens":9,"tools":[{"name":"f","description":"d","input_schema":{"type":"object"}}],"messages":[
		{"role":"user","content":"hi"},
		{"role":"assistant","content":[{"type":"thinking","thinking":"hm","signature":""},{"type":"tool_use","id":"t1","name":"f","input":{"a":1}}]},
		{"role":"user","content":[{"type":"tool_result","tool_use_id":"t1","content":[{"type":"text","text":"42"}]},{"type":"text","text":"and?"}]}]}`).Requests[0]
	require.Len(t, r.Messages, 4)
	calls, err := json.Marshal(r.Messages[1].ToolCalls)
	require.NoError(t, err)
	require.JSONEq(t, `[{"id":"t1","type":"function","function":{"name":"f","arguments":{"a":1}}}]`, string(calls))
	require.Equal(t, api.Message{Role: "tool", Content: "42", ToolCallID: "t1"}, r.Messages[2])
	require.Equal(t, api.Message{Role: "user", Content: "and?"}, r.Messages[3])
	require.Len(t, r.Tools, 1)
}

func TestThinkingSwitchesTheTemplate(t *testing.T) {
	r := decoded(t, `{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"hi"}],"thinking":{"type":"disabled"},
		"chat_template_kwargs":{"thinking":true}}`).Requests[0]
	args, err := json.Marshal(r.TemplateArgs)
	require.NoError(t, err)
	require.JSONEq(t, `{"enable_thinking":false,"thinking":true}`, string(args))
}

func TestABadCallNamesItsField(t *testing.T) {
	const messages = `"messages":[{"role":"user","content":"hi"}]`
	for body, want := range map[string]struct{ field, message string }{
		`{"model":"m",` + messages + `}`:                                            {"max_tokens", "max_tokens: found nothing, expected the largest number of tokens to generate"},
		`{"model":"m","max_tokens":0,` + messages + `}`:                             {"max_tokens", ""},
		`{"model":"m","max_tokens":9}`:                                              {"messages", ""},
		`{"model":"m","max_tokens":9,"messages":[{"role":"system","content":"x"}]}`: {"messages[0].role", `messages[0].role: found "system", expected "user" or "assistant"`},
		`{"model":"m","max_tokens":9,"messages":[{"role":"user"}]}`:                 {"messages[0].content", ""},
		`{"model":"m","max_tokens":9,"messages":[{"role":"user","content":[{"type":"image"}]}]}`: {"messages[0].content[0].type",
			`messages[0].content[0].type: found "image", expected text or tool_result`},
		`{"model":"m","max_tokens":9,"stop_sequences":[""],` + messages + `}`:                               {"stop_sequences[0]", ""},
		`{"model":"m","max_tokens":9,"tool_choice":{"type":"some"},` + messages + `}`:                       {"tool_choice.type", ""},
		`{"model":"m","max_tokens":9,"tools":[{"name":"f","type":"web_search_20250305"}],` + messages + `}`: {"tools[0].type", ""},
		`{"model":"m","max_tokens":9,"thinking":{"type":"on"},` + messages + `}`:                            {"thinking.type", ""},
		`{"model":"m","max_tokens":9,"system":[{"type":"image"}],` + messages + `}`:                         {"system[0].type", ""},
		`{"model":"m","max_tokens":9,"tools":{},` + messages + `}`:                                          {"tools", "tools: found object, expected a list"},
		`{"model":"m","max_tokens":9,"temperature":"hot",` + messages + `}`:                                 {"temperature", ""},
		`{"model":"m","max_tokens":9,"output_config":{"format":{"type":"text"}},` + messages + `}`:          {"output_config.format.type", ""},
		`[]`:                                {"", ""},
		`{"model":"m","max_tokens":9,"mes"`: {"", ""},
	} {
		_, err := Decode([]byte(body), served, time.Unix(5, 0))
		var e *api.Error
		require.ErrorAs(t, err, &e, body)
		require.Equal(t, api.CodeInvalid, e.Code, body)
		require.Equal(t, want.field, e.Param, "%s: %v", body, err)
		if want.message != "" {
			require.Equal(t, want.message, e.Message)
		}
	}
}
