package openai

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/jsonbody"
	"github.com/millrace/millrace/compute/grammar"
)

// maxChoiceStrings is the limit of strings in guided_choice.
const maxChoiceStrings = 4096

// forms are the fields that constrain an answer, as the request spells them: vLLM's older names, and inside
// structured_outputs its newer ones.
var forms = []struct {
	guided, name string
	read         func(o *object, name string) (kind grammar.Kind, source string)
}{
	{"guided_json", "json", (*object).schemaOrText},
	{"guided_regex", "regex", (*object).regexField},
	{"guided_choice", "choice", (*object).choices},
	{"guided_grammar", "grammar", (*object).grammarField},
	{"", "json_object", (*object).anyObject},
}

// grammar reads the fields that constrain the answer. At most one of them may.
func (o *object) grammar(r *api.Request) {
	o.responseFormat(r)
	o.structuredOutputs(r)
	for _, f := range forms {
		if f.guided != "" {
			o.constrain(r, f.guided, f.read)
		}
	}
	o.whiteSpace(r, "guided_whitespace_pattern")
	if r.Grammar != nil && r.Beams != nil {
		o.err = firstOf(o.err, api.GrammarWithBeams(r.Grammar.Param))
	}
}

func firstOf(a, b *api.Error) *api.Error {
	if a != nil {
		return a
	}
	return b
}

// constrain reads one field into the request's grammar.
func (o *object) constrain(r *api.Request, name string, read func(*object, string) (grammar.Kind, string)) {
	kind, source := read(o, name)
	if kind == "" || o.err != nil {
		return
	}
	param := o.path + name
	switch {
	case r.Grammar != nil:
		o.fail(name, "not allowed together with %s", r.Grammar.Param)
	case len(source) > grammar.MaxSource:
		o.fail(name, "expected at most %d bytes, found %d", grammar.MaxSource, len(source))
	default:
		r.Grammar = &grammar.Spec{Kind: kind, Source: source, Param: param}
	}
}

// responseFormat reads OpenAI's "response_format".
func (o *object) responseFormat(r *api.Request) {
	f := o.child("response_format")
	if f == nil {
		return
	}
	kind := ""
	f.str("type", &kind)
	switch kind {
	case "text":
		f.only("type")
	case "json_object":
		f.only("type")
		f.constrain(r, "type", func(*object, string) (grammar.Kind, string) { return grammar.JSONObject, "" })
	case "json_schema":
		f.only("type", "json_schema")
		f.namedSchema(r)
	default:
		f.fail("type", `expected "text", "json_object" or "json_schema", found %s`, api.Quote(kind))
	}
	o.adopt(f)
}

// namedSchema reads {"name": ..., "schema": ..., "strict": ...}. A schema is enforced with and without strict.
func (o *object) namedSchema(r *api.Request) {
	s := o.child("json_schema")
	if s == nil {
		o.fail("json_schema", "expected an object with a schema")
		return
	}
	s.only("name", "description", "schema", "strict")
	var text string
	var strict bool
	s.str("name", &text)
	s.str("description", &text)
	s.boolean("strict", &strict)
	if _, ok := s.get("schema"); !ok {
		s.fail("schema", "expected a JSON schema")
	}
	s.constrain(r, "schema", (*object).schema)
	o.adopt(s)
}

// structuredOutputs reads vLLM's "structured_outputs": exactly one of its fields is set.
func (o *object) structuredOutputs(r *api.Request) {
	s := o.child("structured_outputs")
	if s == nil {
		return
	}
	before, names := r.Grammar, make([]string, 0, len(forms))
	for _, f := range forms {
		names = append(names, f.name)
		s.constrain(r, f.name, f.read)
	}
	for _, name := range []string{"disable_fallback", "disable_additional_properties"} {
		s.refuseUnsupported(name, "false")
	}
	s.whiteSpace(r, "whitespace_pattern")
	compact := false
	if s.boolean("disable_any_whitespace", &compact); compact && r.Grammar != before {
		r.Grammar.Compact = isJSON(r.Grammar)
	}
	s.refuseUnsupported("structural_tag")
	s.only(append(names, "disable_fallback", "disable_any_whitespace", "disable_additional_properties", "whitespace_pattern",
		"structural_tag")...)
	o.adopt(s)
	if r.Grammar == before {
		o.fail("structured_outputs", "expected one of %s, found none", strings.Join(names, ", "))
	}
}

