package responses

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/call"
)

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// offers are the kinds of tools of a coding agent.
const offers = `[{"type":"function","name":"f","parameters":{"type":"object"}},
	{"type":"namespace","name":"agents","description":"Agents.","tools":[{"type":"function","name":"close","parameters":{"type":"object"}},{"type":"file_search"}]},
	{"type":"custom","name":"apply_patch","description":"Edits files.","format":{"type":"grammar","syntax":"lark","definition":"start: /x/"}},
	{"type":"custom","name":"note"},{"type":"web_search","external_web_access":false},{"type":"local_shell"},{"type":"image_generation"},{"type":"mcp","server_label":"x"}]`

var callers = []api.Model{{ID: "m", WeightFacts: api.WeightFacts{ContextLength: 1000}, TextFacts: api.TextFacts{Format: "hermes"}}}

func agentCall(t *testing.T, fields string) *call.Call {
	t.Helper()
	c, err := Decode([]byte(`{"model":"m","input":"hi","tools":`+offers+fields+`}`), callers, time.Unix(5, 0))
	require.NoError(t, err)
	return c
}

func toolNames(c *call.Call) (names []string) {
	for _, one := range call.Tools(c.Requests[0].Tools) {
		names = append(names, one.Name)
	}
	return names
}

func TestToolsOfAgentsAreFunctionsOrIgnoredByName(t *testing.T) {
	c := agentCall(t, ``)
	require.Equal(t, []string{"f", "agents__close", "apply_patch", "note"}, toolNames(c))
	require.Equal(t, []string{"tools[1].tools[1] (file_search)", "tools[2].format (grammar)", "tools[4] (web_search)",
		"tools[5] (local_shell)",
		"tools[6] (image_generation)", "tools[7] (mcp)"}, c.Ignored)
	patch := string(must(json.Marshal(c.Requests[0].Tools[2])))
	require.Contains(t, patch, `"description":"Edits files.\n\nThe input follows this grammar (lark):\nstart: /x/"`)
	require.Contains(t, patch, `"strict":true`)
	require.Len(t, newResponse(c).Tools, 8, "the answer repeats all tools")
}

func TestAChoiceOfToolsIsThatOfTheResponsesAPI(t *testing.T) {
	for choice, want := range map[string][]string{
		`{"type":"function","name":"f"}`:                                                  {"f"},
		`{"type":"custom","name":"note"}`:                                                 {"note"},
		`{"type":"function","namespace":"agents","name":"close"}`:                         {"agents__close"},
		`{"type":"allowed_tools","mode":"auto","tools":[{"type":"function","name":"f"}]}`: {"f"},
		`{"type":"allowed_tools","mode":"required","tools":[{"type":"namespace","name":"agents"},{"type":"custom","name":"note"}]}`: {"agents__close", "note"},
		`{"type":"allowed_tools","mode":"auto","tools":[{"type":"function","name":"f"},{"type":"web_search"}]}`:                     {"f"},
		`"auto"`: nil, `"required"`: nil, `null`: nil,
	} {
		c := agentCall(t, `,"tool_choice":`+choice)
		require.Equal(t, want, c.Parsing.Allowed, choice)
		require.True(t, c.Parsing.Calls, choice)
	}
	none := agentCall(t, `,"tool_choice":{"type":"allowed_tools","mode":"auto","tools":[{"type":"web_search"}]}`)
	require.False(t, none.Parsing.Calls)
	require.Contains(t, none.Ignored, "tool_choice.tools[0] (web_search)")
}

