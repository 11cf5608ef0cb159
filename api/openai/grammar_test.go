package openai

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/compute/grammar"
)

// TestEverySpellingOfAGrammarReachesTheRequest: OpenAI's, and both of vLLM.
func TestEverySpellingOfAGrammarReachesTheRequest(t *testing.T) {
	for fields, want := range map[string]grammar.Spec{
		`"response_format":{"type":"json_object"}`: {Kind: grammar.JSONObject, Param: "response_format.type"},
		`"response_format":{"type":"json_schema","json_schema":{"name":"a","description":"b","strict":true,"schema":{"type": "object", "z":1, "a":[ ]}}}`: {
			Kind: grammar.JSONSchema, Source: `{"type":"object","z":1,"a":[]}`, Param: "response_format.json_schema.schema"},
		`"structured_outputs":{"json":{"type":"array"}}`: {Kind: grammar.JSONSchema, Source: `{"type":"array"}`,
			Param: "structured_outputs.json"},
		`"structured_outputs":{"regex":"a+","disable_fallback":false}`: {Kind: grammar.Regex, Source: `a+`,
			Param: "structured_outputs.regex"},
		`"structured_outputs":{"choice":["a","b\"<"],"json":null}`: {Kind: grammar.Choice,
			Source: grammar.ChoiceOf([]string{"a", `b"<`}), Param: "structured_outputs.choice"},
		`"structured_outputs":{"grammar":"root ::= \"a\""}`: {Kind: grammar.Lark, Source: `root ::= "a"`,
			Param: "structured_outputs.grammar"},
		`"structured_outputs":{"json_object":true}`: {Kind: grammar.JSONObject, Param: "structured_outputs.json_object"},
		`"guided_json":true`: {Kind: grammar.JSONSchema,
			Source: `true`, Param: "guided_json"},
		`"guided_json":" {\"const\" : \"\\u00e9\"} "`: {Kind: grammar.JSONSchema,
			Source: `{"const":"\u00e9"}`, Param: "guided_json"},
		`"guided_regex":"\\d{3}"`: {Kind: grammar.Regex,
			Source: `\d{3}`, Param: "guided_regex"},
		`"guided_choice":["yes","no"]`: {Kind: grammar.Choice,
			Source: `["yes","no"]`, Param: "guided_choice"},
		`"guided_grammar":"start: \"a\""`: {Kind: grammar.Lark,
			Source: `start: "a"`, Param: "guided_grammar"},
		`"guided_json":true,"guided_whitespace_pattern":"[\\n\\t ]*"`: {Kind: grammar.JSONSchema,
			Source: `true`, Param: "guided_json", WhiteSpace: `[\t\n ]{0,32}`},
		`"response_format":{"type":"json_object"},"guided_whitespace_pattern":""`: {Kind: grammar.JSONObject,
			Param: "response_format.type", Compact: true},
		`"structured_outputs":{"json":true,"whitespace_pattern":" ?"}`: {Kind: grammar.JSONSchema,
			Source: `true`, Param: "structured_outputs.json", WhiteSpace: ` ?`},
		`"structured_outputs":{"json_object":true,"disable_any_whitespace":true}`: {Kind: grammar.JSONObject,
			Param: "structured_outputs.json_object", Compact: true},
		`"structured_outputs":{"regex":"a+","disable_any_whitespace":true},"guided_whitespace_pattern":" "`: {Kind: grammar.Regex,
			Source: `a+`, Param: "structured_outputs.regex"},
		`"response_format":{"type":"text"},"structured_outputs":null,"guided_json":null,"guided_regex":"x"`: {Kind: grammar.Regex,
			Source: `x`, Param: "guided_regex"},
	} {
		got := chat(t, ","+fields).Grammar
		require.NotNil(t, got, fields)
		require.Equal(t, want, *got, fields)
		require.NoError(t, got.Validate())
		c, err := DecodeCompletion([]byte(`{"prompt":["a","b"],`+fields+`}`), served, arrival)
		require.NoError(t, err)
		require.Equal(t, want, *c.Requests[1].Grammar)
	}
	require.Nil(t, chat(t, `,"response_format":{"type":"text"}`).Grammar)
}

