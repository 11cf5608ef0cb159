package llguidance

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/compute/grammar"
)

// TestAGrammarWithoutATextThatEndsIsNotCompiled: neither one whose texts never end, nor one with a part that a text
// enters and cannot leave.
func TestAGrammarWithoutATextThatEndsIsNotCompiled(t *testing.T) {
	e := letters(t)
	for source, kind := range map[string]grammar.Kind{
		`start: start`:                                              grammar.Lark,
		"start: \"a\" b\nb: b":                                      grammar.Lark,
		"start: \"a\" start":                                        grammar.Lark,
		"start: a | b\na: \"x\" b\nb: \"y\" a":                      grammar.Lark,
		"start: \"a\" | \"b\" c\nc: \"c\" c":                        grammar.Lark,
		"start: \"a\" | \"b\" X\nX: /a/ & /b/":                      grammar.Lark,
		`{"$ref":"#"}`:                                              grammar.JSONSchema,
		`{"type":"integer","minimum":1,"maximum":2,"multipleOf":5}`: grammar.JSONSchema,
		`{"type":"object","properties":{"a":{"$ref":"#"}},"required":["a"]}`: grammar.JSONSchema,
		`[a&&b]`: grammar.Regex,
	} {
		_, err := e.Compile(kind, source)
		require.ErrorIs(t, err, grammar.ErrSpec, source)
		require.Regexp(t, "ends$|no value is possible", err.Error(), source)
	}
	for source, kind := range map[string]grammar.Kind{
		"start: \"a\" start | \"b\"":                 grammar.Lark,
		"start: b?\nb: \"x\" b | \"\"":               grammar.Lark,
		"start: \"a\" | X \"b\"\nX: /a/ & /b/":       grammar.Lark,
		"start: <[65]> %json {\"type\":\"integer\"}": grammar.Lark,
		"start: /a*/": grammar.Lark,
		`{"anyOf":[{"$ref":"#"},{"type":"integer"}]}`: grammar.JSONSchema,
		`{"properties":{"a":{"$ref":"#"}}}`:           grammar.JSONSchema,
		``:                                            grammar.Regex, `a*`: grammar.Regex,
	} {
		_, err := e.Compile(kind, source)
		require.NoError(t, err, source)
	}
}

// TestReasonsAreForThoseWhoWroteTheGrammar: without the engine's options, its copy of the source, and the error inside of an error.
func TestReasonsAreForThoseWhoWroteTheGrammar(t *testing.T) {
	e := letters(t)
	for source, want := range map[string]string{
		`start: x`: `line 1, column 8: unknown name: "x"`,
		"start: a\na: \"x\" %json {\"oneOf\":[{\"type\":\"string\"},{\"type\":\"string\"}]}": `line 2, column 4: found oneOf with alternatives that one value may match together, which cannot be enforced; anyOf can`,
		"start: a\na: %json {\"contains\":{}}" + grammar.Note + "tools[1] (f)\n":             `tools[1] (f): found keywords that cannot be enforced: ["contains"]`,
		`start: /(/`: `line 1, column 8: regular expression: unclosed group`,
	} {
		_, err := e.Compile(grammar.Lark, source)
		require.EqualError(t, err, grammar.ErrSpec.Error()+": "+want, source)
	}
	for source, want := range map[string]string{
		`{"type":"object","required":["a"],"properties":{"a":false}}`: `no value is possible: required property 'a' is unsatisfiable: schema is false`,
		`{"$ref":"#/$defs/a","$defs":{"a":{"contains":{}}}}`:          `found keywords that cannot be enforced: ["contains"]`,
		`{"type":7}`: `7 is not valid under any of the schemas listed in the 'anyOf' keyword`,
	} {
		_, err := e.Compile(grammar.JSONSchema, source)
		require.EqualError(t, err, grammar.ErrSpec.Error()+": "+want, source)
	}
	_, err := e.Compile(grammar.Regex, "a(?=b)")
	require.ErrorContains(t, err, ": regular expression: look-around")
	require.NotContains(t, err.Error(), "start")
}
