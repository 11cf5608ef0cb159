package main

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
)

// generate makes schemas at random: nested, with enums, bounds, references, patterns, Unicode and recursion.
func generate(seed uint64, n int) []testCase {
	cases := make([]testCase, n)
	for i := range cases {
		g := generator{rng: rand.New(rand.NewPCG(seed, uint64(i)+1000)), defs: map[string]any{}}
		schema := g.schema(1 + g.rng.IntN(4))
		if s, ok := schema.(object); ok && len(g.defs) > 0 {
			s["$defs"] = g.defs
		}
		raw, err := json.Marshal(schema)
		if err != nil {
			raw = []byte("true")
		}
		cases[i] = testCase{Name: fmt.Sprintf("generated-%d-%d", seed, i), Schema: raw}
	}
	return cases
}

type object = map[string]any

type generator struct {
	rng  *rand.Rand
	defs map[string]any
	kept int // definitions so far
}

func (g *generator) chance(one int) bool { return g.rng.IntN(one) == 0 }

func (g *generator) schema(depth int) any {
	if depth == 0 {
		return g.leaf()
	}
	switch g.rng.IntN(12) {
	case 0, 1, 2, 3, 4:
		return g.object(depth)
	case 5, 6:
		return g.array(depth)
	case 7:
		return object{"anyOf": g.several(depth)}
	case 8:
		return g.distinct(depth)
	case 9:
		return g.reference(depth)
	case 10:
		return g.recursive(depth)
	}
	return g.leaf()
}

func (g *generator) leaf() any {
	switch g.rng.IntN(9) {
	case 0, 1, 2:
		return g.text()
	case 3:
		return g.integer()
	case 4:
		return g.number()
	case 5:
		return object{"type": "boolean"}
	case 6:
		return object{"enum": g.values()}
	case 7:
		return object{"const": g.value()}
	}
	return object{"type": []string{"null", "boolean", "integer"}[:1+g.rng.IntN(3)]}
}

var words = []string{"a", "name", "x y", "é", "日本", "😀", "quote\"", "back\\slash", "line\nbreak", "</end>", "id-1", "", "Ω", "tab\t"}

func (g *generator) word() string { return words[g.rng.IntN(len(words))] }

func (g *generator) value() any {
	switch g.rng.IntN(6) {
	case 0:
		return g.rng.IntN(2000) - 1000
	case 1:
		return g.chance(2)
	case 2:
		return nil
	case 3:
		return []any{g.word(), g.rng.IntN(10)}
	case 4:
		return object{g.word(): g.word()}
	}
	return g.word()
}

func (g *generator) values() []any {
	seen, list := map[string]bool{}, []any{}
	for range 1 + g.rng.IntN(6) {
		v := g.value()
		if key := fmt.Sprint(v); !seen[key] {
			seen[key], list = true, append(list, v)
		}
	}
	return list
}

var patterns = []string{
	`^[a-z]{2,5}$`, `^\d{4}-\d{2}$`, `^(yes|no|maybe)$`, `^[A-Z][a-z]*( [A-Z][a-z]*)?$`, `^é+[ñ日]{1,3}$`, `^#[0-9a-fA-F]{6}$`, `ab+c`,
	`^\w+@\w+\.(com|org)$`,
}

var formats = []string{"date", "date-time", "time", "uuid", "email", "ipv4", "hostname"}

func (g *generator) text() object {
	s := object{"type": "string"}
	switch g.rng.IntN(5) {
	case 0:
		s["pattern"] = patterns[g.rng.IntN(len(patterns))]
	case 1:
		s["format"] = formats[g.rng.IntN(len(formats))]
	case 2, 3:
		low := g.rng.IntN(5)
		s["minLength"], s["maxLength"] = low, low+g.rng.IntN(12)
	}
	return s
}

