package openai

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/call"
	"github.com/millrace/millrace/compute/grammar"
)

// callers is a model that calls tools.
var callers = []api.Model{{ID: "tiny-chat", WeightFacts: api.WeightFacts{ContextLength: 512},
	TextFacts: api.TextFacts{Format: "hermes+think"}}}

const twoTools = `"tools":[{"type":"function","function":{"name":"f"}},{"type":"function","function":{"name":"g"}}]`

func TestBadToolsAreRefusedByTheFieldAtFault(t *testing.T) {
	with := func(field string) string { return `{` + userHi + `,` + field + `}` }
	fn := func(fields string) string { return with(`"tools":[{"type":"function","function":{` + fields + `}}]`) }
	many := strings.Repeat(`{"function":{"name":"f"}},`, 256)
	for _, c := range []bad{
		{with(`"tools":{}`), "tools"}, {with(`"tools":[7]`), "tools[0]"}, {with(`"tools":[{}]`), "tools[0].function"},
		{with(`"tools":[` + many + `{}]`), "tools"},
		{with(`"tools":[{"type":7,"function":{"name":"f"}}]`), "tools[0].type"},
		{with(`"tools":[{"type":"web_search"}],"tool_choice":"required"`), "tool_choice"},
		{with(`"tools":[{"type":"custom","custom":{"name":"f"}}],"tool_choice":{"type":"function","function":{"name":"f"}}`),
			"tool_choice.function.name"},
		{`{"messages":[{"role":"assistant","tool_calls":[{"type":"custom","custom":{"input":"x"}}]}]}`,
			"messages[0].tool_calls[0].custom.name"},
		{`{"messages":[{"role":"assistant","tool_calls":[{"type":"custom","custom":{"name":"f","input":7}}]}]}`,
			"messages[0].tool_calls[0].custom.input"},
		{fn(``), "tools[0].function.name"}, {fn(`"name":7`), "tools[0].function.name"}, {fn(`"name":"a b"`), "tools[0].function.name"},
		{fn(`"name":"` + strings.Repeat("a", 129) + `"`), "tools[0].function.name"},
		{fn(`"name":"f","description":1`), "tools[0].function.description"}, {fn(`"name":"f","strict":1`), "tools[0].function.strict"},
		{fn(`"name":"f","parameters":[]`), "tools[0].function.parameters"},
		{fn(`"name":"f","parameters":{"type":"array"}`), "tools[0].function.parameters.type"},
		{with(`"tools":[{"function":{"name":"f"}},{"function":{"name":"f"}}]`), "tools[1].function.name"},
		{with(twoTools + `,"tool_choice":"maybe"`), "tool_choice"}, {with(twoTools + `,"tool_choice":7`), "tool_choice"},
		{with(twoTools + `,"tool_choice":["f"]`), "tool_choice"}, {with(twoTools + `,"tool_choice":{}`), "tool_choice.type"},
		{with(twoTools + `,"tool_choice":{"type":"custom","custom":{"name":"f"}}`), "tool_choice.type"},
		{with(twoTools + `,"tool_choice":{"type":"function"}`), "tool_choice.function"},
		{with(twoTools + `,"tool_choice":{"type":"function","function":{"name":"h"}}`), "tool_choice.function.name"},
		{with(`"tool_choice":{"type":"function","function":{"name":"f"}}`), "tool_choice.function.name"},
		{with(`"tool_choice":"required"`), "tool_choice"}, {with(`"tools":[],"tool_choice":"required"`), "tool_choice"},
		{with(twoTools + `,"tool_choice":{"type":"allowed_tools"}`), "tool_choice.allowed_tools"},
		{with(twoTools + `,"tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"any"}}`), "tool_choice.allowed_tools.mode"},
		{with(twoTools + `,"tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"auto","tools":[]}}`),
			"tool_choice.allowed_tools.tools"},
		{with(twoTools + `,"tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"auto","tools":[{"function":{"name":"h"}}]}}`),
			"tool_choice.allowed_tools.tools[0].function.name"},
		{with(`"parallel_tool_calls":1`), "parallel_tool_calls"},
		{with(`"reasoning_effort":"huge"`), "reasoning_effort"}, {with(`"reasoning_effort":3`), "reasoning_effort"},
		{with(`"thinking_token_budget":-1`), "thinking_token_budget"}, {with(`"thinking_token_budget":"x"`), "thinking_token_budget"},
		{`{"messages":[{"role":"assistant","content":"x","reasoning_content":7}]}`, "messages[0].reasoning_content"},
	} {
		for _, models := range [][]api.Model{served, callers} {
			_, err := DecodeChat([]byte(c.body), models, arrival)
			requireRefused(t, c, err)
		}
	}
	_, err := DecodeChat([]byte(with(`"tools":[{"function":{"name":"f"}},{"function":{"name":"f"}}]`)), callers, arrival)
	require.EqualError(t, err, `tools[1].function.name: found "f" a second time, expected different names`)
	_, err = DecodeChat([]byte(with(twoTools+`,"tool_choice":{"type":"function","function":{"name":"h"}}`)), callers, arrival)
	require.EqualError(t, err, `tool_choice.function.name: found "h", expected the name of one of the tools`)
}