func TestABadGrammarIsRefusedByTheFieldAtFault(t *testing.T) {
	for fields, param := range map[string]string{
		`"response_format":{"type":"json_schema","json_schema":{"name":"a"}}`:                   "response_format.json_schema.schema",
		`"response_format":{"type":"json_schema","json_schema":{"schema":7}}`:                   "response_format.json_schema.schema",
		`"response_format":{"type":"json_schema","json_schema":{"schema":"{}"}}`:                "response_format.json_schema.schema",
		`"response_format":{"type":"json_schema","json_schema":{"schema":{},"stirct":true}}`:    "response_format.json_schema.stirct",
		`"response_format":{"type":"json_schema","json_schema":{"schema":{},"strict":"yes"}}`:   "response_format.json_schema.strict",
		`"response_format":{"type":"json_schema","json_schema":{"schema":{},"name":7}}`:         "response_format.json_schema.name",
		`"response_format":{"type":"json_schema","json_schema":[]}`:                             "response_format.json_schema",
		`"response_format":{"type":"json_schema","schema":{}}`:                                  "response_format.schema",
		`"response_format":{"type":"json_object","json_schema":{}}`:                             "response_format.json_schema",
		`"response_format":{"type":"text","json_schema":{}}`:                                    "response_format.json_schema",
		`"response_format":{"type":"json_object"},"guided_regex":"a"`:                           "guided_regex",
		`"guided_json":{},"guided_choice":["a"]`:                                                "guided_choice",
		`"structured_outputs":{"json":{},"regex":"a"}`:                                          "structured_outputs.regex",
		`"structured_outputs":{"regex":"a"},"guided_regex":"a"`:                                 "guided_regex",
		`"structured_outputs":{}`:                                                               "structured_outputs",
		`"structured_outputs":{"json_object":false}`:                                            "structured_outputs",
		`"structured_outputs":{"jsonn":{}}`:                                                     "structured_outputs.jsonn",
		`"structured_outputs":{"json":{},"whitespace_pattern":"a*"}`:                            "structured_outputs.whitespace_pattern",
		`"structured_outputs":{"json":{},"whitespace_pattern":7}`:                               "structured_outputs.whitespace_pattern",
		`"structured_outputs":{"json":{},"disable_any_whitespace":"yes"}`:                       "structured_outputs.disable_any_whitespace",
		`"structured_outputs":{"structural_tag":"{}"}`:                                          "structured_outputs.structural_tag",
		`"structured_outputs":{"json":[]}`:                                                      "structured_outputs.json",
		`"guided_json":"{"`:                                                                     "guided_json",
		`"guided_json":"7"`:                                                                     "guided_json",
		`"guided_json":"\"x\""`:                                                                 "guided_json",
		`"guided_json":""`:                                                                      "guided_json",
		`"guided_json":"` + deep(65) + `"`:                                                      "guided_json",
		`"guided_regex":""`:                                                                     "guided_regex",
		`"guided_regex":7`:                                                                      "guided_regex",
		`"guided_regex":"` + strings.Repeat("a", grammar.MaxSource+1) + `"`:                     "guided_regex",
		`"guided_grammar":{}`:                                                                   "guided_grammar",
		`"guided_choice":"a"`:                                                                   "guided_choice",
		`"guided_choice":[]`:                                                                    "guided_choice",
		`"guided_choice":["a",""]`:                                                              "guided_choice[1]",
		`"guided_choice":[1]`:                                                                   "guided_choice[0]",
		`"guided_choice":[` + strings.Repeat(`"a",`, maxChoiceStrings) + `"a"]`:                 "guided_choice",
		`"guided_json":{},"guided_whitespace_pattern":"("`:                                      "guided_whitespace_pattern",
		`"use_beam_search":true,"temperature":0,"n":2,"guided_regex":"a"`:                       "guided_regex",
		`"use_beam_search":true,"temperature":0,"n":2,"response_format":{"type":"json_object"}`: "response_format.type",
	} {
		body := `{` + userHi + `,` + fields + `}`
		_, err := DecodeChat([]byte(body), served, arrival)
		requireRefused(t, bad{body, param}, err)
	}
}
