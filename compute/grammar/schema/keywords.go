package schema

import (
	"math"
	"slices"
	"strconv"
	"strings"
)

// keyword rewrites a keyword of a schema. All that are not here are annotations.
func (w *rewriter) keyword(s *state, path string, v *node) {
	switch name := last(path); name {
	case "$ref", "$dynamicRef", "$recursiveRef":
		w.refer(s, path, v)
	case "type":
		w.types(s, path, v)
	case "const":
		s.out.set(name, v)
	case "enum":
		w.enum(s, path, v)
	case "allOf":
		w.allOf(s, path, v)
	case "anyOf":
		w.anyOf(s, path, v)
	case "oneOf":
		w.oneOf(s, path, v)
	case "not":
		w.not(s, path, v)
	case "if":
		w.conditional(s, path)
	case "minItems", "maxItems", "minLength", "maxLength":
		w.count(s, path, v)
	case "pattern":
		w.pattern(s, path, v)
	case "format":
		w.format(s, path, v)
	case "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum":
		w.bound(s, path, v)
	case "multipleOf":
		w.multipleOf(s, path, v)
	default:
		w.nested(s, path, v)
	}
}

// nested rewrites a keyword of objects or lists.
func (w *rewriter) nested(s *state, path string, v *node) {
	switch last(path) {
	case "properties":
		s.out.set("properties", w.byName(path, v))
	case "patternProperties":
		w.patternProperties(s, path, v)
	case "additionalProperties":
		w.additionalProperties(s, path, v)
	case "unevaluatedProperties":
		w.unevaluatedProperties(s, path, v)
	case "propertyNames":
		w.propertyNames(s, path, v)
	case "required":
		w.required(s, path, v)
	case "minProperties", "maxProperties":
		w.countedProperties(s, path, v)
	case "dependencies", "dependentRequired", "dependentSchemas":
		w.dependent(path, v)
	case "items", "prefixItems":
		w.listItems(s, path, v)
	case "additionalItems":
		s.out.set("additionalItems", w.schema(path, v))
	case "unevaluatedItems":
		w.unevaluatedItems(s, path, v)
	case "uniqueItems":
		w.uniqueItems(s, path, v)
	case "contains":
		w.contains(s, path)
	}
}

func (w *rewriter) refer(s *state, path string, v *node) {
	switch ref := w.reference(path, v); {
	case ref.isAlways():
	case s.out.get("$ref") == nil:
		s.out.set("$ref", ref)
	default:
		s.and(objectOf("$ref", ref))
	}
}

// last is the keyword at the end of a path.
func last(path string) string { return path[strings.LastIndexByte(path, '.')+1:] }

var typeNames = []string{"null", "boolean", "object", "array", "number", "string", "integer"}

func (w *rewriter) types(s *state, path string, v *node) {
	names := []*node{v}
	if v.kind == list {
		names = v.items
	}
	for _, name := range names {
		if text, ok := name.str(); !ok || !slices.Contains(typeNames, text) {
			w.fail(path, "found %s, expected one or a list of %s", brief(v), strings.Join(typeNames, ", "))
			return
		}
	}
	if s.none = len(names) == 0; s.out.get("type") == nil { // else not wrote the types that are left
		s.out.set("type", v)
	}
}

func (w *rewriter) enum(s *state, path string, v *node) {
	if v.kind != list {
		w.fail(path, "found %s, expected a list of values", brief(v))
		return
	}
	if s.none = len(v.items) == 0; !s.none {
		s.out.set("enum", v)
	}
}

// several rewrites a list of schemas.
func (w *rewriter) several(path string, v *node) []*node {
	if v.kind != list || len(v.items) == 0 {
		w.fail(path, "found %s, expected a list of schemas", brief(v))
		return nil
	}
	out := make([]*node, len(v.items))
	for i, item := range v.items {
		out[i] = w.schema(join(path, strconv.Itoa(i)), item)
	}
	return out
}

func (w *rewriter) allOf(s *state, path string, v *node) {
	for _, one := range w.several(path, v) {
		if s.none = s.none || one.isNever(); !one.isAlways() {
			s.and(one)
		}
	}
}

func (w *rewriter) anyOf(s *state, path string, v *node) {
	if options := w.several(path, v); !slices.ContainsFunc(options, (*node).isAlways) {
		s.options(options)
	}
}

