package schema

import (
	"net/url"
	"strconv"
	"strings"
)

// reference returns a reference to the definition that a $ref names, under the name that it has in the result.
func (w *rewriter) reference(path string, value *node) *node {
	text, ok := value.str()
	if !ok {
		w.fail(path, "found %s, expected a string", brief(value))
		return always()
	}
	fragment, local := w.local(text)
	if !local {
		w.cannot(path, "found a reference to another document, "+brief(value)+", expected one that begins with #")
		return always()
	}
	at, where := w.resolve(fragment)
	if at == nil {
		w.cannot(path, "found "+brief(value)+", which leads to no schema of this document")
		return always()
	}
	name, known := w.names[at]
	if !known {
		if len(w.targets) == maxReferences {
			w.fail(path, "found more than %d definitions", maxReferences)
			return always()
		}
		name = strconv.Itoa(len(w.targets))
		w.names[at] = name
		w.targets = append(w.targets, target{where, at})
	}
	return valueOf("#/$defs/" + name)
}

// local returns the part of a reference after the #, and whether it names this document.
func (w *rewriter) local(ref string) (fragment string, ok bool) {
	document, fragment, _ := strings.Cut(ref, "#")
	if document == "" {
		return fragment, true
	}
	for _, keyword := range []string{"$id", "id"} {
		if id, ok := w.root.get(keyword).str(); ok && strings.TrimSuffix(id, "#") == document {
			return fragment, true
		}
	}
	return "", false
}

// resolve returns the schema that the fragment of a reference names, a JSON pointer (RFC 6901) or an anchor, and its path. nil: none.
func (w *rewriter) resolve(fragment string) (at *node, path string) {
	if text, err := url.PathUnescape(fragment); err == nil {
		fragment = text
	}
	if fragment == "" {
		return w.root, ""
	}
	pointer, ok := strings.CutPrefix(fragment, "/")
	if !ok {
		if w.anchors == nil {
			w.anchors = make(map[string]target)
			w.findAnchors(w.root, "")
		}
		found := w.anchors[fragment]
		return found.node, found.path
	}
	at = w.root
	if pointer == "" { // "#/" is how some write "#"
		if member := at.get(""); member == nil {
			return at, ""
		}
	}
	for name := range strings.SplitSeq(pointer, "/") {
		name = strings.NewReplacer("~1", "/", "~0", "~").Replace(name)
		path = join(path, name)
		switch at.kind {
		case object:
			at = at.get(name)
		case list:
			i, err := strconv.Atoi(name)
			if err != nil || i < 0 || i >= len(at.items) {
				return nil, path
			}
			at = at.items[i]
		case scalar:
			at = nil
		}
		if at == nil {
			return nil, path
		}
	}
	return at, path
}

// findAnchors collects the schemas with an anchor, of any draft. The first of a name counts.
func (w *rewriter) findAnchors(n *node, path string) {
	for _, keyword := range []string{"$anchor", "$dynamicAnchor", "$id", "id"} {
		text, ok := n.get(keyword).str()
		if strings.HasSuffix(keyword, "id") {
			text, ok = strings.CutPrefix(text, "#")
		}
		if _, known := w.anchors[text]; ok && !known {
			w.anchors[text] = target{path, n}
		}
	}
	for i := range n.members {
		if m := &n.members[i]; m.name != "const" && m.name != "enum" {
			w.findAnchors(m.value, join(path, m.name))
		}
	}
	for i, item := range n.items {
		w.findAnchors(item, join(path, strconv.Itoa(i)))
	}
}

// target returns what a rewritten reference refers to, rewritten; n itself for another schema.
func (w *rewriter) target(n *node) *node {
	for range 64 {
		i, ok := w.number(n)
		if !ok || len(n.members) > 1 {
			return n
		}
		n = w.defined[i]
	}
	return n
}

// number is that of the definition that a rewritten schema refers to.
func (w *rewriter) number(n *node) (i int, ok bool) {
	ref, ok := n.get("$ref").str()
	if !ok {
		return 0, false
	}
	i, err := strconv.Atoi(strings.TrimPrefix(ref, "#/$defs/"))
	return i, err == nil
}