func decodeTools(t *testing.T, fields string) *call.Call {
	t.Helper()
	c, err := DecodeChat([]byte(`{`+userHi+`,`+fields+`}`), callers, arrival)
	require.NoError(t, err)
	return c
}

func TestToolsSetHowTheAnswerIsParsed(t *testing.T) {
	auto := call.Parsing{Format: "hermes+think", Calls: true}
	require.Equal(t, auto, decodeTools(t, twoTools).Parsing)
	require.Equal(t, auto, decodeTools(t, twoTools+`,"tool_choice":"auto","parallel_tool_calls":true`).Parsing)
	spec := decodeTools(t, twoTools).Requests[0].Grammar
	require.Equal(t, []string{"<tool_call>", "<think>", "</think>"}, []string{spec.After, spec.SkipFrom, spec.SkipTo},
		"reasoning has no calls")
	forced := decodeTools(t, twoTools+`,"tool_choice":"required"`).Requests[0].Grammar
	require.Empty(t, forced.SkipFrom+forced.SkipTo)
	single := auto
	single.Single = true
	require.Equal(t, single, decodeTools(t, twoTools+`,"parallel_tool_calls":false`).Parsing)
	allowed := auto
	allowed.Allowed = []string{"g"}
	c := decodeTools(t,
		twoTools+`,"tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"auto","tools":[{"type":"function","function":{"name":"g"}}]}}`)
	require.Equal(t, allowed, c.Parsing)
	require.Len(t, c.Requests[0].Tools, 2, "the template shows all tools")
	none := decodeTools(t, twoTools+`,"tool_choice":"none"`)
	require.Equal(t, call.Parsing{Format: "hermes+think", Held: true}, none.Parsing)
	require.Nil(t, none.Requests[0].Tools)
	require.Equal(t, "</think>", none.Requests[0].ReasoningEnd)
	guided := decodeTools(t, twoTools+`,"tool_choice":"none","guided_regex":"a"`).Requests[0].Grammar
	require.Equal(t, []string{"<think>", "</think>", "a"}, []string{guided.Opening, guided.After, guided.Source},
		"the model may reason first")
}

func TestReasoningEffortReachesTheTemplate(t *testing.T) {
	require.Nil(t, chat(t, ``).TemplateArgs)
	require.Equal(t, map[string]any{"reasoning_effort": "low", "enable_thinking": true, "thinking": true},
		chat(t, `,"reasoning_effort":"low"`).TemplateArgs)
	require.Equal(t, map[string]any{"reasoning_effort": "none", "enable_thinking": json.RawMessage("true"), "thinking": false},
		chat(t, `,"reasoning_effort":"none","chat_template_kwargs":{"enable_thinking":true}`).TemplateArgs)
}

// TestTemplateArgumentsKeepTheirText: templates print them.
func TestTemplateArgumentsKeepTheirText(t *testing.T) {
	const documents = `[{"title":"t","text":"x","id":12345678901234567,"share":1.0}]`
	r := chat(t, `,"chat_template_kwargs":{"documents":`+documents+`,"none":null}`)
	require.Equal(t, map[string]any{"documents": json.RawMessage(documents), "none": json.RawMessage("null")}, r.TemplateArgs)
	_, _, args, err := encoded(r)
	require.NoError(t, err)
	require.Equal(t, r.TemplateArgs, args, "also in another process")
	require.Nil(t, chat(t, `,"chat_template_kwargs":null`).TemplateArgs)
}

// encoded returns a request's chat as another process reads it.
func encoded(r *api.Request) ([]api.Message, []any, map[string]any, error) {
	messages, tools, args, err := api.EncodeChat(r.Messages, r.Tools, r.TemplateArgs)
	if err != nil {
		return nil, nil, nil, err
	}
	return api.DecodeChat(messages, tools, args)
}

