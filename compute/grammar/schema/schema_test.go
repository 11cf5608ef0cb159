package schema

import (
	"encoding/json"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestKeywordsThatAllowEverythingAreDropped(t *testing.T) {
	for _, keywords := range []string{
		`"propertyNames":{"type":"string"}`, `"propertyNames":{}`, `"propertyNames":true`, `"not":false`, `"not":{"not":true,"title":"t"}`,
		`"uniqueItems":false`,
		`"uniqueItems":true,"maxItems":1`, `"if":{"type":"string"}`, `"if":{"const":1},"then":true,"else":{}`, `"then":{"const":1}`,
		`"dependentRequired":{"a":[]}`, `"dependencies":{}`, `"dependentSchemas":{"a":true}`, `"contains":{"const":1},"minContains":0`,
		`"maxContains":3`,
		`"unevaluatedProperties":true`, `"unevaluatedItems":{}`, `"allOf":[{},true]`, `"anyOf":[{"type":"string"},{}]`,
		`"oneOf":[true,false]`, `"minProperties":0`,
		`"format":"password"`, `"format":"uri-reference"`, `"format":"anything"`,
		`"title":7,"description":"x","default":null,"examples":[1],"deprecated":true,"nullable":true`,
		`"x-guidance":{"whitespace_pattern":"x*"}`, `"x.type":7`, `"required":null`,
		`"$schema":"https://json-schema.org/draft/2020-12/schema","$id":"https://a.example/b","$comment":"c"`,
		`"discriminator":{"propertyName":"kind"},"$defs":{"unused":{"uniqueItems":true}}`,
	} {
		got, err := Rewrite("{"+keywords+"}", Options{})
		require.NoError(t, err, keywords)
		require.Contains(t, []string{`{}`, `{"maxItems":1}`}, got, keywords)
	}
}

func TestKeywordsGetTheFormThatTheEngineKnows(t *testing.T) {
	for source, want := range map[string]string{
		`true`:                    `true`,
		`{"z":1,"type":"object"}`: `{"type":"object"}`,
		`{"minLength":3.0}`:       `{"minLength":3}`,
		`{"items":{"not":{}}}`:    `{"items":false}`,
		`{"items":{"enum":[]}}`:   `{"items":false}`,
		`{"items":{"allOf":[{"type":"string"},false]}}`:                                                        `{"items":false}`,
		`{"type":["string","null","integer"],"not":{"type":"null"}}`:                                           `{"type":["string","integer"]}`,
		`{"not":{"not":{"type":"null"}}}`:                                                                      `{"allOf":[{"type":"null"}]}`,
		`{"not":{"type":["object","array"]}}`:                                                                  `{"type":["null","boolean","number","string"]}`,
		`{"properties":{"never":{"not":{}},"a":{"const":{"uniqueItems":true}}},"unevaluatedProperties":false}`: `{"properties":{"never":false,"a":{"const":{"uniqueItems":true}}},"additionalProperties":false}`,
		`{"type":"object","propertyNames":{"enum":["b","a"]},"additionalProperties":{"type":"integer"}}`:       `{"type":"object","properties":{"b":{"type":"integer"},"a":{"type":"integer"}},"additionalProperties":false}`,
		`{"type":"object","propertyNames":{"type":"string","pattern":"^x"}}`:                                   `{"type":"object","patternProperties":{"^x":true},"additionalProperties":false}`,
		`{"oneOf":[{"type":"string"},{"type":["null","integer"]}]}`:                                            `{"anyOf":[{"type":"string"},{"type":["null","integer"]}]}`,
		`{"oneOf":[{"required":["k"],"type":"object","properties":{"k":{"const":"a"}}},{"$ref":"#/$defs/b"}],"$defs":{"b":{"type":"object","required":["k"],"properties":{"k":{"enum":["b","c"]}}}}}`: `{"anyOf":[{"required":["k"],"type":"object","properties":{"k":{"const":"a"}}},{"$ref":"#/$defs/0"}],"$defs":{"0":{"type":"object","required":["k"],"properties":{"k":{"enum":["b","c"]}}}}}`,
	} {
		got, err := Rewrite(source, Options{})
		require.NoError(t, err, source)
		require.Equal(t, want, got, source)
	}
}

// TestReferencesLeadWherePointersAndAnchorsSay: RFC 6901, in a fragment of RFC 3986.
func TestReferencesLeadWherePointersAndAnchorsSay(t *testing.T) {
	const definitions = `"$id":"https://x.example/s","$defs":{"a/b":{"const":1},"c~d":{"const":2},"é":{"const":3},"Map<string,number>":{"const":4},"~1":{"const":5},"%25":{"const":6},
		"list":{"anyOf":[{"const":7},{"const":8}]},"named":{"$anchor":"here","const":9},"old":{"id":"#there","const":10},"":{"const":11}}`
	for ref, want := range map[string]string{
		"#/$defs/a~1b": "1", "#/$defs/c~0d": "2", "#/$defs/%C3%A9": "3", "#/$defs/é": "3", "#/$defs/Map%3Cstring%2Cnumber%3E": "4",
		"#/$defs/Map<string,number>": "4", "#/$defs/~01": "5", "#/$defs/%2525": "6", "#/$defs/list/anyOf/1": "8", "#here": "9",
		"#there": "10", "https://x.example/s#/$defs/a~1b": "1", "#/%24defs/a%7E1b": "1", "#/$defs/": "11",
	} {
		got, err := Rewrite(`{"$ref":"`+ref+`",`+definitions+`}`, Options{})
		require.NoError(t, err, ref)
		require.Equal(t, `{"$ref":"#/$defs/0","$defs":{"0":{"const":`+want+`}}}`, got, ref)
	}
	for ref, why := range map[string]string{
		`"#/$defs/none"`:         `$ref: found "#/$defs/none", which leads to no schema of this document`,
		`"#/$defs/list/anyOf/2"`: "leads to no schema", `"#nowhere"`: "leads to no schema",
		`"https://y.example/s#/a"`: "$ref: found a reference to another document", `"other.json"`: "another document",
		`7`: "$ref: found 7, expected a string",
	} {
		_, err := Rewrite(`{"$ref":`+ref+`,`+definitions+`}`, Options{})
		require.ErrorIs(t, err, ErrSchema)
		require.ErrorContains(t, err, why)
	}
}

func TestASchemaWithoutAFiniteValueIsAnError(t *testing.T) {
	for _, source := range []string{
		`{"$ref":"#"}`, `{"$ref":"#/$defs/a","$defs":{"a":{"$ref":"#/$defs/b"},"b":{"$ref":"#/$defs/a"}}}`, `{"anyOf":[{"$ref":"#"}]}`,
		`{"allOf":[{"$ref":"#"}]}`,
		`{"type":"object","properties":{"n":{"$ref":"#"}},"required":["n"]}`, `{"type":"array","items":{"$ref":"#"},"minItems":1}`,
		`{"type":"array","prefixItems":[{"$ref":"#"}],"minItems":1}`,
		`false`, `{"not":{}}`, `{"type":"object","required":["a"],"properties":{"a":false}}`,
		`{"type":"object","required":["a"],"additionalProperties":{"$ref":"#"}}`,
		`{"oneOf":[{"type":"object","required":["x"],"properties":{"x":{"$ref":"#"}}}]}`,
	} {
		for _, loose := range []bool{false, true} {
			_, err := Rewrite(source, Options{Loose: loose})
			require.ErrorContains(t, err, "no value that it allows is finite", source)
		}
	}
	for _, source := range []string{
		`{"anyOf":[{"$ref":"#"},{"type":"integer"}]}`, `{"type":"object","properties":{"n":{"$ref":"#"}}}`,
		`{"type":"array","items":{"$ref":"#"}}`, `{"type":["object","null"],"properties":{"n":{"$ref":"#"}},"required":["n"]}`,
	} {
		_, err := Rewrite(source, Options{})
		require.NoError(t, err, source)
	}
	got,
		err := Rewrite(`{"properties":{"a":{"$ref":"#/$defs/x"}},"$defs":{"x":{"type":"object","required":["x"],"properties":{"x":{"$ref":"#/$defs/x"}}}}}`, Options{})
	require.NoError(t, err)
	require.Contains(t, got, `"a":false`, "no grammar enters what never ends")
}

func TestWhatCannotBeEnforcedIsAnErrorWithItsPlaceOrDropped(t *testing.T) {
	for source, why := range map[string]string{
		`{"properties":{"tags":{"type":"array","uniqueItems":true}}}`:                  `properties.tags.uniqueItems: found uniqueItems`,
		`{"items":{"contains":{"const":1}}}`:                                           `items.contains: `,
		`{"anyOf":[{"not":{"const":1}},{"type":"string"}]}`:                            `anyOf.0.not: `,
		`{"if":{"const":1},"then":{"type":"integer"}}`:                                 `if: found if with then`,
		`{"dependentRequired":{"a":["b"]}}`:                                            `dependentRequired: `,
		`{"oneOf":[{"type":"string","minLength":1},{"type":"string"}]}`:                `oneOf: found alternatives that one value may match together`,
		`{"pattern":"^(?!x)y"}`:                                                        `pattern: found an expression with look-around`,
		`{"pattern":"(a)\\1"}`:                                                         `pattern: `,
		`{"patternProperties":{"(?<=a)b":{}},"additionalProperties":false}`:            `patternProperties.(?<=a)b: `,
		`{"propertyNames":{"minLength":3}}`:                                            `propertyNames: `,
		`{"$ref":"https://y.example/a.json"}`:                                          `$ref: found a reference to another document`,
		`{"properties":{"a":{},"b":{}},"minProperties":1}`:                             `minProperties: `,
		`{"unevaluatedProperties":false,"allOf":[{"properties":{"a":{}}}]}`:            `unevaluatedProperties: `,
		`{"not":{"type":"array","uniqueItems":true}}`:                                  `not.uniqueItems: `,
		`{"$ref":"#/$defs/D","$defs":{"D":{"properties":{"a":{"uniqueItems":true}}}}}`: `$defs.D.properties.a.uniqueItems: `,
	} {
		_, err := Rewrite(source, Options{})
		require.ErrorIs(t, err, ErrSchema, source)
		require.True(t, strings.HasPrefix(err.Error(), why), "%s: %v", source, err)
		got, err := Rewrite(source, Options{Loose: true})
		require.NoError(t, err, source)
		for _, keyword := range []string{"uniqueItems", "contains", "not", "if", "dependentRequired", "oneOf", "pattern", "propertyNames",
			"minProperties", "additionalProperties", "unevaluatedProperties", "https"} {
			require.NotContains(t, got, `"`+keyword, source)
		}
	}
}

func TestASchemaThatIsNotValidIsAnErrorWithItsPlace(t *testing.T) {
	for source, why := range map[string]string{
		`[]`: `found [], expected a schema`, `{`: `found no JSON`,
		`{"type":"strin"}`:       `type: found "strin", expected one or a list of null`,
		`{"properties":[1]}`:     `properties: found [1], expected an object of schemas`,
		`{"properties":{"a":7}}`: `properties.a: found 7, expected a schema`,
		`{"required":"a"}`:       `required: found "a", expected a list of names`, `{"required":[1]}`: `required: found [1]`,
		`{"minLength":-1}`: `minLength: found -1, expected a whole number`, `{"maxItems":1.5}`: `maxItems: found 1.5`,
		`{"minItems":"3"}`: `minItems: found "3"`, `{"minimum":"0"}`: `minimum: found "0", expected a number`,
		`{"multipleOf":0}`: `multipleOf: found 0, expected a number above 0`,
		`{"pattern":"a("}`: `pattern: found "a(", expected a regular expression: `, `{"pattern":7}`: `pattern: found 7`,
		`{"enum":"a"}`: `enum: found "a", expected a list of values`, `{"anyOf":[]}`: `anyOf: found [], expected a list of schemas`,
		`{"allOf":{}}`: `allOf: found {}, expected a list`, `{"format":7}`: `format: found 7`, `{"items":3}`: `items: found 3`,
		`{"uniqueItems":1}`: `uniqueItems: found 1`,
	} {
		for _, loose := range []bool{false, true} {
			_, err := Rewrite(source, Options{Loose: loose})
			require.ErrorIs(t, err, ErrSchema, source)
			require.True(t, strings.HasPrefix(err.Error(), why), "%s: %v", source, err)
		}
	}
}

func TestObjectsAreImposed(t *testing.T) {
	const anyObject = `{"type":"object"}`
	for source, want := range map[string]string{
		`{}`: anyObject, `true`: anyObject, `{"type":"string"}`: anyObject, `{"type":["object","null"]}`: anyObject,
		`{"enum":[1,2]}`: anyObject, `{"const":"x"}`: anyObject, `{"anyOf":[{"type":"string"},{"type":"null"}]}`: anyObject,
		`{"properties":{"a":{"type":"string"}}}`:                           `{"type":"object","properties":{"a":{"type":"string"}}}`,
		`{"type":"object","required":["a"]}`:                               `{"type":"object","required":["a"]}`,
		`{"$ref":"#/$defs/s","$defs":{"s":{"type":"string"}}}`:             anyObject,
		`{"anyOf":[{"type":"object","required":["a"]},{"type":"string"}]}`: `{"type":"object","anyOf":[{"type":"object","required":["a"]},{"type":"string"}]}`,
	} {
		got, err := Rewrite(source, Options{Object: true})
		require.NoError(t, err, source)
		got, _, _ = strings.Cut(got, `,"$defs"`)
		require.Equal(t, strings.TrimSuffix(want, "}"), strings.TrimSuffix(got, "}"), source)
	}
}

// TestDatesAndTimesExist compares with Go's calendar: every day of 9,999 years, and what is near them.
func TestDatesAndTimesExist(t *testing.T) {
	expression := func(format string) *regexp.Regexp {
		text, err := Rewrite(`{"format":"`+format+`"}`, Options{})
		require.NoError(t, err)
		var s struct{ Pattern string }
		require.NoError(t, json.Unmarshal([]byte(text), &s))
		return regexp.MustCompile(s.Pattern)
	}
	date := expression("date")
	for _, y := range []int{0, 1, 4, 99, 100, 400, 999, 1000, 1600, 1700, 1900, 1996, 2000, 2023, 2024, 2100, 2400, 9996, 9999} {
		for m := range 14 {
			for d := range 33 {
				text := time.Date(y, 1, 1, 0, 0, 0, 0, time.UTC).Format("2006") + "-" + twoDigits(m) + "-" + twoDigits(d)
				_, err := time.Parse(time.DateOnly, text)
				require.Equal(t, err == nil && y > 0, date.MatchString(text), text)
			}
		}
	}
	clock := expression("time")
	for text, valid := range map[string]bool{
		"00:00:00Z": true, "23:59:59.123456+23:59": true, "12:30:00-00:00": true, "24:00:00Z": false, "12:60:00Z": false,
		"23:59:60Z": false, "12:00:60Z": false, "12:00:00": false, "12:00:00+24:00": false, "12:00:00.Z": false,
	} {
		require.Equal(t, valid, clock.MatchString(text), text)
		require.Equal(t, valid, expression("date-time").MatchString("2024-02-29T"+text), text)
		require.False(t, expression("date-time").MatchString("2023-02-29T"+text), text)
	}
	got, err := Rewrite(`{"format":"date","pattern":"^2"}`, Options{})
	require.NoError(t, err)
	require.Contains(t, got, `"pattern":"^2"`)
	require.Contains(t, got, `"allOf"`)
}

func twoDigits(n int) string { return string([]byte{'0' + byte(n/10), '0' + byte(n%10)}) }

// TestLargeSchemasAreRewrittenInTime: work that grows with the square of a source of 256 KiB would end the test at its limit.
func TestLargeSchemasAreRewrittenInTime(t *testing.T) {
	const many = 9000
	list := func(begin, between, end string, one func(i int) string) string {
		parts := make([]string, many)
		for i := range parts {
			parts[i] = one(i)
		}
		return begin + strings.Join(parts, between) + end
	}
	name := func(i int) string { return `"p` + strconv.Itoa(i) + `"` }
	names := list(`[`, ",", `]`, name)
	properties := list(`{`, ",", `}`, func(i int) string { return name(i) + `:{"$ref":"#a"}` })
	chain := `{"$ref":"#/$defs/0","$defs":{"0":{"properties":{"n":{"$ref":"#/$defs/1"}}}`
	for i := 1; i < maxReferences-1; i++ {
		n := strconv.Itoa(i)
		chain += `,"` + n + `":{"type":"object","required":["p"],"properties":{"p":{"$ref":"#/$defs/` + strconv.Itoa(i-1) + `"},"n":{"$ref":"#/$defs/` + strconv.Itoa(min(i+1, maxReferences-2)) + `"}}}`
	}
	for _, source := range []string{
		`{"$anchor":"a","type":"object","properties":` + properties + `,"required":` + names + `,"maxProperties":9000}`,
		`{"oneOf":[{"enum":` + names + `},{"enum":` + names + `},{"enum":` + names + `}]}`,
		list(`{"oneOf":[`, ",", `]}`, func(i int) string { return `{"const":` + strconv.Itoa(i) + `}` }),
		list(`{"anyOf":[`, ",", `]}`, func(i int) string { return `{"$ref":"#a` + strconv.Itoa(i) + `"}` }),
		chain + `}}`,
	} {
		for _, loose := range []bool{false, true} {
			if got, err := Rewrite(source, Options{Loose: loose, Object: loose}); err == nil {
				require.True(t, json.Valid([]byte(got)))
			}
		}
	}
}
