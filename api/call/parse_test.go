package call

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/tools"
	"github.com/millrace/millrace/compute/grammar"
	"github.com/millrace/millrace/compute/sample"
)

// nowTool is a tool as a request has it.
var nowTool = []any{json.RawMessage(`{"type":"function","function":{"name":"now","strict":true}}`)}

// parsedCall is a chat of n choices whose answer is parsed.
func parsedCall(n int, format string) *Call {
	return &Call{ID: "chatcmpl-1", N: n, Requests: []*api.Request{{N: n, Tools: nowTool}},
		Parsing: Parsing{Format: format, Calls: true, Held: true}}
}

// collect returns the answer that events make.
func collect(t *testing.T, c *Call, events ...api.Event) *Result {
	t.Helper()
	r, err := Collect(t.Context(), c, EventsOf(events...))
	require.NoError(t, err)
	return r
}

func end(choice int, finish api.Finish) api.Event {
	return api.Event{Choice: choice, Finish: finish, Done: true, Usage: &api.Usage{CompletionTokens: 9}}
}

func TestAnAnswerIsSplitIntoReasoningContentAndCalls(t *testing.T) {
	r := collect(t, parsedCall(1, "hermes+think"),
		api.Event{Text: "<thi", Tokens: []int32{1}}, api.Event{Text: "nk>a", Tokens: []int32{2}},
		api.Event{Text: "b</think>", Tokens: []int32{3}},
		api.Event{Text: "c<tool", Tokens: []int32{4}}, api.Event{Text: `_call>{"name": "now"}</tool_call>`, Tokens: []int32{5}},
		end(0, api.FinishStop))
	ch := r.Choices[0]
	require.Len(t, ch.Calls, 1)
	require.Equal(t, "now", ch.Calls[0].Name)
	require.Equal(t, "{}", ch.Calls[0].Arguments)
	require.Regexp(t, "^call_", ch.Calls[0].ID)
	require.Equal(t, "ab", ch.Reasoning)
	require.Equal(t, "c", ch.Text)
	require.Equal(t, api.FinishToolCalls, ch.Finish)
	require.True(t, r.Reasons)
	require.Equal(t, 2, r.Reasoning, "the tokens that begin or end inside reasoning")
	require.Equal(t, []int32{1, 2, 3, 4, 5}, ch.Tokens)
}

func TestACallThatIsCutEndsWithLength(t *testing.T) {
	c := parsedCall(1, "hermes")
	r := collect(t, c, api.Event{Text: `<tool_call>{"name": "now", "arg`}, end(0, api.FinishLength))
	require.Equal(t, `<tool_call>{"name": "now", "arg`, r.Choices[0].Text)
	require.Equal(t, api.FinishLength, r.Choices[0].Finish)
	require.False(t, r.Reasons)

	r = collect(t, c, api.Event{Text: `<tool_call>{"name": "now"}</tool_call> and`}, end(0, api.FinishLength))
	require.Len(t, r.Choices[0].Calls, 1)
	require.Equal(t, api.FinishLength, r.Choices[0].Finish)

	c.Parsing.Held = false
	r = collect(t, c, api.Event{Text: `<tool_call>{"name": "now", "arguments": {"a`}, end(0, api.FinishLength))
	require.Empty(t, r.Choices[0].Text)
	require.Equal(t, `{"a`, r.Choices[0].Calls[0].Arguments)
	require.Equal(t, api.FinishLength, r.Choices[0].Finish)

	r = collect(t, c, api.Event{Text: `<tool_call>{"name": "now", "arguments": {"a`}, end(0, api.FinishStop))
	require.Equal(t, api.FinishStop, r.Choices[0].Finish, "a stop string cut the call")
}

func TestEachChoiceHasItsOwnCalls(t *testing.T) {
	const call = `<tool_call>{"name": "now"}</tool_call>`
	r := collect(t, parsedCall(3, "hermes"), api.Event{Text: "<tool_"}, api.Event{Choice: 1, Text: "no"}, api.Event{Choice: 2, Text: call},
		api.Event{Text: `call>{"name": "now"}`}, api.Event{Finish: api.FinishStop}, api.Event{Choice: 1, Finish: api.FinishStop},
		end(2, api.FinishStop))
	require.Equal(t, api.FinishToolCalls, r.Choices[0].Finish)
	require.Equal(t, Choice{Text: "no", Finish: api.FinishStop}, r.Choices[1])
	require.NotEqual(t, r.Choices[0].Calls[0].ID, r.Choices[2].Calls[0].ID)
}

func TestAnAnswerThatBeginsAgainIsParsedAgain(t *testing.T) {
	r := collect(t, parsedCall(1, "hermes+think"), api.Event{Text: "a"}, api.Event{Restart: true}, api.Event{Text: "b", Reasons: true},
		api.Event{Text: "</think>c"}, end(0, api.FinishStop))
	require.Equal(t, "b", r.Choices[0].Reasoning)
	require.Equal(t, "c", r.Choices[0].Text)
}

func TestOnlyAllowedToolsAreCalled(t *testing.T) {
	c := parsedCall(1, "hermes")
	c.Parsing.Allowed = []string{"other"}
	r := collect(t, c, api.Event{Text: `<tool_call>{"name": "now"}</tool_call>`}, end(0, api.FinishStop))
	require.Equal(t, Choice{Text: `<tool_call>{"name": "now"}</tool_call>`, Finish: api.FinishStop}, r.Choices[0])
}

func TestAFormatOfALaterVersionLeavesTheTextAsItIs(t *testing.T) {
	require.Nil(t, NewParser(parsedCall(1, "later")))
	require.Nil(t, NewParser(&Call{N: 1, Requests: []*api.Request{{}}}))
}