func TestTextPartsReachTheTemplateAsTheyAre(t *testing.T) {
	c, err := DecodeChat([]byte(`{"messages":[{"role":"user","content":[{"type":"text","text":"a\nb"},{"type":"text","text":""},{"type":"text","text":"é"}]},
		{"role":"assistant","content":[]},{"role":"user","content":"x"}]}`), callers, time.Unix(5, 0))
	require.NoError(t, err)
	messages, _, _, err := encoded(c.Requests[0])
	require.NoError(t, err)
	require.Equal(t, "a\nb\n\né", messages[0].Content)
	require.Equal(t, []string{"a\nb", "", "é"}, messages[0].TextParts())
	require.Nil(t, messages[1].TextParts())
	require.Nil(t, messages[2].TextParts())
}

func TestEarlierReasoningReachesTheTemplate(t *testing.T) {
	for _, name := range []string{"reasoning", "reasoning_content"} {
		c, err := DecodeChat(fmt.Appendf(nil, `{"messages":[{"role":"assistant","content":"x","%s":"y"},{"role":"user","content":"z"}]}`,
			name), served, arrival)
		require.NoError(t, err)
		require.Equal(t, api.Message{Role: "assistant", Content: "x", Reasoning: "y"}, c.Requests[0].Messages[0])
	}
}

func TestAnyArgumentsOfAnEarlierCallAreTaken(t *testing.T) {
	for sent, want := range map[string]string{
		`"arguments":""`: `{}`, `"arguments":null`: `{}`, `"x":1`: `{}`, `"arguments":{"a":1}`: `{"a":1}`,
		`"arguments":[1]`:                `{"input":[1]}`,
		`"arguments":"{\"city\": \"Par"`: `{"city":"Par"}`, `"arguments":"\"Tell me,\""`: `{"input":"Tell me,"}`,
		`"arguments":"7"`:       `{"input":7}`,
		`"arguments":"no JSON"`: `{"input":"no JSON"}`,
	} {
		c, err := DecodeChat([]byte(`{"messages":[{"role":"assistant","tool_calls":[{"id":"c","function":{"name":"f",`+sent+`}}]}]}`),
			served, arrival)
		require.NoError(t, err, sent)
		raw, err := api.Marshal(c.Requests[0].Messages[0].ToolCalls)
		require.NoError(t, err)
		require.JSONEq(t, `[{"id":"c","type":"function","function":{"name":"f","arguments":`+want+`}}]`, string(raw), sent)
	}
}

func TestToolsThatTheServerCannotRunAreIgnoredByName(t *testing.T) {
	c := decodeTools(t, `"web_search_options":{},"tools":[{"type":"web_search"},{"type":"function","function":{"name":"f"}},{"type":"custom","custom":{"name":"g"}},
		{"type":"a b\r\nX: y"}],"tool_choice":"required"`)
	require.Equal(t, []string{"tools[0] (web_search)", "tools[2] (custom)", "tools[3]", "web_search_options"}, c.Ignored)
	require.Len(t, c.Requests[0].Tools, 1)
	require.True(t, c.Parsing.Calls)
	c = decodeTools(t, `"tools":[{"type":"web_search"}]`)
	require.Empty(t, c.Requests[0].Tools)
	require.False(t, c.Parsing.Calls)
	require.Equal(t, "tools[0] (web_search)", c.IgnoredText())
	c = decodeTools(t, `"tools":[`+strings.Repeat(`{"type":"x"},`, 40)+`{"type":"x"}]`)
	require.True(t, strings.HasSuffix(c.IgnoredText(), ", tools[15] (x) and 25 more"), c.IgnoredText())
	require.Empty(t, decodeTools(t, twoTools).IgnoredText())
}

func TestAnEarlierRefusalIsTaken(t *testing.T) {
	for sent, want := range map[string]string{
		`"content":null,"refusal":"I cannot."`: "I cannot.", `"content":[{"type":"refusal","refusal":"I cannot."}]`: "I cannot.",
		`"content":[{"type":"text","text":"a"},{"type":"refusal","refusal":"b"}]`: "a\nb", `"content":"a","refusal":null`: "a",
		`"content":null`: "", `"content":""`: "",
	} {
		c, err := DecodeChat([]byte(`{"messages":[{"role":"assistant",`+sent+`},{"role":"user","content":"x"}]}`), served, arrival)
		require.NoError(t, err, sent)
		require.Equal(t, want, c.Requests[0].Messages[0].Content, sent)
	}
	for sent, want := range map[string]string{
		`"content":null,"refusal":7`: "messages[0].refusal", `"content":[{"type":"refusal","text":"x"}]`: "messages[0].content[0].refusal",
	} {
		_, err := DecodeChat([]byte(`{"messages":[{"role":"assistant",`+sent+`}]}`), served, arrival)
		require.Equal(t, want, api.AsError(err).Param, sent)
	}
}

