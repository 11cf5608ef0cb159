package schema

import "strconv"

// listItems are items and prefixItems: a schema, or a list of schemas.
func (w *rewriter) listItems(s *state, path string, v *node) {
	if v.kind != list {
		s.out.set(last(path), w.schema(path, v))
		return
	}
	out := listOf()
	for i, item := range v.items {
		out.items = append(out.items, w.schema(join(path, strconv.Itoa(i)), item))
	}
	s.out.set(last(path), out)
}

// uniqueItems is enforced for lists of at most one item.
func (w *rewriter) uniqueItems(s *state, path string, v *node) {
	switch most, ok := s.in.get("maxItems").number(); {
	case v.text == "false", ok && most <= 1:
	case v.text != "true":
		w.fail(path, "found %s, expected true or false", brief(v))
	default:
		w.cannot(path, "found uniqueItems, which cannot be enforced")
	}
}

func (w *rewriter) contains(s *state, path string) {
	least, ok := s.in.get("minContains").number()
	if !ok || least > 0 || s.in.get("maxContains") != nil {
		w.cannot(path, "found contains, which cannot be enforced")
	}
}

func (w *rewriter) unevaluatedItems(s *state, path string, v *node) {
	switch out := w.schema(path, v); {
	case out.isAlways(), s.in.get("items") != nil && s.in.get("items").kind != list, s.in.get("additionalItems") != nil:
	case inPlace(s.in) || s.in.get("contains") != nil:
		w.cannot(path, "found beside references or other schemas, which cannot be enforced; expected items")
	case s.in.get("items") != nil:
		s.out.set("additionalItems", out)
	default:
		s.out.set("items", out)
	}
}
