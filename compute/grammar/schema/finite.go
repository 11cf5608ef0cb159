package schema

import "slices"

// maxPasses bounds the passes over all definitions.
const maxPasses = 64

// prune replaces references to definitions without a finite value by schemas that allow nothing: a grammar would enter them, and never
// come to an end.
func (w *rewriter) prune(out *node) {
	w.finite = make([]bool, len(w.defined))
	for pass := 0; w.more(pass%2 == 0); pass++ {
		if w.unsure = pass == maxPasses; w.unsure { // the engine finds the rest
			return
		}
	}
	if slices.Contains(w.finite, false) {
		for _, n := range append(slices.Clone(w.defined), out) {
			w.without(n)
		}
	}
}

// more finds further definitions with a finite value. Most lead to later ones, so the last ones come first, and in turn the first ones.
func (w *rewriter) more(backward bool) (found bool) {
	for i := range w.defined {
		if backward {
			i = len(w.defined) - 1 - i
		}
		if !w.finite[i] && w.ends(w.defined[i]) {
			w.finite[i], found = true, true
		}
	}
	return found
}

// without replaces the references inside of a rewritten schema.
func (w *rewriter) without(n *node) {
	for i := range n.members {
		switch m := &n.members[i]; m.name {
		case "const", "enum":
		case "properties", "patternProperties":
			for i := range m.value.members {
				m.value.members[i].value = w.replaced(m.value.members[i].value)
			}
		default:
			m.value = w.replaced(m.value)
		}
	}
	for i, item := range n.items {
		n.items[i] = w.replaced(item)
	}
}

func (w *rewriter) replaced(n *node) *node {
	if i, ok := w.number(n); ok && !w.finite[i] {
		return never()
	}
	w.without(n)
	return n
}

// ends reports whether a rewritten schema may allow a finite value, as far as the definitions that are known to do so show.
func (w *rewriter) ends(n *node) bool {
	switch {
	case n.isNever():
		return false
	case n.kind != object || valuesOf(n) != nil:
		return true
	}
	if i, ok := w.number(n); ok && !w.finite[i] && !w.unsure {
		return false
	}
	endless := func(one *node) bool { return !w.ends(one) }
	if all := n.get("allOf"); all != nil && slices.ContainsFunc(all.items, endless) {
		return false
	}
	if options := n.get("anyOf"); options != nil && !slices.ContainsFunc(options.items, w.ends) {
		return false
	}
	return slices.ContainsFunc(typesOfKeyword(n.get("type")), func(name string) bool {
		switch name {
		case "object":
			return !slices.ContainsFunc(listed(n.get("required")), func(name string) bool { return !w.ends(property(n, name)) })
		case "array":
			least, _ := n.get("minItems").number()
			return least == 0 || !slices.ContainsFunc(firstItems(n, int(least)), endless)
		}
		return true
	})
}

// firstItems are the schemas of the first items of a list, each once.
func firstItems(n *node, count int) []*node {
	first, rest := n.get("prefixItems"), n.get("items")
	if rest != nil && rest.kind == list {
		first, rest = rest, n.get("additionalItems")
	}
	var out []*node
	if first != nil {
		out = slices.Clone(first.items[:min(count, len(first.items))])
	}
	if rest != nil && count > len(out) {
		out = append(out, rest)
	}
	return out
}

// onlyObjects returns a schema that allows the objects of another one only, or any object where it allows none.
func (w *rewriter) onlyObjects(n *node) *node {
	kinds := w.kinds(n, maxDepth)
	switch {
	case !slices.Contains(kinds, "object"):
		return objectOf("type", valueOf("object"))
	case len(kinds) == 1 && n.get("type") != nil:
		return n
	case n.kind != object:
		return objectOf("type", valueOf("object"))
	}
	out := &node{kind: object, members: append([]member{{"type", valueOf("object")}},
		slices.DeleteFunc(slices.Clone(n.members), func(m member) bool { return m.name == "type" })...)}
	return out
}
