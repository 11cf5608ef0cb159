// Package schema rewrites JSON schemas for a grammar engine that knows a part of JSON Schema's keywords. What allows everything
// is dropped, what has a form that the engine knows gets it, and what cannot be enforced is an error that names its place, or dropped.
//
// It must not know the engine, requests or tools.
package schema

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Version changes when Rewrite makes another schema of the same source. Processes with different versions may allow different answers.
const Version = "1"

// ErrSchema is the error of a schema that is not valid, or that cannot be enforced. Its text begins with the place.
var ErrSchema = errors.New("schema")

// Error is an ErrSchema with its place.
type Error struct {
	Path   string // such as "properties.when.format"; "" is the whole schema
	Reason string // what was found and what was expected
}

// Error returns the place and the reason.
func (e *Error) Error() string {
	if e.Path == "" {
		return e.Reason
	}
	return e.Path + ": " + e.Reason
}

// Is reports whether the target is ErrSchema.
func (e *Error) Is(target error) bool { return target == ErrSchema }

// Options say how to rewrite.
type Options struct {
	// Loose drops what cannot be enforced, so that the result allows more than the schema. Else it is an error.
	Loose bool
	// Object allows objects only. A schema that allows none becomes one that allows any object.
	Object bool
}

// maxReferences bounds the definitions that a schema leads to.
const maxReferences = 4096

// Rewrite returns a schema that needs no other document and has only keywords that the engine knows. It allows the same values, but that
// dates and times exist. An error is an *Error.
func Rewrite(source string, o Options) (string, error) {
	root, err := parse(source)
	if err != nil {
		return "", &Error{Reason: "found no JSON, expected a schema: " + err.Error()}
	}
	w := &rewriter{loose: o.Loose, root: root, names: make(map[*node]string)}
	out := w.schema("", root)
	for i := 0; i < len(w.targets); i++ { //nolint:intrange // grows while definitions lead to others
		w.defined = append(w.defined, w.schema(w.targets[i].path, w.targets[i].node))
	}
	for _, check := range w.later {
		check()
	}
	if w.err != nil {
		return "", w.err
	}
	w.prune(out)
	if o.Object {
		out = w.onlyObjects(out)
	}
	if !w.ends(out) {
		return "", &Error{Reason: "no value that it allows is finite"}
	}
	return w.document(out).String(), nil
}

// rewriter rewrites one schema.
type rewriter struct {
	loose   bool
	root    *node
	names   map[*node]string  // of the definitions that references lead to
	anchors map[string]target // nil: not collected yet
	targets []target          // the same, in the order of their names
	defined []*node           // the targets, rewritten
	finite  []bool            // of the targets: they allow a finite value
	unsure  bool              // more targets may
	later   []func()          // checks that need the definitions
	dropped int               // keywords that cannot be enforced
	work    int               // comparisons so far, see disjoint
	err     *Error            // the first one
}

type target struct {
	path string
	node *node
}

func (w *rewriter) fail(path, format string, args ...any) {
	if w.err == nil {
		w.err = &Error{path, fmt.Sprintf(format, args...)}
	}
}

// cannot is a keyword that cannot be enforced: an error, unless what cannot be enforced is dropped.
func (w *rewriter) cannot(path, why string) {
	w.dropped++
	if !w.loose {
		w.fail(path, "%s", why)
	}
}

// document returns the schema with the definitions that it refers to.
func (w *rewriter) document(out *node) *node {
	if out.kind != object || len(w.targets) == 0 || !strings.Contains(out.String(), `"$ref"`) {
		return out
	}
	definitions := &node{kind: object}
	for i := range w.targets {
		definitions.members = append(definitions.members, member{strconv.Itoa(i), w.defined[i]})
	}
	out = &node{kind: object, members: append([]member{}, out.members...)}
	out.members = append(out.members, member{"$defs", definitions})
	return out
}

// schema returns the rewritten form of the schema at a path.
func (w *rewriter) schema(path string, n *node) *node {
	switch {
	case w.err != nil:
		return always()
	case n.kind == scalar && (n.isAlways() || n.isNever()):
		return n
	case n.kind != object:
		w.fail(path, "found %s, expected a schema: an object, true or false", brief(n))
		return always()
	}
	out := &node{kind: object}
	s := &state{in: n, out: out, path: path}
	for i := range n.members {
		m := &n.members[i]
		if m.value.text == "null" && m.name != "const" || strings.Contains(m.name, ".") {
			continue // null is how some libraries write an absent keyword, and no keyword has a dot
		}
		w.keyword(s, join(path, m.name), m.value)
		if s.none {
			return never()
		}
	}
	return out
}

// state is a schema that is being rewritten.
type state struct {
	in, out *node
	path    string
	none    bool // it allows nothing
}

// and adds a schema that has to hold, too.
func (s *state) and(more *node) {
	all := s.out.get("allOf")
	if all == nil {
		all = listOf()
		s.out.set("allOf", all)
	}
	all.items = append(all.items, more)
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

// brief is a value for an error's text.
func brief(n *node) string {
	const most = 60
	text := n.String()
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "..."
	}
	return text
}
