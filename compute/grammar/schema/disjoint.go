package schema

import "slices"

// The bounds of a comparison of two schemas.
const (
	maxDepth = 16
	maxWork  = 1_000_000
)

// disjoint reports whether surely no value matches both of two rewritten schemas.
func (w *rewriter) disjoint(a, b *node, depth int) bool {
	if w.work++; depth == 0 || w.work > maxWork {
		return false
	}
	a, b = w.target(a), w.target(b)
	if a.isNever() || b.isNever() {
		return true
	}
	if w.partDisjoint(a, b, depth) || w.partDisjoint(b, a, depth) {
		return true
	}
	kindsA, kindsB := w.kinds(a, depth), w.kinds(b, depth)
	common := slices.DeleteFunc(slices.Clone(kindsA), func(name string) bool { return !slices.Contains(kindsB, name) })
	switch {
	case len(common) == 0:
		return true
	case valuesOf(a) != nil && valuesOf(b) != nil:
		if w.work += len(valuesOf(a)) * len(valuesOf(b)); w.work > maxWork {
			return false
		}
		return !slices.ContainsFunc(valuesOf(a), func(v *node) bool {
			return slices.ContainsFunc(valuesOf(b), func(other *node) bool { return same(v, other) })
		})
	case len(common) > 1:
		return false
	case common[0] == "object":
		return w.objectsDisjoint(a, b, depth)
	case common[0] == "number":
		return above(a, b) || above(b, a)
	}
	return false
}

// partDisjoint reports whether all that a part of schema a allows is disjoint from b.
func (w *rewriter) partDisjoint(a, b *node, depth int) bool {
	apart := func(one *node) bool { return w.disjoint(one, b, depth-1) }
	if ref := a.get("$ref"); ref != nil && len(a.members) > 1 && apart(objectOf("$ref", ref)) {
		return true
	}
	if all := a.get("allOf"); all != nil && slices.ContainsFunc(all.items, apart) {
		return true
	}
	options := a.get("anyOf")
	return options != nil && !slices.ContainsFunc(options.items, func(one *node) bool { return !apart(one) })
}

// kinds are the types that a rewritten schema allows at most. An integer is a number.
func (w *rewriter) kinds(n *node, depth int) []string {
	n = w.target(n)
	if n.isNever() {
		return nil
	}
	if w.work++; w.work > maxWork {
		depth = 0
	}
	kinds := typesOfKeyword(n.get("type"))
	for i, name := range kinds {
		if name == "integer" {
			kinds[i] = "number"
		}
	}
	only := func(others []string) {
		kinds = slices.DeleteFunc(kinds, func(name string) bool { return !slices.Contains(others, name) })
	}
	if values := valuesOf(n); values != nil {
		var of []string
		for _, v := range values {
			of = append(of, v.jsonType())
		}
		only(of)
	}
	if depth == 0 {
		return kinds
	}
	if ref := n.get("$ref"); ref != nil && len(n.members) > 1 {
		only(w.kinds(objectOf("$ref", ref), depth-1))
	}
	if all := n.get("allOf"); all != nil {
		for _, one := range all.items {
			only(w.kinds(one, depth-1))
		}
	}
	if options := n.get("anyOf"); options != nil {
		var of []string
		for _, one := range options.items {
			of = append(of, w.kinds(one, depth-1)...)
		}
		only(of)
	}
	return kinds
}

// valuesOf are the values that a schema lists, nil if it lists none.
func valuesOf(n *node) []*node {
	if v := n.get("const"); v != nil {
		return []*node{v}
	}
	if v := n.get("enum"); v != nil {
		return v.items
	}
	return nil
}

// same reports whether two JSON values may be equal.
func same(a, b *node) bool {
	x, number := a.number()
	y, other := b.number()
	if number && other {
		return x == y
	}
	if a.kind != scalar && a.kind == b.kind {
		return true // not compared
	}
	return a.kind == b.kind && a.text == b.text
}

// objectsDisjoint finds a property that one schema demands and of which no value suits both.
func (w *rewriter) objectsDisjoint(a, b *node, depth int) bool {
	for _, name := range append(listed(a.get("required")), listed(b.get("required"))...) {
		if w.disjoint(property(a, name), property(b, name), depth-1) {
			return true
		}
	}
	return false
}

// property is the schema that an object's schema has for a property, as far as it is known.
func property(n *node, name string) *node {
	if properties := n.get("properties"); properties != nil {
		if found := properties.get(name); found != nil {
			return found
		}
	}
	if additional := n.get("additionalProperties"); additional != nil && n.get("patternProperties") == nil {
		return additional
	}
	return always()
}

// above reports whether all numbers of a are above those of b.
func above(a, b *node) bool {
	least, ok := a.get("minimum").number()
	most, bounded := b.get("maximum").number()
	return ok && bounded && least > most
}
