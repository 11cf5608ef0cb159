package tools

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var cityTool = Tool{Name: "f",
	Parameters: json.RawMessage(`{"type": "object", "properties": {"b": {"type": "string"}, "a": {"type": "integer"}}, "required": ["b"]}`)}

// guide returns the grammar of a format for one tool.
func guide(t *testing.T, format string, tool Tool, d Demand, special map[string]int32) (Guide, bool) {
	t.Helper()
	f, err := Lookup(format)
	require.NoError(t, err)
	g, ok, err := f.Guide([]Tool{tool}, d, func(s string) (int32, bool) {
		id, ok := special[s]
		return id, ok
	})
	require.NoError(t, err)
	return g, ok
}

func TestTheGrammarOfACallBeginsAfterItsMarker(t *testing.T) {
	g, ok := guide(t, "hermes", cityTool, Demand{}, nil)
	require.True(t, ok)
	require.Equal(t, "<tool_call>", g.After)
	require.True(t, g.Repeat)
	require.Equal(t, `%llguidance {}
value_1: %json {"type":"object","x-guidance":{"whitespace_flexible":false,"item_separator":", ","key_separator":": "}} //@ parameters of tool "f"
call_0: "\n{\"name\": \"f\", \"arguments\": " value_1 "}\n" "</tool_call>"
call: call_0
start: call
TEXT: /(.|\n)*/
`, g.Source)

	strict := cityTool
	strict.Strict = true
	g, ok = guide(t, "hermes", strict, Demand{Single: true}, map[string]int32{"</tool_call>": 9})
	require.True(t, ok)
	require.False(t, g.Repeat, "after one call the answer ends")
	require.Contains(t, g.Source, `"required":["b"]`)
	require.Contains(t, g.Source, `"}\n" <[9]>`, "a special token is its id")
}

func TestForcedCallsAreTheWholeAnswer(t *testing.T) {
	g, ok := guide(t, "hermes", cityTool, Demand{Required: true}, nil)
	require.True(t, ok)
	require.Empty(t, g.After)
	require.Contains(t, g.Source, `start: "<tool_call>" call ("\n" "<tool_call>" call){0,31}`)
	require.Contains(t, g.Source, `"required":["b"]`, "without strict, too")
	g, _ = guide(t, "hermes+think", cityTool, Demand{Required: true, Single: true}, nil)
	require.Contains(t, g.Source, `start: ("<think>" value_2)? /\n{0,2}/ "<tool_call>" call`+"\n")
	require.Contains(t, g.Source, `value_2[lazy]: TEXT "</think>"`)
	g, _ = guide(t, "deepseek", cityTool, Demand{Required: true}, nil)
	require.Contains(t, g.Source, `start: "<｜tool▁calls▁begin｜>" call (call){0,31} "<｜tool▁calls▁end｜>"`)
	g, _ = guide(t, "mistral", cityTool, Demand{Required: true}, map[string]int32{"[TOOL_CALLS]": 5, "[ARGS]": 6})
	require.Contains(t, g.Source, `call_0: "f" <[6]> value_1`)
	require.Contains(t, g.Source, `start: <[5]> call (<[5]> call){0,31}`)
	g, ok = guide(t, "hermes", cityTool, Demand{Or: json.RawMessage(`{"type":"object"}`)}, nil)
	require.True(t, ok)
	require.Contains(t, g.Source, `start: (("<tool_call>" call ("\n" "<tool_call>" call){0,31}) | value_2)`)
}

func TestAFormatWithoutAMarkerHasNoGrammarForAuto(t *testing.T) {
	for _, format := range []string{"llama3-json", "pythonic"} {
		_, ok := guide(t, format, cityTool, Demand{}, nil)
		require.False(t, ok, format)
		_, ok = guide(t, format, cityTool, Demand{Required: true}, nil)
		require.True(t, ok, format)
	}
	_, ok := guide(t, "none", cityTool, Demand{Required: true}, nil)
	require.False(t, ok)
	f, err := Lookup("none")
	require.NoError(t, err)
	require.Equal(t, "hermes", f.ForCalls().String())
}