func TestAnEarlierCallOfACustomToolHasItsText(t *testing.T) {
	c,
		err := DecodeChat([]byte(`{"messages":[{"role":"assistant","tool_calls":[{"id":"c","type":"custom","custom":{"name":"f","input":"a\n<b>"}}]}]}`), served, arrival)
	require.NoError(t, err)
	raw, err := api.Marshal(c.Requests[0].Messages[0].ToolCalls)
	require.NoError(t, err)
	require.Equal(t, `[{"id":"c","type":"function","function":{"name":"f","arguments":{"input":"a\n<b>"}}}]`, string(raw))
}

// deltas returns the choices of chunks, with the id of a call replaced.
func deltas(t *testing.T, chunks [][]byte) (list []string) {
	t.Helper()
	for _, chunk := range chunks {
		var c struct{ Choices []json.RawMessage }
		require.NoError(t, json.Unmarshal(chunk, &c), "%s", chunk)
		for _, choice := range c.Choices {
			list = append(list, strings.ReplaceAll(string(choice), `"logprobs":null,`, ""))
		}
	}
	return list
}

func TestChunksHaveReasoningAndCalls(t *testing.T) {
	c := decodeTools(t, twoTools+`,"stream":true,"stream_options":{"include_usage":true},"return_token_ids":true`)
	c.ID, c.Parsing.Held = "chatcmpl-1", false
	chunks := NewChunks(c, "fp")
	encode := func(ev api.Event) []string { return deltas(t, chunks.Encode(ev)) }
	require.Equal(t, []string{`{"index":0,"delta":{"reasoning_content":"hm"},"finish_reason":null,"token_ids":[1]}`},
		encode(api.Event{Text: "<think>hm", Tokens: []int32{1}}))
	require.Equal(t, []string{`{"index":0,"delta":{},"finish_reason":null,"token_ids":[2]}`},
		encode(api.Event{Text: "</th", Tokens: []int32{2}}))
	require.Equal(t, []string{`{"index":0,"delta":{"content":"So:"},"finish_reason":null,"token_ids":[3]}`},
		encode(api.Event{Text: "ink>So:\n<tool", Tokens: []int32{3}}))
	got := encode(api.Event{Text: `_call>{"name": "f", "arguments": {"a`, Tokens: []int32{4}})
	require.Len(t, got, 2)
	require.Regexp(t,
		`^{"index":0,"delta":{"tool_calls":\[{"index":0,"id":"call_[0-9a-f]{24}","type":"function","function":{"name":"f","arguments":""}}\]},"finish_reason":null,"token_ids":\[4\]}$`, got[0])
	require.Equal(t, `{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{\"a"}}]},"finish_reason":null}`, got[1])
	require.Equal(t, []string{
		`{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"\":1}"}}]},"finish_reason":null,"token_ids":[5]}`,
		`{"index":0,"delta":{},"finish_reason":"tool_calls"}`,
	}, encode(api.Event{Text: `":1}}</tool_call>`, Tokens: []int32{5}, Finish: api.FinishStop}))
	last := chunks.Encode(api.Event{Done: true, Usage: &api.Usage{CompletionTokens: 5}})
	require.Contains(t, string(last[0]), `"completion_tokens_details":{"reasoning_tokens":3}`)
}

// TestAReaderFromAnyEventSeesTheSameChunks holds that chunks depend on the events alone: a stream that is resumed
// encodes all events again, and sends those after the last one that its client has.
func TestChunksOfAResumedStreamAreTheSame(t *testing.T) {
	c := decodeTools(t, twoTools+`,"stream":true,"n":2`)
	var events []api.Event
	for i, text := range strings.SplitAfter(`<think>a b</think>c <tool_call>{"name": "f", "arguments": {"x": "y z"}}</tool_call>`, " ") {
		for choice := range 2 {
			events = append(events, api.Event{Choice: choice, Text: text, Tokens: []int32{int32(i)}})
		}
	}
	for choice := range 2 {
		events = append(events, api.Event{Choice: choice, Finish: api.FinishStop})
	}
	all := func() (out []string) {
		chunks := NewChunks(c, "fp")
		for _, ev := range events {
			for _, chunk := range chunks.Encode(ev) {
				out = append(out, string(chunk))
			}
		}
		return out
	}
	first := all()
	require.Equal(t, first, all())
	require.Contains(t, strings.Join(first, ""), `"finish_reason":"tool_calls"`)
}