func TestToolsAreReadFromTheRequest(t *testing.T) {
	require.Equal(t, []tools.Tool{{Name: "now", Strict: true}, {Name: "f", Parameters: json.RawMessage(`{"b":1,"a":2}`)}},
		Tools(append(nowTool, json.RawMessage(`{"function":{"name":"f","parameters":{"b":1,"a":2}}}`))))
}

func TestAToolChoiceSetsHowTheAnswerIsParsed(t *testing.T) {
	choose := func(format string, t ToolChoice, list []any) (*Call, error) {
		c := &Call{N: 1, Requests: []*api.Request{{Tools: list}}}
		return c, c.Choose(&api.Model{TextFacts: api.TextFacts{Format: format}}, t)
	}
	for name, c := range map[string]struct {
		format string
		choice ToolChoice
		tools  []any
		want   Parsing
		kept   []string
	}{
		"plain text": {"", ToolChoice{}, nowTool, Parsing{}, nil},
		"no tools":   {"hermes", ToolChoice{}, nil, Parsing{}, nil},
		"tools": {"hermes", ToolChoice{}, nowTool, Parsing{Format: "hermes", Calls: true},
			[]string{"<tool_call>", "</tool_call>"}},
		"one call": {"hermes", ToolChoice{Single: true}, nowTool, Parsing{Format: "hermes", Calls: true, Single: true},
			[]string{"<tool_call>", "</tool_call>"}},
		"a format without a grammar": {"pythonic", ToolChoice{}, nowTool, Parsing{Format: "pythonic", Calls: true, Held: true},
			[]string{"<|python_start|>", "<|python_end|>"}},
		"none": {"hermes", ToolChoice{None: true}, nowTool, Parsing{}, nil},
		"reasoning": {"hermes+think", ToolChoice{}, nil, Parsing{Format: "hermes+think", Held: true},
			[]string{"<think>", "</think>"}},
		"reasoning without calls": {"none+think", ToolChoice{}, nowTool, Parsing{Format: "none+think", Held: true},
			[]string{"<think>", "</think>"}},
		"a later version": {"later", ToolChoice{}, nowTool, Parsing{}, nil},
	} {
		got, err := choose(c.format, c.choice, c.tools)
		require.NoError(t, err, name)
		require.Equal(t, c.want, got.Parsing, name)
		require.Equal(t, c.kept, got.Requests[0].KeepTokens, name)
		if c.choice.None {
			require.Nil(t, got.Requests[0].Tools)
		}
	}
	_, err := choose("hermes", ToolChoice{Param: "tool_choice", Found: `"required"`, Required: true}, nil)
	require.EqualError(t, err, `tool_choice: found "required" without tools, expected tools`)
}

func TestAGrammarBeginsAfterTheMarkerOfACall(t *testing.T) {
	choose := func(r *api.Request, t ToolChoice) error {
		r.Tools = nowTool
		return (&Call{N: 1, Requests: []*api.Request{r}}).Choose(&api.Model{TextFacts: api.TextFacts{Format: "hermes",
			Special: map[string]int32{"</tool_call>": 9}}}, t)
	}
	r := &api.Request{}
	require.NoError(t, choose(r, ToolChoice{}))
	require.Equal(t, "<tool_call>", r.Grammar.After)
	require.True(t, r.Grammar.Optional && r.Grammar.Repeat)
	require.Equal(t, "tools", r.Grammar.Param)
	require.Contains(t, r.Grammar.Source, "<[9]>")
	require.NoError(t, r.Grammar.Validate())

	r = &api.Request{}
	require.NoError(t, choose(r, ToolChoice{Single: true}))
	require.False(t, r.Grammar.Repeat)

	r = &api.Request{}
	many := make([]any, 1000)
	for i := range many {
		many[i] = json.RawMessage(fmt.Sprintf(`{"function":{"name":"%s%d"}}`, strings.Repeat("f", 100), i))
	}
	c := &Call{N: 1, Requests: []*api.Request{r}}
	r.Tools = many
	require.NoError(t, c.Choose(&api.Model{TextFacts: api.TextFacts{Format: "hermes"}}, ToolChoice{}))
	require.Nil(t, r.Grammar, "one that is too large")
	require.True(t, c.Parsing.Held)

	r = &api.Request{Beams: &sample.BeamParams{}}
	require.NoError(t, choose(r, ToolChoice{}))
	require.Nil(t, r.Grammar, "a beam search has none")
}

func TestAJSONAnswerOrCalls(t *testing.T) {
	choose := func(kind grammar.Kind, required bool) (*Call, error) {
		r := &api.Request{Tools: nowTool, Grammar: &grammar.Spec{Kind: kind, Source: `{"type":"null"}`, Param: "response_format.type"}}
		c := &Call{N: 1, Requests: []*api.Request{r}}
		return c, c.Choose(&api.Model{TextFacts: api.TextFacts{Format: "hermes"}}, ToolChoice{Param: "tool_choice", Required: required})
	}
	c, err := choose(grammar.JSONSchema, false)
	require.NoError(t, err)
	g := c.Requests[0].Grammar
	require.Equal(t, grammar.Lark, g.Kind)
	require.Equal(t, "response_format.type", g.Param)
	require.Contains(t, g.Source, `{"type":"null",`)
	require.Contains(t, g.Source, `"<tool_call>" call`)
	require.False(t, c.Parsing.Held)
	for _, kind := range []grammar.Kind{grammar.Regex, grammar.Choice, grammar.Lark} {
		_, err = choose(kind, false)
		require.EqualError(t, err,
			`response_format.type: found together with tools, expected one of them, or a JSON schema with tool_choice "auto"`)
	}
	_, err = choose(grammar.JSONSchema, true)
	require.ErrorContains(t, err, "response_format.type")
}