func TestGemmasArgumentsFollowTheSchema(t *testing.T) {
	tool := Tool{Name: "f", Parameters: json.RawMessage(`{"type": "object", "properties": {"s": {"type": "string", "maxLength": 3}, "e": {"enum": ["x", 1, {"a": [null]}]},
		"n": {"type": ["integer", "null"], "minimum": 1, "title": "t"}, "l": {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3},
		"r": {"$ref": "#/$defs/r"}, "odd key": {"anyOf": [{"type": "boolean"}, {"const": "c"}]}}, "required": ["s"],
		"$defs": {"r": {"type": "object", "properties": {"next": {"$ref": "#/$defs/r"}}}}}`)}
	g, ok := guide(t, "gemma", tool, Demand{Required: true}, map[string]int32{"<|tool_call>": 5, `<|"|>`: 6})
	require.True(t, ok)
	for _, want := range []string{
		`start: <[5]> call (<[5]> call){0,31}`,
		`call_0: "call:f" "{" "s" ":" <[6]> /(.|\n){0,3}/ <[6]> ("," "e" ":" (<[6]> "x" <[6]> | "1" | "{" "a" ":" "[" "null" "]" "}"))? `,
		`%json {"minimum":1,"type":"integer","x-guidance"`,
		`"[" value_2 ("," value_2){0,2} "]"`,
		`("," <[6]> "odd key" <[6]> ":" (("true" | "false") | <[6]> "c" <[6]>))? "}" "<tool_call|>"`,
		`value_1: "{" ("next" ":" value_1)? "}"`,
	} {
		require.Contains(t, g.Source, want)
	}
	g, ok = guide(t, "functiongemma", cityTool, Demand{}, nil)
	require.True(t, ok)
	require.Equal(t, "<start_function_call>", g.After)
	require.True(t, g.Repeat)
	require.Contains(t, g.Source, `/[a-zA-Z_][a-zA-Z0-9_]{0,63}/ ":" value_1`, "any arguments")
	g, _ = guide(t, "gemma+think", cityTool, Demand{Required: true}, map[string]int32{"<|channel>": 7, "<channel|>": 8})
	require.Contains(t, g.Source, `start: (<[7]> "thought\n" TEXT <[8]>)? `)
}

func TestArgumentsThatAreTextFollowTheSchema(t *testing.T) {
	tool := Tool{Name: "f", Parameters: json.RawMessage(`{"properties": {"s": {"type": "string"}, "e": {"enum": ["x", "y"]}, "n": {"type": "integer"},
		"r": {"$ref": "#/$defs/r"}, "l": {"type": "string", "maxLength": 3}}, "required": ["s", "n", "z"], "$defs": {"r": {"type": "null"}}}`)}
	g, ok := guide(t, "qwen3-xml", tool, Demand{Required: true}, nil)
	require.True(t, ok)
	require.Contains(t, g.Source, `value_1[lazy]: TEXT "\n</parameter>\n"`)
	require.Contains(t, g.Source, `"<parameter=s>\n" value_1 ("<parameter=e>\n" ("x" | "y") "\n</parameter>\n")? "<parameter=n>\n" value_2`)
	require.Contains(t, g.Source, `[lazy]: /(.|\n){0,3}/ "\n</parameter>\n"`)
	require.Contains(t, g.Source, `("<parameter=r>\n" value_3 `)
	require.Contains(t, g.Source, `value_3: %json {"type":"null","x-guidance"`)
	require.Contains(t, g.Source, `"<parameter=z>\n"`, "a required argument that is not listed")
	g, _ = guide(t, "pythonic", tool, Demand{Required: true}, nil)
	require.Contains(t, g.Source, `call_0: "f(" "s=" value_`)
	g, _ = guide(t, "glm", Tool{Name: "f"}, Demand{}, nil)
	require.Contains(t, g.Source, `/[a-zA-Z0-9_.-]{1,64}/`, "any arguments")
}

func TestKeysKeepTheirOrder(t *testing.T) {
	require.Equal(t, []string{"z", "a", "m"}, keys(json.RawMessage(`{"z": {"q": 1}, "a": [1], "m": 2, "a": 3}`)))
	require.Empty(t, keys(nil))
	require.Empty(t, keys(json.RawMessage(`[1]`)))
	require.True(t, strings.HasPrefix((&lark{}).String(), "%llguidance {}"))
}