func TestOnlyAForcedToolThatTheServerCannotRunIsRefused(t *testing.T) {
	for fields, want := range map[string]string{
		`"tools":[{"type":"web_search"}],"tool_choice":"required"`:                                                                            `tool_choice: found "required", expected auto or none without tools that this server can let the model call`,
		`"tools":[{"type":"web_search"}],"tool_choice":{"type":"web_search"}`:                                                                 `tool_choice.type: found "web_search", expected function, custom or allowed_tools: this server runs no tools of its own`,
		`"tools":[{"type":"web_search"}],"tool_choice":{"type":"allowed_tools","mode":"required","tools":[{"type":"web_search"}]}`:            `tool_choice.tools: found no tool that this server can let the model call, expected one with the mode "required"`,
		`"tools":` + offers + `,"tool_choice":{"type":"function","name":"g"}`:                                                                 `tool_choice.name: found "g", expected the name of one of the tools`,
		`"tools":` + offers + `,"tool_choice":{"type":"function","name":"close"}`:                                                             `tool_choice.name: found "close", expected the name of one of the tools`,
		`"tools":` + offers + `,"tool_choice":{"type":"allowed_tools","mode":"auto","tools":[{"type":"mcp"},{"type":"function","name":"g"}]}`: `tool_choice.tools[1].name: found "g", expected the name of one of the tools`,
		`"tools":` + offers + `,"tool_choice":{"type":"allowed_tools","mode":"some","tools":[{"type":"function","name":"f"}]}`:                `tool_choice.mode: expected "auto" or "required", found "some"`,
		`"tools":` + offers + `,"tool_choice":{"type":"allowed_tools","mode":"auto","tools":7}`:                                               `tool_choice.tools: found number, expected a list`,
		`"tools":` + offers + `,"tool_choice":"maybe"`:                                                                                        `tool_choice: found "maybe", expected "none", "auto", "required" or an object`,
		`"tools":` + offers + `,"tool_choice":7`:                                                                                              `tool_choice: found 7, expected "none", "auto", "required" or an object`,
		`"tools":[7]`:                                                                                                                         `tools[0]: found 7, expected a tool (an object)`, `"tools":[{"type":"function","name":7}]`: `tools[0].name: found number, expected a string`,
		`"tools":[{"type":"web_search"},{"type":"function","name":"f","parameters":{"type":"array"}}]`: `tools[1].parameters.type: expected "object", found "array"`,
		`"tools":[{"type":"namespace","name":"n","tools":[{"type":"function","name":"a b"}]}]`:         `tools[0].tools[0].name: expected 1 to 128 letters, digits, '_', '-', '.' or '/', found "n__a b"`,
		`"tools":[{"type":"namespace","tools":[]}]`:                                                    `tools[0].name: found "", expected the name of a namespace`,
	} {
		_, err := Decode([]byte(`{"model":"m","input":"hi",`+fields+`}`), callers, time.Unix(5, 0))
		require.EqualError(t, err, want, fields)
	}
}

func TestCallsHaveTheClientsNamesAndForms(t *testing.T) {
	const text = "<tool_call>\n{\"name\": \"agents__close\", \"arguments\": {\"id\": 1}}\n</tool_call>" +
		"<tool_call>\n{\"name\": \"note\", \"arguments\": {\"input\": \"a\\n<b>\"}}\n</tool_call>"
	list := []api.Event{{Text: text[:50]}, {Text: text[50:]}, {Finish: api.FinishStop, Done: true, Usage: &api.Usage{}}}
	s := NewStream(agentCall(t, ``), "")
	var types []string
	var last event
	for _, ev := range list {
		for _, chunk := range s.Encode(ev) {
			last = event{}
			require.NoError(t, json.Unmarshal(chunk, &last))
			types = append(types, last.Type)
			if last.Type == "response.custom_tool_call_input.delta" {
				require.Equal(t, "a\n<b>", *last.Delta)
			}
		}
	}
	require.Equal(t, []string{"response.output_item.added", "response.function_call_arguments.delta",
		"response.function_call_arguments.done", "response.output_item.done",
		"response.output_item.added", "response.custom_tool_call_input.delta", "response.custom_tool_call_input.done",
		"response.output_item.done", "response.completed"}, types)
	c := agentCall(t, ``)
	result, err := call.Collect(context.Background(), c, call.EventsOf(list...))
	require.NoError(t, err)
	var whole Response
	require.NoError(t, json.Unmarshal(must(Encode(c, result, "")), &whole))
	for _, output := range [][]Item{whole.Output, last.Response.Output} {
		require.Len(t, output, 2)
		require.Equal(t, []string{"function_call", "agents", "close", `{"id": 1}`},
			[]string{output[0].Type, output[0].Namespace, output[0].Name, *output[0].Arguments})
		require.Equal(t, []string{"custom_tool_call", "", "note", "a\n<b>"},
			[]string{output[1].Type, output[1].Namespace, output[1].Name, *output[1].Input})
		require.Nil(t, output[1].Arguments)
		history := string(must(json.Marshal(output)))
		back, err := Decode([]byte(`{"model":"m","input":[{"role":"user","content":"x"},`+history[1:len(history)-1]+`,
			{"type":"custom_tool_call_output","call_id":"c","output":"done"}]}`), callers, time.Unix(5, 0))
		require.NoError(t, err)
		calls := string(must(json.Marshal(back.Requests[0].Messages[1].ToolCalls)))
		require.Contains(t, calls, `"function":{"name":"agents__close","arguments":{"id":1}}`)
		require.Contains(t, calls, `"function":{"name":"note","arguments":{"input":"a\n\u003cb\u003e"}}`)
	}
}