func (g *generator) integer() object {
	s := object{"type": "integer"}
	low := g.rng.IntN(3000) - 1500
	if g.chance(2) {
		s[[]string{"minimum", "exclusiveMinimum"}[g.rng.IntN(2)]] = low
	}
	if g.chance(2) {
		s[[]string{"maximum", "exclusiveMaximum"}[g.rng.IntN(2)]] = low + 2 + g.rng.IntN(5000)
	}
	if g.chance(4) {
		s["multipleOf"] = 1 + g.rng.IntN(12)
	}
	return s
}

func (g *generator) number() object {
	s := object{"type": "number"}
	low := float64(g.rng.IntN(4000))/16 - 100
	if g.chance(2) {
		s[[]string{"minimum", "exclusiveMinimum"}[g.rng.IntN(2)]] = low
	}
	if g.chance(2) {
		s[[]string{"maximum", "exclusiveMaximum"}[g.rng.IntN(2)]] = low + 0.5 + float64(g.rng.IntN(1000))/8
	}
	return s
}

func (g *generator) object(depth int) object {
	properties, required := object{}, []string{}
	for i := range 1 + g.rng.IntN(5) {
		name := g.word()
		if name == "" || g.chance(2) {
			name = fmt.Sprintf("p%d", i)
		}
		properties[name] = g.schema(depth - 1 - g.rng.IntN(depth))
		if g.chance(2) && !slices.Contains(required, name) {
			required = append(required, name)
		}
	}
	s := object{"type": "object", "properties": properties}
	if len(required) > 0 {
		s["required"] = required
	}
	switch g.rng.IntN(5) {
	case 0, 1:
		s["additionalProperties"] = false
	case 2:
		s["additionalProperties"] = g.leaf()
	case 3:
		s["patternProperties"] = object{"^k_": g.leaf()}
		s["additionalProperties"] = false
	}
	if g.chance(8) {
		s["minProperties"] = len(required)
	}
	return s
}

func (g *generator) array(depth int) object {
	s := object{"type": "array", "items": g.schema(depth - 1)}
	if g.chance(2) {
		low := g.rng.IntN(3)
		s["minItems"], s["maxItems"] = low, low+g.rng.IntN(4)
	}
	if g.chance(5) {
		s["prefixItems"] = []any{g.leaf(), g.leaf()}
	}
	if g.chance(20) {
		s["uniqueItems"] = true
	}
	return s
}

func (g *generator) several(depth int) []any {
	list := []any{}
	for range 2 + g.rng.IntN(2) {
		list = append(list, g.schema(depth-1))
	}
	return list
}

// distinct is alternatives that exclude each other, or a schema and a further condition.
func (g *generator) distinct(depth int) object {
	if g.chance(2) {
		return object{"allOf": []any{
			object{"type": "object", "properties": object{"a": g.schema(depth - 1)}, "required": []string{"a"}},
			object{"properties": object{"b": g.leaf()}},
		}}
	}
	return object{"oneOf": []any{
		object{"type": "object", "properties": object{"kind": object{"const": "one"}, "v": g.leaf()}, "required": []string{"kind"}},
		object{"type": "object", "properties": object{"kind": object{"const": "two"}, "w": g.schema(depth - 1)},
			"required": []string{"kind"}},
	}}
}

func (g *generator) define(body func(ref string) any) object {
	g.kept++
	name := fmt.Sprintf("d%d", g.kept)
	ref := "#/$defs/" + name
	g.defs[name] = true
	g.defs[name] = body(ref)
	return object{"$ref": ref}
}

func (g *generator) reference(depth int) object {
	return g.define(func(string) any { return g.schema(depth - 1) })
}

// recursive is a list or a tree.
func (g *generator) recursive(depth int) object {
	return g.define(func(ref string) any {
		s := object{"type": "object", "properties": object{"value": g.schema(depth - 1)}, "required": []string{"value"},
			"additionalProperties": false}
		properties := s["properties"].(object) //nolint:forcetypeassert // made above
		if g.chance(2) {
			properties["next"] = object{"anyOf": []any{object{"type": "null"}, object{"$ref": ref}}}
		} else {
			properties["children"] = object{"type": "array", "items": object{"$ref": ref}, "maxItems": 3}
		}
		return s
	})
}
