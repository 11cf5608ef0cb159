package schema

import (
	"encoding/json"
	"testing"
)

// FuzzRewrite: the result is JSON, and a schema that needs no rewriting.
func FuzzRewrite(f *testing.F) {
	for _, source := range []string{
		`{"$ref":"#/$defs/a~1b","$defs":{"a/b":{"not":{"type":"null"}}}}`, `{"oneOf":[{"type":"string","format":"date"},{"$ref":"#"}]}`,
		`{"properties":{"a":{"$ref":"#"}},"required":["a"]}`,
		`{"propertyNames":{"enum":["a"]},"additionalProperties":{"uniqueItems":true}}`,
		`{"items":[{"const":null}],"unevaluatedItems":false,"minItems":1}`,
		`{"$anchor":"x","anyOf":[{"$ref":"#x"},{"if":true,"then":false}]}`,
		`{"patternProperties":{"(?=a)":{}},"additionalProperties":false,"minProperties":2}`,
		`{"allOf":[{"$dynamicRef":"#n"}],"$dynamicAnchor":"n","type":["integer","null"],"exclusiveMinimum":true}`,
	} {
		f.Add(source, true, false)
		f.Add(source, false, true)
	}
	f.Fuzz(func(t *testing.T, source string, loose, object bool) {
		if len(source) > 4096 {
			t.Skip()
		}
		got, err := Rewrite(source, Options{Loose: loose, Object: object})
		if err != nil {
			return
		}
		if !json.Valid([]byte(got)) {
			t.Fatalf("%s becomes %s", source, got)
		}
		if _, err := Rewrite(got, Options{}); err != nil {
			t.Fatalf("%s becomes %s: %v", source, got, err)
		}
	})
}
