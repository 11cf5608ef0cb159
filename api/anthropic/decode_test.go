package anthropic

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/call"
	"github.com/millrace/millrace/compute/sample"
)

var served = []api.Model{{ID: "m", WeightFacts: api.WeightFacts{ContextLength: 1000}}}

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
	require.Equal(t, []api.Message{{Role: "system", Content: "be brief"}, {Role: "user", Content: "hi"},
		{Role: "assistant", Content: "yes?"},
		{Role: "user", Content: "go"}}, r.Messages)
	require.Equal(t, 9, r.MaxTokens)
	require.Equal(t, []string{"\n"}, r.Stop)
	require.EqualValues(t, 0.5, r.Sampling.Temperature)
	require.Equal(t, 3, r.Sampling.TopK)
}

func TestASystemMessageMayStandBetweenOthers(t *testing.T) {
	r := decoded(t, `{"model":"m","max_tokens":9,"system":"be brief","messages":[{"role":"user","content":"hi"},
		{"role":"system","content":[{"type":"text","text":"few tokens are left"}]},{"role":"user","content":"go"}]}`).Requests[0]
	require.Equal(t, []api.Message{{Role: "system", Content: "be brief"}, {Role: "user", Content: "hi"},
		{Role: "system", Content: "few tokens are left"},
		{Role: "user", Content: "go"}}, r.Messages)
	_, err := Decode([]byte(`{"model":"m","max_tokens":9,"messages":[{"role":"system","content":[{"type":"image"}]}]}`), served,
		time.Unix(5, 0))
	require.Equal(t, "messages[0].content[0].type", api.AsError(err).Param)
}