// options adds a list of schemas, one of which has to hold.
func (s *state) options(options []*node) {
	options = slices.DeleteFunc(options, (*node).isNever)
	switch {
	case len(options) == 0:
		s.none = true
	case s.out.get("anyOf") == nil:
		s.out.set("anyOf", listOf(options...))
	default:
		s.and(objectOf("anyOf", listOf(options...)))
	}
}

// oneOf becomes anyOf where no value can match two of the schemas. It is judged once the definitions are known.
func (w *rewriter) oneOf(s *state, path string, v *node) {
	options := w.several(path, v)
	if slices.ContainsFunc(options, (*node).isAlways) && len(options) == 2 && slices.ContainsFunc(options, (*node).isNever) {
		return
	}
	w.later = append(w.later, func() {
		options := slices.DeleteFunc(slices.Clone(options), (*node).isNever)
		for i, a := range options {
			for _, b := range options[i+1:] {
				if !w.disjoint(a, b, maxDepth) {
					w.cannot(path,
						"found alternatives that one value may match together, expected that they differ in a type, a constant or a required property; anyOf can be enforced")
					return
				}
			}
		}
	})
	s.options(options)
}

// not is enforced where it forbids everything, nothing, or types.
func (w *rewriter) not(s *state, path string, v *node) {
	if v.kind == object && len(v.members) == 1 && v.get("not") != nil { // twice negated
		s.and(w.schema(join(path, "not"), v.get("not")))
		return
	}
	before := w.dropped
	inner := w.schema(path, v)
	switch {
	case w.dropped > before: // inner allows too much, and the rest would be too little
	case inner.isNever():
	case inner.isAlways():
		s.none = true
	case len(inner.members) == 1 && inner.get("type") != nil && !namesType(inner.get("type"), "integer"):
		left := slices.DeleteFunc(typesOfKeyword(s.in.get("type")), func(name string) bool {
			return namesType(inner.get("type"), name) || name == "integer" && namesType(inner.get("type"), "number")
		})
		nodes := make([]*node, len(left))
		for i, name := range left {
			nodes[i] = valueOf(name)
		}
		s.none = len(left) == 0
		s.out.set("type", listOf(nodes...))
	default:
		w.cannot(path, "found not with a schema, which cannot be enforced")
	}
}

func namesType(v *node, name string) bool { return slices.Contains(typesOfKeyword(v), name) }

// typesOfKeyword are the types that the keyword type allows; all for nil.
func typesOfKeyword(v *node) (names []string) {
	switch {
	case v == nil:
		return slices.DeleteFunc(slices.Clone(typeNames), func(name string) bool { return name == "integer" })
	case v.kind == list:
		for _, item := range v.items {
			name, _ := item.str()
			names = append(names, name)
		}
	default:
		name, _ := v.str()
		names = append(names, name)
	}
	return names
}

// conditional is if, with then and else.
func (w *rewriter) conditional(s *state, path string) {
	for _, name := range []string{"then", "else"} {
		if branch := s.in.get(name); branch != nil && !branch.isAlways() {
			w.cannot(path, "found if with "+name+", which cannot be enforced")
			return
		}
	}
}

// whole reads a number that counts something.
func (w *rewriter) whole(path string, v *node) (n int, ok bool) {
	value, ok := v.number()
	if !ok || value < 0 || value != math.Trunc(value) || value > math.MaxInt32 {
		w.fail(path, "found %s, expected a whole number from 0 to %d", brief(v), math.MaxInt32)
		return 0, false
	}
	return int(value), true
}

func (w *rewriter) count(s *state, path string, v *node) {
	if n, ok := w.whole(path, v); ok {
		s.out.set(last(path), valueOf(n))
	}
}

// bound is a limit of a number. Draft 4 has true for an exclusive one.
func (w *rewriter) bound(s *state, path string, v *node) {
	if _, ok := v.number(); !ok && (!strings.HasPrefix(last(path), "exclusive") || v.text != "true" && v.text != "false") {
		w.fail(path, "found %s, expected a number", brief(v))
		return
	}
	s.out.set(last(path), v)
}

func (w *rewriter) multipleOf(s *state, path string, v *node) {
	if n, ok := v.number(); !ok || n <= 0 {
		w.fail(path, "found %s, expected a number above 0", brief(v))
		return
	}
	s.out.set(last(path), v)
}