func TestItemsOfOtherServersAreTakenOrIgnoredByName(t *testing.T) {
	c := decoded(t, `{"model":"m","input":[{"role":"user","content":"hi"},{"type":"web_search_call","id":"w"},
		{"type":"reasoning","id":"r","summary":[],"content":null,"encrypted_content":"x"},
		{"type":"local_shell_call","id":"l","call_id":"c1","action":{"type":"exec","command":["ls"]}},{"type":"local_shell_call_output","id":"c1","output":"a"},
		{"type":"shell_call","call_id":"c2","action":{"commands":["ls"]}},{"type":"shell_call_output","call_id":"c2","output":[{"stdout":"b"}]},
		{"type":"function_call","call_id":"c3","name":"f","arguments":"{\"city\": \"Par"},
		{"type":"function_call_output","call_id":"c3","output":[{"type":"input_text","text":"see"},{"type":"input_image","image_url":"data:x"}]},
		{"type":"mcp_list_tools","id":"x"}]}`)
	require.Equal(t, []string{"input[1] (web_search_call)", "input[8].output[1] (input_image)", "input[9] (mcp_list_tools)"}, c.Ignored)
	var list []string
	for _, m := range c.Requests[0].Messages {
		list = append(list, m.Role+" "+m.Content+" "+m.ToolCallID+" "+string(must(json.Marshal(m.ToolCalls))))
	}
	require.Equal(t, []string{`user hi  null`,
		`assistant   [{"id":"c1","type":"function","function":{"name":"local_shell","arguments":{"type":"exec","command":["ls"]}}}]`,
		`tool a c1 null`,
		`assistant   [{"id":"c2","type":"function","function":{"name":"shell","arguments":{"commands":["ls"]}}}]`,
		`tool [{"stdout":"b"}] c2 null`,
		`assistant   [{"id":"c3","type":"function","function":{"name":"f","arguments":{"city":"Par"}}}]`,
		"tool see\n(an image, which this model cannot see) c3 null"}, list)
}

func TestErrorsNameWhatTheClientSent(t *testing.T) {
	for body, want := range map[string]string{
		`"input":[{"role":"user","content":"x"},{"type":"function_call","call_id":"c"}]`:                             `input[1].name: expected a name`,
		`"instructions":"i","input":[{"role":"user","content":"x"},{"type":"function_call","call_id":"c","name":7}]`: `input[1].name: found number, expected a string`,
		`"input":[{"role":7}]`:                    `input[0].role: found number, expected a string`,
		`"input":[7]`:                             `input[0]: found 7, expected an item (an object)`,
		`"input":7`:                               `input: found 7, expected a string or a list of items`,
		`"input":[null]`:                          `input[0]: found null, expected an item (an object)`,
		`"input":[{"role":"user","content":7}]`:   `input[0].content: found 7, expected a string or a list of parts`,
		`"input":[{"role":"user","content":[7]}]`: `input[0].content[0]: found 7, expected a part (an object)`,
		`"input":[{"role":"user","content":[{"type":"text","text":7}]}]`: `input[0].content[0].text: found number, expected a string`,
		`"input":[{"type":"web_search_call"}]`:                           `input: found no item that this model can read, expected a message`,
		`"input":"x","text":{"format":{"type":"json_schema"}}`:           `text.format.schema: expected a JSON schema`,
		`"input":"x","top_logprobs":21`:                                  `top_logprobs: expected an integer from 0 to 20, found 21`,
	} {
		_, err := Decode([]byte(`{"model":"m",`+body+`}`), served, time.Unix(5, 0))
		require.EqualError(t, err, want, body)
	}
}

func TestErrorsThatComeLaterNameWhatTheClientSent(t *testing.T) {
	c := decoded(t, `{"model":"m","input":"x","text":{"format":{"type":"json_schema","name":"n","schema":{"type":"object"}}}}`)
	require.Equal(t, "text.format.schema", c.Requests[0].Grammar.Param)
	for param, want := range map[string]string{"messages": "input", "prompt": "input", "max_tokens": "max_output_tokens",
		"temperature": "temperature"} {
		require.Contains(t, string(EncodeError(api.Invalid(param, "%s: found 1", param))),
			`"message":"`+want+`: found 1","type":"invalid_request_error","param":"`+want+`"`)
	}
}