func TestAWholeAnswerHasReasoningAndCalls(t *testing.T) {
	c := decodeTools(t, twoTools)
	r := &call.Result{Reasons: true, Reasoning: 3, Pins: []api.Pin{{}}, Choices: []call.Choice{
		{Reasoning: "hm", Calls: []call.ToolCall{{ID: "call_1", Name: "f", Arguments: `{"a":1}`}}, Finish: api.FinishToolCalls},
	}}
	body, err := EncodeAnswer(c, r, "fp")
	require.NoError(t, err)
	require.Contains(t, string(body), `"message":{"role":"assistant","content":null,"refusal":null,"reasoning_content":"hm",`+
		`"tool_calls":[{"id":"call_1","type":"function","function":{"name":"f","arguments":"{\"a\":1}"}}]},"logprobs":null,"finish_reason":"tool_calls"`)
	require.Contains(t, string(body), `"completion_tokens_details":{"reasoning_tokens":3}`)
	r = &call.Result{Pins: []api.Pin{{}}, Choices: []call.Choice{{Text: "", Finish: api.FinishStop}}}
	body, err = EncodeAnswer(c, r, "fp")
	require.NoError(t, err)
	require.Contains(t, string(body), `"message":{"role":"assistant","content":"","refusal":null},`)
	require.NotContains(t, string(body), "completion_tokens_details")
}

func TestForcedCallsHaveAGrammar(t *testing.T) {
	c := decodeTools(t, twoTools+`,"tool_choice":"required"`)
	r := c.Requests[0]
	require.Equal(t, call.Parsing{Format: "hermes+think", Calls: true}, c.Parsing, "nothing is held")
	require.Equal(t, grammar.Lark, r.Grammar.Kind)
	require.Equal(t, "tools", r.Grammar.Param)
	require.Empty(t, r.Grammar.After)
	require.Contains(t, r.Grammar.Source, `{\"name\": \"g\"`)
	require.Empty(t, r.Grammar.Opening, "the grammar has a place for reasoning")
	require.Len(t, r.Tools, 2)

	c = decodeTools(t, twoTools+`,"tool_choice":{"type":"function","function":{"name":"f"}}`)
	require.Equal(t, call.Parsing{Format: "hermes+think", Calls: true, Allowed: []string{"f"}, Single: true}, c.Parsing)
	require.NotContains(t, c.Requests[0].Grammar.Source, `{\"name\": \"g\"`)
	require.Len(t, c.Requests[0].Tools, 2, "the template shows all tools")

	plain, err := DecodeChat([]byte(`{`+userHi+`,`+twoTools+`,"tool_choice":"required"}`), served, arrival)
	require.NoError(t, err)
	require.Equal(t, "hermes", plain.Parsing.Format, "for a model whose format is not known")

	_, err = DecodeChat([]byte(`{`+userHi+`,`+twoTools+`,"tool_choice":"required","guided_regex":"a"}`), callers, arrival)
	require.ErrorContains(t, err, "guided_regex: found together with tools")
}

// TestABadSchemaNamesItsToolAndProperty: not the grammar that is made of all tools.
func TestABadSchemaNamesItsToolAndProperty(t *testing.T) {
	fn := func(fields string) string { return `{"type":"function","function":{` + fields + `}}` }
	tools := `"tools":[` + fn(`"name":"good","parameters":{"type":["object","null"]}`) + `,` +
		fn(`"name":"bad","strict":true,"parameters":{"type":"object","properties":{"tags":{"type":"array","uniqueItems":true}}}`) + `]`
	_, err := DecodeChat([]byte(`{`+userHi+`,`+tools+`,"tool_choice":"required"}`), callers, arrival)
	requireRefused(t, bad{tools, "tools[1].function.parameters"}, err)
	require.ErrorContains(t, err,
		`tools[1].function.parameters.properties.tags.uniqueItems: found uniqueItems, which cannot be enforced (tool "bad")`)
	_,
		err = DecodeChat([]byte(`{`+userHi+`,`+twoTools+`,"response_format":{"type":"json_schema","json_schema":{"name":"x","schema":{"contains":{"const":1}}}}}`), callers, arrival)
	require.ErrorContains(t, err, `response_format.json_schema.schema: cannot be compiled: contains: found contains`)
	loose := strings.ReplaceAll(tools, `"strict":true,`, "")
	c, err := DecodeChat([]byte(`{`+userHi+`,`+loose+`,"tool_choice":"required"}`), callers, arrival)
	require.NoError(t, err, "any tool can be forced that is not strict")
	require.NotContains(t, c.Requests[0].Grammar.Source, "uniqueItems")
}
