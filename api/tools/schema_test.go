package tools

import (
	"encoding/json"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestForcedArgumentsAreAnObject: whatever the schema says, or lacks.
func TestForcedArgumentsAreAnObject(t *testing.T) {
	const anyObject = `{"type":"object"}`
	for parameters, want := range map[string]string{
		``: noParameters, `null`: noParameters, `{"type":"object","properties":{}}`: noParameters, `{"properties":{}}`: noParameters,
		`{}`: anyObject, `{"type":["object","null"]}`: anyObject, `{"enum":[1]}`: anyObject, `{"type":"object"}`: anyObject,
		`{"anyOf":[{"type":"string"}]}`:                                              anyObject,
		`{"properties":{"a":{"type":"string"}}}`:                                     `{"type":"object","properties":{"a":{"type":"string"}},"additionalProperties":false}`,
		`{"type":"object","properties":{},"additionalProperties":{"type":"string"}}`: `{"type":"object","properties":{},"additionalProperties":{"type":"string"}}`,
		`{"type":"object","properties":{"a":{"type":"array","uniqueItems":true}}}`:   `{"type":"object","properties":{"a":{"type":"array"}},"additionalProperties":false}`,
		`{"type":"object","properties":{"a":{}},"required":["b"]}`:                   `{"type":"object","properties":{"a":{}},"required":["b"]}`,
		`{"properties":{"a":{}},"anyOf":[{"required":["a"]},{"required":["b"]}]}`:    `{"type":"object","properties":{"a":{}},"anyOf":[{"required":["a"]},{"required":["b"]}]}`,
	} {
		got, err := ruled(&Tool{Name: "f", Parameters: json.RawMessage(parameters)})
		require.NoError(t, err, parameters)
		require.Equal(t, want, string(got.Parameters), parameters)
	}
	for _, format := range Names() {
		f, err := Lookup(format)
		require.NoError(t, err)
		if f.dialect.grammar == nil {
			continue
		}
		for _, parameters := range []string{`{"$ref":"#/$defs/s","$defs":{"s":{"type":"string"}}}`, `{"const":"x"}`} {
			g, ok := guide(t, format, Tool{Name: "f", Parameters: json.RawMessage(parameters)}, Demand{Required: true}, nil)
			require.True(t, ok, format)
			require.NotContains(t, g.Source, `"const"`)
			require.NotContains(t, g.Source, `"string"`)
		}
	}
}

// TestAStrictToolSaysWhatCannotBeEnforced, and where; other tools are called without it.
func TestAStrictToolSaysWhatCannotBeEnforced(t *testing.T) {
	f, err := Lookup("hermes")
	require.NoError(t, err)
	list := []Tool{cityTool,
		{Name: "g", Strict: true,
			Parameters: json.RawMessage(`{"type":"object","properties":{"tags":{"type":"array","uniqueItems":true}}}`)}}
	for _, d := range []Demand{{}, {Required: true}} {
		_, ok, err := f.Guide(list, d, nil)
		require.False(t, ok)
		e, is := errors.AsType[*SchemaError](err)
		require.True(t, is)
		require.Equal(t, []string{"g", "properties.tags.uniqueItems"}, []string{e.Tool, e.Path})
	}
	list[1].Strict = false
	_, ok, err := f.Guide(list, Demand{Required: true}, nil)
	require.True(t, ok)
	require.NoError(t, err)
	list[1].Parameters = json.RawMessage(`{"type":"object","properties":{"a":{"type":"strin"}}}`)
	_, _, err = f.Guide(list, Demand{Required: true}, nil)
	require.ErrorContains(t, err, `tool "g": properties.a.type: found "strin"`)
	_, ok, err = f.Guide(list, Demand{}, nil)
	require.True(t, ok, "nothing is enforced")
	require.NoError(t, err)
}

func TestAParameterThatNoValueSuitsIsLeftOut(t *testing.T) {
	tool := Tool{Name: "f", Parameters: json.RawMessage(`{"properties":{"never":{"not":{}},"a":{"type":"boolean"}}}`)}
	for _, format := range []string{"gemma", "qwen3-xml", "pythonic"} {
		g, _ := guide(t, format, tool, Demand{Required: true}, nil)
		require.NotContains(t, g.Source, "never", format)
		require.Contains(t, g.Source, "a", format)
	}
}

// TestTextFollowsAPatternForAllOfIt, in formats where strings stand without quotes.
func TestTextFollowsAPatternForAllOfIt(t *testing.T) {
	for pattern, want := range map[string]string{
		`^[a-z]{2}/\d$`: `[a-z]{2}\/[0-9]`, `^(?:a|b)c$`: `[ab]c`, `^a|b$`: "", `^a`: "", `a$`: "", `^a\b$`: "", `^a(?=b)$`: "", `^$`: "",
		``: "",
	} {
		require.Equal(t, want, wholeText(pattern), pattern)
	}
	tool := Tool{Name: "f",
		Parameters: json.RawMessage(`{"properties":{"day":{"type":"string","format":"date"},"id":{"type":"string","pattern":"^x+$","maxLength":9}}}`)}
	for _, format := range []string{"gemma", "qwen3-xml", "glm"} {
		g, _ := guide(t, format, tool, Demand{Required: true}, nil)
		require.Contains(t, g.Source, "-02-29", format)
		require.Contains(t, g.Source, "/x+/", format)
	}
}
