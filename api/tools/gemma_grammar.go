package tools

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// gemmaGrammar writes the grammar of a call's arguments as Gemma spells them. A string follows its enum and its length, a number its range.
// Keywords that join or exclude schemas (allOf, not, if) are not followed.
type gemmaGrammar struct {
	*lark
	delimiter  string
	root       json.RawMessage   // has the definitions
	references map[string]string // name of a definition's rule
	anyRule    string            // name of the rule of any value; "": not written yet
}

// gemmaSchema are the keywords of a JSON schema that the grammar follows.
type gemmaSchema struct {
	Ref        string            `json:"$ref"`
	AnyOf      []json.RawMessage `json:"anyOf"`
	OneOf      []json.RawMessage `json:"oneOf"`
	Enum       []json.RawMessage `json:"enum"`
	Const      json.RawMessage   `json:"const"`
	Items      json.RawMessage   `json:"items"`
	MinItems   int               `json:"minItems"`
	MaxItems   *int              `json:"maxItems"`
	Properties json.RawMessage   `json:"properties"`
	Additional json.RawMessage   `json:"additionalProperties"`
	Required   []string          `json:"required"`
}

// plainKey is a key that stands without delimiters.
var plainKey = regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_.-]*$`)

// arguments returns the expression of a tool's arguments, with their braces.
func (g *gemmaGrammar) arguments(t *Tool) string {
	if !g.forced && !t.Strict {
		return g.object(&gemmaSchema{})
	}
	g.root = t.schema()
	var s gemmaSchema
	if json.Unmarshal(g.root, &s) != nil {
		return g.object(&gemmaSchema{})
	}
	if s.Ref != "" {
		return g.reference(s.Ref)
	}
	return g.object(&s)
}

// anything returns the expression of any value.
func (g *gemmaGrammar) anything() string {
	if g.anyRule == "" {
		g.anyRule = g.reserve()
		g.rule(g.anyRule, fmt.Sprintf("%s | %s | %s | %s", g.quoted(nil), g.scalar("number", nil), `"true" | "false" | "null"`,
			g.array(&gemmaSchema{})+" | "+g.object(&gemmaSchema{})))
	}
	return g.anyRule
}

// schemaValue returns the expression of a value with a schema.
func (g *gemmaGrammar) schemaValue(schema json.RawMessage) string {
	var s gemmaSchema
	if json.Unmarshal(schema, &s) != nil {
		return g.anything()
	}
	switch {
	case s.Ref != "":
		return g.reference(s.Ref)
	case s.Const != nil:
		return g.literal(s.Const)
	case s.Enum != nil:
		return alternatives(s.Enum, g.literal)
	case s.AnyOf != nil:
		return alternatives(s.AnyOf, g.schemaValue)
	case s.OneOf != nil:
		return alternatives(s.OneOf, g.schemaValue)
	}
	kinds := types(schema)
	if slices.Equal(kinds, []string{""}) {
		switch {
		case s.Properties != nil:
			kinds = []string{"object"}
		case s.Items != nil:
			kinds = []string{"array"}
		}
	}
	return alternatives(kinds, func(kind string) string {
		switch kind {
		case "string":
			return g.quoted(schema)
		case "array":
			return g.array(&s)
		case "object":
			return g.object(&s)
		case "boolean":
			return `("true" | "false")`
		case "null":
			return `"null"`
		case "integer", "number":
			return g.scalar(kind, schema)
		}
		return g.anything()
	})
}

// alternatives returns the expression of one of a list.
func alternatives[T any](list []T, one func(T) string) string {
	texts := make([]string, len(list))
	for i := range list {
		texts[i] = one(list[i])
	}
	if len(texts) == 1 {
		return texts[0]
	}
	return "(" + strings.Join(texts, " | ") + ")"
}

// reference returns the rule of a definition, which may refer to itself.
func (g *gemmaGrammar) reference(ref string) string {
	if name, known := g.references[ref]; known {
		return name
	}
	var root struct {
		Defs        map[string]json.RawMessage `json:"$defs"`
		Definitions map[string]json.RawMessage `json:"definitions"`
	}
	if json.Unmarshal(g.root, &root) != nil {
		return g.anything()
	}
	schema, found := root.Defs[strings.TrimPrefix(ref, "#/$defs/")]
	if !found {
		schema, found = root.Definitions[strings.TrimPrefix(ref, "#/definitions/")]
	}
	if !found {
		return g.anything()
	}
	name := g.reserve()
	g.references[ref] = name
	g.rule(name, g.schemaValue(schema))
	return name
}

// quoted returns the expression of a string with its delimiters.
func (g *gemmaGrammar) quoted(schema json.RawMessage) string {
	return g.join(g.mark(g.delimiter), g.until(g.textOf(schema), []string{g.delimiter}))
}

// scalar returns the expression of a number within the range of a schema.
func (g *gemmaGrammar) scalar(kind string, schema json.RawMessage) string {
	var all map[string]json.RawMessage
	if len(schema) > 0 && json.Unmarshal(schema, &all) != nil {
		all = nil
	}
	maps.DeleteFunc(all, func(name string, _ json.RawMessage) bool {
		return !slices.Contains([]string{"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}, name)
	})
	if all == nil {
		all = make(map[string]json.RawMessage)
	}
	all["type"] = json.RawMessage(quote(kind))
	text, err := json.Marshal(all)
	if err != nil {
		return g.anything()
	}
	return g.json(text, nil)
}

// array returns the expression of a list.
func (g *gemmaGrammar) array(s *gemmaSchema) string {
	if s.MaxItems != nil && *s.MaxItems <= 0 {
		return `"[]"`
	}
	most := ""
	if s.MaxItems != nil {
		most = fmt.Sprint(*s.MaxItems - 1)
	}
	item := g.item(s.Items)
	items := fmt.Sprintf(`%s ("," %s){%d,%s}`, item, item, max(s.MinItems-1, 0), most)
	if s.MinItems <= 0 {
		items = "(" + items + ")?"
	}
	return g.join(`"["`, items, `"]"`)
}

// item returns the name of the rule of a value that comes several times.
func (g *gemmaGrammar) item(schema json.RawMessage) string {
	if len(schema) == 0 {
		return g.anything()
	}
	name := g.reserve()
	g.rule(name, g.schemaValue(schema))
	return name
}

// object returns the expression of an object: its members in the order of the schema, or any where it lists none.
func (g *gemmaGrammar) object(s *gemmaSchema) string {
	var schemas map[string]json.RawMessage
	_ = json.Unmarshal(s.Properties, &schemas) // of another type: none
	names := keys(s.Properties)
	for _, name := range s.Required {
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	closed := s.Properties != nil || string(s.Additional) == "false"
	if len(names) == 0 && !closed {
		additional := s.Additional
		if string(additional) == "true" {
			additional = nil
		}
		one := g.join(`/[a-zA-Z_][a-zA-Z0-9_]{0,63}/ ":"`, g.item(additional))
		return fmt.Sprintf(`"{" (%s ("," %s)*)? "}"`, one, one)
	}
	var members []property
	for _, name := range names {
		if string(schemas[name]) != "false" { // no value suits it
			members = append(members, property{name, schemas[name], slices.Contains(s.Required, name)})
		}
	}
	return g.join(`"{"`, g.separated(members, `","`,
		func(m *property) string { return g.join(g.key(m.name), `":"`, g.schemaValue(m.schema)) }), `"}"`)
}

// key returns the expression of a key.
func (g *gemmaGrammar) key(name string) string {
	if plainKey.MatchString(name) {
		return g.text(name)
	}
	return g.join(g.mark(g.delimiter), g.text(name), g.mark(g.delimiter))
}

// literal returns the expression of one value.
func (g *gemmaGrammar) literal(value json.RawMessage) string {
	var text string
	var list []json.RawMessage
	var object map[string]json.RawMessage
	switch {
	case json.Unmarshal(value, &text) == nil && typeOf(value) == "string":
		return g.join(g.mark(g.delimiter), g.text(text), g.mark(g.delimiter))
	case json.Unmarshal(value, &list) == nil && list != nil:
		parts := make([]string, len(list))
		for i := range list {
			parts[i] = g.literal(list[i])
		}
		return g.join(`"["`, strings.Join(parts, ` "," `), `"]"`)
	case json.Unmarshal(value, &object) == nil && object != nil:
		var parts []string
		for _, name := range keys(value) {
			parts = append(parts, g.join(g.key(name), `":"`, g.literal(object[name])))
		}
		return g.join(`"{"`, strings.Join(parts, ` "," `), `"}"`)
	}
	return g.text(strings.TrimSpace(string(value)))
}