func TestAnAnswerContinuesAPrefilledMessage(t *testing.T) {
	r := decoded(t,
		`{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"hi"},{"role":"assistant","content":"He"}]}`).Requests[0]
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

func TestABudgetOfThinkingIsTheChats(t *testing.T) {
	thinker := []api.Model{{ID: "m", TextFacts: api.TextFacts{Format: "none+think", Think: []int32{4, 5}}}}
	decode := func(thinking string) (*sample.Thinking, error) {
		c, err := Decode([]byte(`{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"hi"}],"thinking":`+thinking+`}`),
			thinker, time.Unix(5, 0))
		if err != nil {
			return nil, err
		}
		return c.Requests[0].Sampling.Thinking, nil
	}
	got, err := decode(`{"type":"enabled","budget_tokens":1024}`)
	require.NoError(t, err)
	require.Equal(t, &sample.Thinking{Budget: 1024, Start: 4, End: 5}, got)
	got, err = decode(`{"type":"disabled","budget_tokens":1024}`)
	require.NoError(t, err)
	require.Nil(t, got)
	thinker[0].Think = nil // no single token ends its reasoning
	got, err = decode(`{"type":"enabled","budget_tokens":1024}`)
	require.NoError(t, err)
	require.Nil(t, got)
	_,
		err = Decode([]byte(`{"max_tokens":9,"messages":[{"role":"user","content":"hi"}],"thinking":{"type":"enabled","budget_tokens":1024}}`), thinker, time.Unix(5, 0))
	require.NoError(t, err, "the only model needs no name")
	_, err = decode(`{"type":"enabled","budget_tokens":-1}`)
	require.ErrorContains(t, err, "thinking.budget_tokens: expected an integer from 0")
}

func TestABadCallNamesItsField(t *testing.T) {
	const messages = `"messages":[{"role":"user","content":"hi"}]`
	for body, want := range map[string]struct{ field, message string }{
		`{"model":"m",` + messages + `}`: {"max_tokens",
			"max_tokens: found nothing, expected the largest number of tokens to generate"},
		`{"model":"m","max_tokens":0,` + messages + `}`: {"max_tokens", ""},
		`{"model":"m","max_tokens":9}`:                  {"messages", ""},
		`{"model":"m","max_tokens":9,"messages":[{"role":"robot","content":"x"}]}`: {"messages[0].role",
			`messages[0].role: found "robot", expected "user", "assistant" or "system"`},
		`{"model":"m","max_tokens":9,"messages":[{"role":"user"}]}`: {"messages[0].content", ""},
		`{"model":"m","max_tokens":9,"messages":[{"role":"user","content":[{"type":"image"}]}]}`: {"messages[0].content[0].type",
			`messages[0].content[0].type: found "image", expected text or tool_result`},
		`{"model":"m","max_tokens":9,"stop_sequences":[""],` + messages + `}`:         {"stop_sequences[0]", ""},
		`{"model":"m","max_tokens":9,"tool_choice":{"type":"some"},` + messages + `}`: {"tool_choice.type", ""},
		`{"model":"m","max_tokens":9,"tools":[{"name":"f","type":"web_search_20250305"}],"tool_choice":{"type":"any"},` + messages + `}`: {"tool_choice.type",
			`tool_choice.type: found "any", expected auto or none without tools that this server can let the model call`},
		`{"model":"m","max_tokens":9,"tools":[{"name":"f","type":"web_search_20250305"},{"name":"g"}],"tool_choice":{"type":"tool","name":"f"},` + messages + `}`: {
			"tool_choice.name", `tool_choice.name: found "f", expected the name of one of the tools`},
		`{"model":"m","max_tokens":9,"tools":[{"type":"bash_20250124","name":"bash"},{"name":"f","input_schema":{"type":"array"}}],` + messages + `}`: {
			"tools[1].input_schema.type", `tools[1].input_schema.type: expected "object", found "array"`},
		`{"model":"m","max_tokens":9,"tools":[{"name":"a b"}],` + messages + `}`: {"tools[0].name", ""},
		`{"model":"m","max_tokens":9,"messages":[{"role":"user","content":[{"type":"tool_result","tool_use_id":"t","content":[{"type":"document"}]}]}]}`: {
			"messages[0].content[0].content[0].type", ""},
		`{"model":"m","max_tokens":9,"thinking":{"type":"on"},` + messages + `}`:    {"thinking.type", ""},
		`{"model":"m","max_tokens":9,"system":[{"type":"image"}],` + messages + `}`: {"system[0].type", ""},
		`{"model":"m","max_tokens":9,"tools":{},` + messages + `}`: {"tools",
			"tools: found an object, expected a list"},
		`{"model":"m","max_tokens":9,"temperature":"hot",` + messages + `}`:                        {"temperature", ""},
		`{"model":"m","max_tokens":9,"output_config":{"format":{"type":"text"}},` + messages + `}`: {"output_config.format.type", ""},
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

func TestWhatTheServerCannotRunIsIgnoredByName(t *testing.T) {
	c := decoded(t, `{"model":"m","max_tokens":9,"tools":[{"type":"web_search_20250305","name":"web_search"},{"name":"f"},{"type":"custom","name":"g"}],
		"mcp_servers":[{"type":"url","url":"http://x","name":"x"}],"messages":[{"role":"user","content":"hi"},
		{"role":"assistant","content":[{"type":"server_tool_use","id":"s","name":"web_search","input":{}},{"type":"web_search_tool_result","tool_use_id":"s","content":[]},
			{"type":"text","text":"so"},{"type":"tool_use","id":"t","name":"f","input":null},{"type":"tool_use","id":"u","name":"f","input":"{\"a\""}]},
		{"role":"user","content":[{"type":"tool_result","tool_use_id":"t","content":[{"type":"text","text":"see"},{"type":"image","source":{}}]}]}]}`)
	require.Equal(t, []string{"messages[1].content[0] (server_tool_use)", "messages[1].content[1] (web_search_tool_result)",
		"messages[2].content[0].content[1] (image)", "tools[0] (web_search_20250305)", "mcp_servers"}, c.Ignored)
	r := c.Requests[0]
	require.Len(t, r.Tools, 2)
	require.Equal(t, "see\n(an image, which this model cannot see)", r.Messages[2].Content)
	calls, err := json.Marshal(r.Messages[1].ToolCalls)
	require.NoError(t, err)
	require.JSONEq(t,
		`[{"id":"t","type":"function","function":{"name":"f","arguments":{}}},{"id":"u","type":"function","function":{"name":"f","arguments":{"input":"{\"a\""}}}]`, string(calls))
}

func TestMaxTokensIsClipped(t *testing.T) {
	r := decoded(t, `{"model":"m","max_tokens":32000,"messages":[{"role":"user","content":"hi"}]}`).Requests[0]
	require.Equal(t, 32000, r.MaxTokens)
	require.True(t, r.ClipMaxTokens)
}

func TestTheInputOfACallIsAnObject(t *testing.T) {
	c := decoded(t, `{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"hi"}]}`)
	for arguments, want := range map[string]string{`{"a":1}`: `{"a":1}`, `"x"`: `{"input":"x"}`, `[1]`: `{"input":[1]}`, `{"a"`: `{}`} {
		body, err := Encode(c, &call.Result{Choices: []call.Choice{{Calls: []call.ToolCall{{ID: "t", Name: "f", Arguments: arguments}}}}},
			"")
		require.NoError(t, err)
		require.Contains(t, string(body), `"input":`+want, arguments)
	}
}