// whiteSpace reads a regular expression of the white space between the parts of JSON. Answers of other languages are not changed.
func (o *object) whiteSpace(r *api.Request, name string) {
	raw, ok := o.get(name)
	if !ok {
		return
	}
	text := ""
	if !decodeString(raw, &text) {
		o.expected(name, "a regular expression (a string)", raw)
		return
	}
	expression, err := grammar.ParseWhiteSpace(text)
	switch {
	case err != nil:
		o.fail(name, "%v", err)
	case r.Grammar != nil && isJSON(r.Grammar):
		r.Grammar.WhiteSpace, r.Grammar.Compact = expression, expression == ""
	}
}

func isJSON(s *grammar.Spec) bool {
	return s.Kind == grammar.JSONSchema || s.Kind == grammar.JSONObject
}

// only refuses fields other than the named ones.
func (o *object) only(names ...string) {
	var unknown []string
	for name := range o.fields {
		if _, set := o.get(name); set && !slices.Contains(names, name) {
			unknown = append(unknown, name)
		}
	}
	if len(unknown) > 0 {
		slices.Sort(unknown)
		o.fail(jsonbody.Snippet([]byte(unknown[0])), "unknown field, expected only %s", strings.Join(names, ", "))
	}
}

// schema reads a JSON schema: an object, or true or false.
func (o *object) schema(name string) (kind grammar.Kind, source string) {
	raw, ok := o.get(name)
	if !ok {
		return "", ""
	}
	if raw[0] != '{' && raw[0] != 't' && raw[0] != 'f' {
		o.expected(name, "a JSON schema (an object)", raw)
		return "", ""
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, raw); err != nil { // parse has read it
		o.fail(name, "%v", err)
		return "", ""
	}
	return grammar.JSONSchema, compact.String()
}

// schemaOrText is schema for a field that may hold the schema as a string, as in vLLM.
func (o *object) schemaOrText(name string) (kind grammar.Kind, source string) {
	raw, ok := o.get(name)
	if !ok || raw[0] != '"' {
		return o.schema(name)
	}
	var text string
	decodeString(raw, &text) // true: it is a string
	inner := json.RawMessage(strings.TrimSpace(text))
	if !json.Valid(inner) || jsonbody.Check(inner) != nil {
		o.expected(name, "a JSON schema, or a string that holds one", raw)
		return "", ""
	}
	held := object{path: o.path, fields: map[string]json.RawMessage{name: inner}}
	kind, source = held.schema(name)
	o.adopt(&held)
	return kind, source
}

func (o *object) regexField(name string) (kind grammar.Kind, source string) {
	return o.text(name, grammar.Regex, "a regular expression")
}

func (o *object) grammarField(name string) (kind grammar.Kind, source string) {
	return o.text(name, grammar.Lark, "a grammar")
}

func (o *object) text(name string, kind grammar.Kind, what string) (k grammar.Kind, source string) {
	raw, ok := o.get(name)
	if !ok {
		return "", ""
	}
	if !decodeString(raw, &source) || source == "" {
		o.expected(name, what+" (a string that is not empty)", raw)
		return "", ""
	}
	return kind, source
}

// choices reads a list of strings, one of which is to be the answer.
func (o *object) choices(name string) (kind grammar.Kind, source string) {
	items, ok := o.list(name, maxChoiceStrings)
	if !ok {
		return "", ""
	}
	if len(items) == 0 {
		o.fail(name, "expected at least one string, found none")
		return "", ""
	}
	list := make([]string, len(items))
	for i, raw := range items {
		if !decodeString(raw, &list[i]) || list[i] == "" {
			o.expected(fmt.Sprintf("%s[%d]", name, i), "a string that is not empty", raw)
			return "", ""
		}
	}
	return grammar.Choice, grammar.ChoiceOf(list)
}

func (o *object) anyObject(name string) (kind grammar.Kind, source string) {
	wanted := false
	if o.boolean(name, &wanted); wanted {
		return grammar.JSONObject, ""
	}
	return "", ""
}
