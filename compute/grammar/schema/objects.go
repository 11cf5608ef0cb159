package schema

import (
	"slices"
	"strconv"
)

// byName rewrites an object of schemas.
func (w *rewriter) byName(path string, v *node) *node {
	out := &node{kind: object}
	if v.kind != object {
		w.fail(path, "found %s, expected an object of schemas", brief(v))
		return out
	}
	for i := range v.members {
		m := &v.members[i]
		out.members = append(out.members, member{m.name, w.schema(join(path, m.name), m.value)})
	}
	return out
}

// patternProperties cannot be dropped alone: the names would fall to additionalProperties.
func (w *rewriter) patternProperties(s *state, path string, v *node) {
	out := w.byName(path, v)
	for i := range out.members {
		if why := beyond(out.members[i].name); why != "" {
			w.cannot(join(path, out.members[i].name), why)
			return
		}
	}
	s.out.set("patternProperties", out)
}

// patternsDropped reports whether patternProperties of a schema are dropped.
func (s *state) patternsDropped() bool {
	patterns := s.in.get("patternProperties")
	return patterns != nil && slices.ContainsFunc(patterns.members, func(m member) bool { return beyond(m.name) != "" })
}

func (w *rewriter) additionalProperties(s *state, path string, v *node) {
	if out := w.schema(path, v); !s.patternsDropped() && s.out.get("additionalProperties") == nil { // else propertyNames wrote them
		s.out.set("additionalProperties", out)
	}
}

func (w *rewriter) required(s *state, path string, v *node) {
	if v.text == "true" || v.text == "false" { // draft 3, at the property
		return
	}
	out, known := listOf(), make(map[string]bool)
	for _, item := range v.items {
		name, ok := item.str()
		if !ok {
			w.fail(path, "found %s, expected a list of names", brief(v))
			return
		}
		if !known[name] {
			known[name] = true
			out.items = append(out.items, item)
		}
	}
	if v.kind != list {
		w.fail(path, "found %s, expected a list of names", brief(v))
		return
	}
	s.out.set("required", out)
}

// countedProperties are enforced where each listed property is required, and where one of several suffices.
func (w *rewriter) countedProperties(s *state, path string, v *node) {
	n, ok := w.whole(path, v)
	if !ok || n == 0 && last(path) == "minProperties" {
		return
	}
	names, optional := make(map[string]bool), 0
	for _, name := range listed(s.in.get("required")) {
		names[name] = true
	}
	required := len(names)
	if p := s.in.get("properties"); p != nil {
		for i := range p.members {
			if !names[p.members[i].name] {
				optional++
			}
		}
	}
	if last(path) == "minProperties" && n <= required {
		return
	}
	least, most := s.in.get("minProperties"), s.in.get("maxProperties")
	one := (least == nil || least.text == "0" || least.text == strconv.Itoa(required+1)) &&
		(most == nil || most.text == strconv.Itoa(required+1)) && s.in.get("patternProperties") == nil &&
		s.in.get("additionalProperties") != nil && s.in.get("additionalProperties").isNever()
	if optional > 0 && !one {
		w.cannot(path, "found "+last(path)+" with optional properties, which cannot be enforced")
		return
	}
	s.out.set(last(path), valueOf(n))
}

// listed are the texts of a list of strings.
func listed(v *node) (names []string) {
	if v == nil {
		return nil
	}
	for _, item := range v.items {
		if name, ok := item.str(); ok {
			names = append(names, name)
		}
	}
	return names
}

// propertyNames is enforced where the schema of the names lists them or gives one pattern, and the object lists none itself.
func (w *rewriter) propertyNames(s *state, path string, v *node) {
	names := w.target(w.schema(path, v))
	if names.isAlways() || len(names.members) == 1 && namesType(names.get("type"), "string") && names.get("type") != nil {
		return
	}
	additional := always()
	if v := s.in.get("additionalProperties"); v != nil {
		additional = w.schema(join(s.path, "additionalProperties"), v)
	}
	plain := s.in.get("properties") == nil && s.in.get("patternProperties") == nil
	rest := slices.DeleteFunc(slices.Clone(names.members), func(m member) bool { return m.name == "type" })
	switch {
	case plain && len(rest) == 1 && rest[0].name == "enum":
		properties := &node{kind: object}
		for _, name := range listed(rest[0].value) {
			properties.set(name, additional)
		}
		s.out.set("properties", properties)
	case plain && len(rest) == 1 && rest[0].name == "pattern":
		pattern, _ := rest[0].value.str()
		s.out.set("patternProperties", objectOf(pattern, additional))
	default:
		w.cannot(path, "found names with a schema, which cannot be enforced; expected an enum or a pattern, without properties")
		return
	}
	s.out.set("additionalProperties", never())
}

// inPlace are the keywords whose schemas may evaluate properties and items, too.
func inPlace(n *node) bool {
	return slices.ContainsFunc(n.members, func(m member) bool {
		return slices.Contains([]string{"$ref", "$dynamicRef", "$recursiveRef", "allOf", "anyOf", "oneOf", "not", "if", "dependentSchemas"},
			m.name)
	})
}

func (w *rewriter) unevaluatedProperties(s *state, path string, v *node) {
	switch out := w.schema(path, v); {
	case out.isAlways(), s.in.get("additionalProperties") != nil:
	case inPlace(s.in):
		w.cannot(path, "found beside references or other schemas, which cannot be enforced; expected additionalProperties")
	case !s.patternsDropped():
		s.out.set("additionalProperties", out)
	}
}

// dependent are the keywords that make a property demand others.
func (w *rewriter) dependent(path string, v *node) {
	for i := range v.members {
		if m := &v.members[i]; !m.value.isAlways() && (m.value.kind != list || len(m.value.items) > 0) {
			w.cannot(path, "found "+last(path)+", which cannot be enforced")
			return
		}
	}
}
